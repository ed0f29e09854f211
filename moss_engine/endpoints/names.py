"""Names that programs have built in, such as OpenAI's own, and which model or voice here each
stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from moss_engine.api.errors import ConfigError

OPENAI_MODEL = re.compile(
    r"(?:tts-1|whisper-1|gpt-(?:realtime|audio|transcribe|live|\d)|chatgpt-|o[1-9](?=-|$))[A-Za-z0-9.-]*"
)
"""Models of speech, transcription, realtime and chat; none of images, embeddings, moderation."""
OPENAI_VOICES = (
    "alloy", "ash", "ballad", "coral", "echo", "fable", "nova", "onyx", "sage", "shimmer", "verse",
    "marin", "cedar",
)  # fmt: skip


@dataclass(frozen=True)
class Names:
    """`model` and `voices` are what there is; `given` maps other names to these. Unless `strict`,
    all of OpenAI's models stand for the model, and their voices, in this order, for the voices in
    turn."""

    model: str
    voices: tuple[str, ...]
    given: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False

    def __post_init__(self) -> None:
        for name, meant in self.given.items():
            if meant not in (self.model, *self.voices):
                raise ConfigError(
                    f"--api-names gives {meant!r} another name, {name!r}, but the model is "
                    f"{self.model!r} and the voices are {', '.join(self.voices)}."
                )

    def is_model(self, name: str) -> bool:
        """Whether the model is meant."""
        if name in self.given:
            return self.given[name] == self.model
        return name == self.model or (not self.strict and OPENAI_MODEL.fullmatch(name) is not None)

    def voice(self, name: str) -> str | None:
        """The voice that is meant; None for a name that stands for none."""
        name = self.given.get(name, name)
        if name in self.voices:
            return name
        if self.strict or name not in OPENAI_VOICES or not self.voices:
            return None
        return self.voices[OPENAI_VOICES.index(name) % len(self.voices)]
