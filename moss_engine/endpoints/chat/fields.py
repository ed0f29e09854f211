"""The fields of POST /v1/chat/completions that are served; a value that stands for what is done
anyway is taken, any other is refused by name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag

from moss_engine.endpoints.bodies import Body, Rows, told_by

MAX_MESSAGES = 512
MAX_PARTS = 16


class TextPart(Body):
    type: Literal["text"]
    text: str


class Recording(Body):
    """`data` is base64 of a sound file, whose kind is told by its first bytes."""

    data: str
    format: Literal["wav", "mp3", "flac", "ogg", "opus", "aiff"] = "wav"


class AudioPart(Body):
    type: Literal["input_audio"]
    input_audio: Recording


TextParts = Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS)]
UserPart = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[AudioPart, Tag("<input_audio>")], told_by("type")
]
UserParts = Annotated[list[UserPart], Field(min_length=1, max_length=MAX_PARTS)]
Words = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[TextParts, Tag("<parts>")], told_by("type")
]


class SystemMessage(Body):
    role: Literal["system", "developer"]
    content: Words


class UserMessage(Body):
    role: Literal["user"]
    content: Annotated[
        Annotated[str, Tag("<text>")] | Annotated[UserParts, Tag("<parts>")], told_by("type")
    ]


class EarlierAudio(Body):
    """As it was sent; only the id is read."""

    id: str
    data: str | None = None
    expires_at: int | None = None
    transcript: str | None = None


class AssistantMessage(Body):
    """An earlier answer: its words, or the id of its sound."""

    role: Literal["assistant"]
    content: Words | None = None
    audio: EarlierAudio | None = None
    refusal: None = None
    annotations: None = None
    tool_calls: None = None
    function_call: None = None


AnyMessage = Annotated[
    Annotated[SystemMessage, Tag("<system>")]
    | Annotated[SystemMessage, Tag("<developer>")]
    | Annotated[UserMessage, Tag("<user>")]
    | Annotated[AssistantMessage, Tag("<assistant>")],
    told_by("role"),
]


class AudioOut(Body):
    voice: str | None = None
    format: Literal["wav", "pcm", "pcm16", "flac", "mp3", "opus"] = "wav"


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class ResponseFormat(Body):
    type: Literal["text"]


class ChatBody(Body):
    """`mode` is ours: one of the checkpoint's modes, instead of the one that the modalities say."""

    model: str
    messages: Annotated[list[AnyMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    modalities: Annotated[tuple[Literal["text", "audio"], ...], Field(min_length=1)] = ("text",)
    audio: AudioOut | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: Annotated[int, Field(ge=0)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_completion_tokens: Rows | None = None
    max_tokens: Rows | None = None
    mode: str | None = None
    n: Literal[1] | None = None
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    logprobs: Literal[False] | None = None
    store: Literal[False] | None = None
    stop: None = None
    tools: Annotated[list[None], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    response_format: ResponseFormat | None = None
    user: str | None = None

    @property
    def speaks(self) -> bool:
        return "audio" in self.modalities
