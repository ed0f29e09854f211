"""What a realtime client may send: OpenAI's events with the fields that are served, also under
their names from before general availability."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from moss_engine.audio.turn_taking import END_S, LEAD_S, LIKELY
from moss_engine.endpoints.bodies import (
    Language,
    OpenBody,
    Rows,
    TextPart,
    Voice,
    check_size,
    parse_value,
    told_by,
)
from moss_engine.endpoints.errors import ApiError, of_detail
from moss_engine.endpoints.functions import AnyFlatChoice, CallItem, FlatTools, ItemName, OutputItem
from moss_engine.endpoints.realtime.conversation import MAX_ITEMS

Modalities = Annotated[list[Literal["text", "audio"]], Field(min_length=1, max_length=2)]
"""A spoken answer always comes with its words, with or without "text"."""
MaxTokens = Annotated[
    Annotated[Rows, Tag("<number>")] | Annotated[Literal["inf"], Tag("<text>")],
    Discriminator(lambda value: "<text>" if isinstance(value, str) else "<number>"),
]
MAX_AUDIO_CHARS = 4 * 1024 * 1024
Base64 = Annotated[str, Field(max_length=MAX_AUDIO_CHARS)]


class AudioFormat(OpenBody):
    """16-bit PCM at 24 kHz, or G.711 at 8 kHz."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
    rate: int | None = None

    @model_validator(mode="after")
    def _at_its_rate(self) -> AudioFormat:
        rate_hz = 24_000 if self.type == "audio/pcm" else 8000
        if self.rate not in (None, rate_hz):
            raise ValueError(f"{self.type} of {rate_hz} Hz")
        return self


LEAST_LEVEL, MOST_LEVEL = 0.05, 0.95
"""Limits of the threshold: at 0 every frame would count as speech, at 1 none."""


def _level(probability: float) -> float:
    return min(max(probability, LEAST_LEVEL), MOST_LEVEL)


class Detection(OpenBody):
    """How turns are found. Fields that are null or missing have the service's own values, which
    `session.updated` tells."""

    create_response: bool = True
    interrupt_response: bool = True

    @model_validator(mode="before")
    @classmethod
    def _given(cls, said: Any) -> Any:
        if not isinstance(said, dict):
            return said
        return {name: value for name, value in said.items() if value is not None}


class ServerVad(Detection):
    """A turn ends after `silence_duration_ms` of silence."""

    type: Literal["server_vad"] = "server_vad"
    threshold: Annotated[float, Field(ge=0, le=1), AfterValidator(_level)] = LIKELY
    prefix_padding_ms: Annotated[int, Field(ge=0, le=2000)] = round(1000 * LEAD_S)
    silence_duration_ms: Annotated[int, Field(ge=100, le=10_000)] = round(1000 * END_S)
    idle_timeout_ms: Annotated[int, Field(ge=1000, le=600_000)] | None = None


class SemanticVad(Detection):
    """Words and melody decide how long a pause may be before the turn ends."""

    type: Literal["semantic_vad"] = "semantic_vad"
    eagerness: Literal["auto", "low", "medium", "high"] = "auto"


class Transcription(OpenBody):
    """Whether transcripts are sent; which recogniser makes them is up to the service."""

    model: str | None = None
    language: Language | None = None


AnyVad = Annotated[
    Annotated[ServerVad, Tag("<server_vad>")] | Annotated[SemanticVad, Tag("<semantic_vad>")],
    told_by("type"),
]


class AudioInput(OpenBody):
    format: AudioFormat | None = None
    turn_detection: Annotated[
        AnyVad | None, BeforeValidator(lambda value: None if value is False else value)
    ] = None
    transcription: Transcription | None = None


class ResponseOutput(OpenBody):
    format: AudioFormat | None = None
    voice: Voice | None = None


class AudioOutput(ResponseOutput):
    speed: Annotated[float, Field(gt=0, le=4)] | None = None


class SessionAudio(OpenBody):
    input: AudioInput | None = None
    output: AudioOutput | None = None


class AnswerFields(OpenBody):
    """How answers are to be, of a session or of one response."""

    instructions: Annotated[str, Field(max_length=512 * 1024)] | None = None
    output_modalities: Modalities | None = None
    max_output_tokens: MaxTokens | None = None
    tools: FlatTools | None = None
    tool_choice: AnyFlatChoice | None = None


class SessionFields(AnswerFields):
    type: Literal["realtime", "transcription"] | None = None
    model: str | None = None
    audio: SessionAudio | None = None


class InputAudio(OpenBody):
    """`audio`: base64 of sound in the session's format."""

    type: Literal["input_audio"]
    audio: Base64
    transcript: str | None = None


class OutputAudio(OpenBody):
    """Part of an earlier spoken answer, of which the words count."""

    type: Literal["output_audio", "audio"]
    transcript: str

    @property
    def text(self) -> str:
        return self.transcript


