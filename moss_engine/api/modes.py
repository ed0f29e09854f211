"""One way to use a checkpoint: what it takes, what it gives, and how it is asked."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from moss_engine.api.errors import CheckpointError

Medium = Literal["text", "speech"]


@dataclass(frozen=True)
class Mode:
    """One way to use a checkpoint.

    `system` is the content of the system turn; if it spells one of the tokenizer's special tokens,
    it is that token. With `history` earlier messages are part of the prompt, otherwise only the
    last one is. `split_sentences` reads the message out: each of its sentences is a segment of its
    own, whose text is that sentence and nothing else. `spell_out` first turns the text into spoken
    words of the `language`. `opens_speech` ends the prompt with sosp, so that a spoken reply begins
    with its first code. `own_system`: a conversation may bring its own system turn instead.
    `through_text`: the mode gets speech as a recogniser's transcript, and its own earlier answers
    as text.
    """

    name: str
    label: str
    input: Medium
    output: Medium
    system: str
    split_sentences: bool
    default: bool
    note: str | None
    history: bool = False
    spell_out: bool = True
    opens_speech: bool = False
    own_system: bool = False
    through_text: bool = False
    language: str = "en"

    @property
    def reads(self) -> bool:
        """Whether it says a text as it stands."""
        return self.split_sentences and self.goes("text", "speech")

    def goes(self, given: Medium, output: Medium | None) -> bool:
        """Whether it goes from one medium to another (None: to any)."""
        return self.input == given and output in (None, self.output)

    def __post_init__(self) -> None:
        types = {"str": str, "bool": bool, "str | None": (str, type(None)), "Medium": str}
        for field in fields(self):
            if not isinstance(getattr(self, field.name), types[str(field.type)]):
                raise CheckpointError(
                    f"mode {self.name!r} has the {field.name} {getattr(self, field.name)!r}; "
                    f"it must be {field.type}."
                )
        if not {self.input, self.output} <= {"text", "speech"}:
            raise CheckpointError(
                f"mode {self.name!r} goes from {self.input!r} to {self.output!r}; "
                "both must be 'text' or 'speech'."
            )
