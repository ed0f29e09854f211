"""What a realtime client may send: OpenAI's events with the fields that are served."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter

from moss_engine.endpoints.bodies import Body, Rows, told_by

Modalities = Annotated[list[Literal["text", "audio"]], Field(min_length=1, max_length=1)]
MaxTokens = Annotated[
    Annotated[Rows, Tag("<number>")] | Annotated[Literal["inf"], Tag("<text>")],
    Discriminator(lambda value: "<text>" if isinstance(value, str) else "<number>"),
]
MAX_AUDIO_CHARS = 4 * 1024 * 1024
Base64 = Annotated[str, Field(max_length=MAX_AUDIO_CHARS)]


class PcmFormat(Body):
    type: Literal["audio/pcm"]
    rate: Literal[24000] = 24000


class ServerVad(Body):
    """What is left out is the service's own, which `session.updated` tells."""

    type: Literal["server_vad"]
    threshold: Annotated[float, Field(ge=0.05, le=0.95)] | None = None
    prefix_padding_ms: Annotated[int, Field(ge=0, le=2000)] | None = None
    silence_duration_ms: Annotated[int, Field(ge=100, le=10_000)] | None = None
    idle_timeout_ms: None = None
    create_response: bool = True
    interrupt_response: bool = True


class SemanticVad(Body):
    """Words and melody decide how long a pause may be."""

    type: Literal["semantic_vad"]
    eagerness: Literal["auto", "low", "medium", "high"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True


class Transcription(Body):
    """Whether to tell what was heard; who listens is the service's choice."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None


class AudioInput(Body):
    format: PcmFormat | None = None
    turn_detection: (
        Annotated[
            Annotated[ServerVad, Tag("<server_vad>")]
            | Annotated[SemanticVad, Tag("<semantic_vad>")],
            told_by("type"),
        ]
        | None
    ) = None
    transcription: Transcription | None = None
    noise_reduction: None = None


class AudioOutput(Body):
    format: PcmFormat | None = None
    voice: str | None = None
    speed: float | None = None


class SessionAudio(Body):
    input: AudioInput | None = None
    output: AudioOutput | None = None


class SessionFields(Body):
    type: Literal["realtime"] = "realtime"
    model: str | None = None
    instructions: str | None = None
    output_modalities: Modalities | None = None
    audio: SessionAudio | None = None
    max_output_tokens: MaxTokens | None = None
    tools: Annotated[list[None], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    tracing: None = None
    truncation: Literal["auto"] | None = None
    include: None = None
    prompt: None = None


class InputText(Body):
    type: Literal["input_text"]
    text: str


class InputAudio(Body):
    """`audio`: base64 of 16-bit PCM at 24 kHz."""

    type: Literal["input_audio"]
    audio: Base64
    transcript: str | None = None


class OutputText(Body):
    type: Literal["output_text"]
    text: str


class ItemFields(Body):
    id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    object: Literal["realtime.item"] | None = None
    type: Literal["message"]
    status: Literal["completed", "incomplete", "in_progress"] | None = None
    role: Literal["system", "user", "assistant"]
    content: Annotated[
        list[
            Annotated[
                Annotated[InputText, Tag("<input_text>")]
                | Annotated[InputAudio, Tag("<input_audio>")]
                | Annotated[OutputText, Tag("<output_text>")],
                told_by("type"),
            ]
        ],
        Field(min_length=1, max_length=16),
    ]


class ResponseOutput(Body):
    format: PcmFormat | None = None
    voice: str | None = None


class ResponseAudio(Body):
    output: ResponseOutput | None = None


class ResponseFields(Body):
    conversation: Literal["auto"] | None = None
    instructions: str | None = None
    output_modalities: Modalities | None = None
    audio: ResponseAudio | None = None
    max_output_tokens: MaxTokens | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    tools: Annotated[list[None], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None


class Event(Body):
    event_id: Annotated[str, Field(max_length=512)] | None = None


class SessionUpdate(Event):
    type: Literal["session.update"]
    session: SessionFields


class BufferAppend(Event):
    type: Literal["input_audio_buffer.append"]
    audio: Base64


class BufferCommit(Event):
    type: Literal["input_audio_buffer.commit"]


class BufferClear(Event):
    type: Literal["input_audio_buffer.clear"]


class ItemCreate(Event):
    type: Literal["conversation.item.create"]
    previous_item_id: str | None = None
    item: ItemFields


class ItemDelete(Event):
    type: Literal["conversation.item.delete"]
    item_id: str


class ItemRetrieve(Event):
    type: Literal["conversation.item.retrieve"]
    item_id: str


class ItemTruncate(Event):
    type: Literal["conversation.item.truncate"]
    item_id: str
    content_index: Literal[0] = 0
    audio_end_ms: Annotated[int, Field(ge=0, le=3_600_000)]


class ResponseCreate(Event):
    type: Literal["response.create"]
    response: ResponseFields | None = None


class ResponseCancel(Event):
    type: Literal["response.cancel"]
    response_id: str | None = None


ClientEvent = Annotated[
    Annotated[SessionUpdate, Tag("<session.update>")]
    | Annotated[BufferAppend, Tag("<input_audio_buffer.append>")]
    | Annotated[BufferCommit, Tag("<input_audio_buffer.commit>")]
    | Annotated[BufferClear, Tag("<input_audio_buffer.clear>")]
    | Annotated[ItemCreate, Tag("<conversation.item.create>")]
    | Annotated[ItemDelete, Tag("<conversation.item.delete>")]
    | Annotated[ItemRetrieve, Tag("<conversation.item.retrieve>")]
    | Annotated[ItemTruncate, Tag("<conversation.item.truncate>")]
    | Annotated[ResponseCreate, Tag("<response.create>")]
    | Annotated[ResponseCancel, Tag("<response.cancel>")],
    told_by("type"),
]
CLIENT_EVENT: TypeAdapter[Any] = TypeAdapter(ClientEvent)