class MessageFields(OpenBody):
    id: ItemName | None = None
    type: Literal["message"]
    role: Literal["system", "user", "assistant"]
    content: Annotated[
        list[
            Annotated[
                Annotated[TextPart, Tag("<input_text>")]
                | Annotated[InputAudio, Tag("<input_audio>")]
                | Annotated[TextPart, Tag("<output_text>")]
                | Annotated[TextPart, Tag("<text>")]
                | Annotated[OutputAudio, Tag("<output_audio>")]
                | Annotated[OutputAudio, Tag("<audio>")],
                told_by("type"),
            ]
        ],
        Field(min_length=1, max_length=16),
    ]


NewItem = (
    Annotated[MessageFields, Tag("<message>")]
    | Annotated[CallItem, Tag("<function_call>")]
    | Annotated[OutputItem, Tag("<function_call_output>")]
)


class ItemReference(OpenBody):
    """An item of the conversation."""

    type: Literal["item_reference"]
    id: str


InputItem = Annotated[NewItem | Annotated[ItemReference, Tag("<item_reference>")], told_by("type")]


class ResponseAudio(OpenBody):
    output: ResponseOutput | None = None


Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


class ResponseFields(AnswerFields):
    """`input` is answered instead of the conversation, to which the answer is added unless
    `conversation` is none."""

    conversation: Literal["auto", "none"] | None = None
    input: Annotated[list[InputItem], Field(max_length=MAX_ITEMS)] | None = None
    audio: ResponseAudio | None = None
    metadata: Annotated[Metadata, Field(max_length=16)] | None = None


class Event(OpenBody):
    event_id: Annotated[str, Field(max_length=512)] | None = None


class SessionUpdate(Event):
    """`session` is read by `read_session`, field by field."""

    type: Literal["session.update"]
    session: dict[str, Any]


class BufferAppend(Event):
    type: Literal["input_audio_buffer.append"]
    audio: Base64


class BufferCommand(Event):
    """Clearing the output drops what was not played yet of an answer over WebRTC."""

    type: Literal[
        "input_audio_buffer.commit", "input_audio_buffer.clear", "output_audio_buffer.clear"
    ]


class ItemCreate(Event):
    type: Literal["conversation.item.create"]
    previous_item_id: str | None = None
    item: Annotated[NewItem, told_by("type")]


class ItemCommand(Event):
    type: Literal["conversation.item.delete", "conversation.item.retrieve"]
    item_id: str


class ItemTruncate(Event):
    type: Literal["conversation.item.truncate"]
    item_id: str
    content_index: Literal[0] = 0
    audio_end_ms: Annotated[int, Field(ge=0, le=3_600_000)]


class ResponseCreate(Event):
    """`response` is read by `read_response`."""

    type: Literal["response.create"]
    response: dict[str, Any] | None = None


class ResponseCancel(Event):
    type: Literal["response.cancel"]
    response_id: str | None = None


EVENTS = (
    SessionUpdate, BufferAppend, BufferCommand, ItemCreate, ItemCommand, ItemTruncate,
    ResponseCreate, ResponseCancel,
)  # fmt: skip
TAGGED = tuple(
    Annotated[kind, Tag(f"<{name}>")]
    for kind in EVENTS
    for name in get_args(kind.model_fields["type"].annotation)
)
CLIENT_EVENT: TypeAdapter[Any] = TypeAdapter(Annotated[Union[TAGGED], told_by("type")])  # noqa: UP007
MAX_REFUSED = 16
"""With more wrong fields than this, an update is refused as a whole."""


def read_event(said: str | bytes) -> Any:
    """An event of the client. Raises ApiError for one of too many values, ValidationError."""
    check_size(said)
    return CLIENT_EVENT.validate_json(said)


def read_session(said: dict[str, Any]) -> tuple[SessionFields, list[ApiError]]:
    """The session's valid fields, and what is wrong with the others, which are left out."""
    said, refused = dict(said), list[ApiError]()
    while True:
        try:
            return SessionFields.model_validate(said), refused
        except ValidationError as error:
            found = error.errors(include_url=False)
        if not refused:  # what is wrong after that misses what was taken out
            refused = [_of(of_detail(detail), "session") for detail in found]
        places = {_held(said, detail["loc"]) for detail in found}
        if len(refused) > MAX_REFUSED or () in places:
            raise refused[0]
        for place in sorted(places, reverse=True):  # so that those of a list stay what they are
            _drop(said, place)


def read_response(said: dict[str, Any]) -> ResponseFields:
    """Raises ApiError for fields that would ask for a different answer than is given."""
    try:
        return parse_value(said, ResponseFields)
    except ApiError as error:
        raise _of(error, "response") from None


def _of(error: ApiError, holder: str) -> ApiError:
    """The same error, about a field of the `holder`."""
    error.param, error.message = f"{holder}.{error.param}", f"{holder}.{error.message}"
    return error


def _held(said: Any, place: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The part of an error's location that exists in `said`: names of union members are skipped,
    and inside a list only the index is kept."""
    held: tuple[int | str, ...] = ()
    for step in place:
        if isinstance(said, list) and isinstance(step, int):
            return (*held, step)
        if isinstance(said, dict) and step in said:
            held, said = (*held, step), said[step]
        elif not (isinstance(step, str) and step.startswith("<")):
            break
    return held


def _drop(said: Any, place: tuple[int | str, ...]) -> None:
    for step in place[:-1]:
        said = said[step]
    del said[place[-1]]
