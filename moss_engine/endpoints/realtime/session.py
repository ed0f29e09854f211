"""What holds for a whole realtime session, and what clients are told of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from moss_engine.api.request import Tools
from moss_engine.audio.g711 import Law
from moss_engine.endpoints.bodies import without_effect
from moss_engine.endpoints.errors import ApiError
from moss_engine.endpoints.functions import FlatChoice, FlatTool, offered
from moss_engine.endpoints.realtime.fields import (
    AnswerFields,
    AudioOutput,
    Detection,
    ResponseFields,
    ResponseOutput,
    SemanticVad,
    ServerVad,
    SessionFields,
    read_session,
)
from moss_engine.endpoints.server import Server

FORMATS: dict[str, dict[str, Any]] = {
    "audio/pcm": {"type": "audio/pcm", "rate": 24_000},
    "audio/pcmu": {"type": "audio/pcmu"},
    "audio/pcma": {"type": "audio/pcma"},
}
LAWS: dict[str, Law] = {"audio/pcmu": "ULAW", "audio/pcma": "ALAW"}


@dataclass(frozen=True)
class Session:
    """Settings of a session, or of one response. `detection`: how the service finds the ends of
    turns; None: the client commits them. `max_rows` and `voice`: None for the default. `metadata`
    of a response are sent back with it; one that is `apart` is not added to the conversation.
    `instead`: answer this text, not what was said; with `reads` it is read out. `transcription`:
    only transcripts are sent."""

    id: str
    model: str
    speaks: bool = True
    instructions: str = ""
    voice: str | None = None
    speed: float = 1.0
    max_rows: int | None = None
    detection: ServerVad | SemanticVad | None = None
    transcribes: bool = False
    metadata: dict[str, str] | None = None
    apart: bool = False
    hears_as: str = "audio/pcm"
    sounds_as: str = "audio/pcm"
    tools: tuple[FlatTool, ...] = ()
    tool_choice: str | FlatChoice = "auto"
    transcription: bool = False
    instead: str = ""
    reads: bool = False

    def updated(self, fields: SessionFields) -> Session:
        """With what a client sets; fields that it leaves out stay."""
        heard = fields.audio and fields.audio.input
        session = self._answering(fields, fields.audio and fields.audio.output)
        session = session._with(transcription=fields.type and fields.type == "transcription")
        if heard is not None:
            session = session._with(hears_as=heard.format and heard.format.type)
            if "transcription" in heard.model_fields_set:
                session = replace(session, transcribes=heard.transcription is not None)
            if "turn_detection" in heard.model_fields_set:
                session = replace(session, detection=heard.turn_detection)
        if session.transcription:
            answers_none = {"create_response": False}
            found = session.detection and session.detection.model_copy(update=answers_none)
            session = replace(session, transcribes=True, detection=found)
        return session

    def answering(self, fields: ResponseFields) -> Session:
        """For one response; fields that it leaves out are those of the session."""
        session = self._answering(fields, fields.audio and fields.audio.output)
        return replace(session, metadata=fields.metadata, apart=fields.conversation == "none")

    def _answering(self, fields: AnswerFields, sound: ResponseOutput | None) -> Session:
        said = fields.output_modalities
        session = self._with(
            speaks=said and "audio" in said,
            instructions=fields.instructions,
            tools=None if fields.tools is None else tuple(fields.tools),
            tool_choice=fields.tool_choice,
            voice=sound and sound.voice,
            sounds_as=sound and sound.format and sound.format.type,
            speed=sound.speed if isinstance(sound, AudioOutput) else None,
        )
        if (rows := fields.max_output_tokens) is not None:
            session = replace(session, max_rows=rows if isinstance(rows, int) else None)
        return session

    def _with(self, **changes: Any) -> Session:
        """With these changes; None changes nothing."""
        return replace(self, **{name: new for name, new in changes.items() if new is not None})

    @property
    def finding(self) -> dict[str, Any] | None:
        """The settings by which ends of turns are found, without those of what follows."""
        follows = {*Detection.model_fields, "idle_timeout_ms"}
        return self.detection and self.detection.model_dump(exclude=follows)

    @property
    def answers(self) -> bool:
        """Whether turns that the service finds are answered."""
        return self.detection is not None and self.detection.create_response

    @property
    def interrupts(self) -> bool:
        """Whether somebody who talks stops an answer."""
        return self.detection is None or self.detection.interrupt_response

    @property
    def idle_s(self) -> float | None:
        """Silence after an answer before somebody is asked whether they are there; None: never."""
        idle_ms = self.detection.idle_timeout_ms if isinstance(self.detection, ServerVad) else None
        return None if idle_ms is None else idle_ms / 1000

    @property
    def offered(self) -> Tools | None:
        """The functions that may be called; raises ApiError."""
        return offered(self.tools, self.tool_choice)

    def value(self, voices: tuple[str, ...], recogniser: str | None) -> dict[str, Any]:
        """The session as `session.created` and `session.updated` tell it."""
        heard, found = {"model": recogniser, "language": "en"}, self.detection
        listening = {
            "format": FORMATS[self.hears_as],
            "transcription": heard if self.transcribes and recogniser else None,
            "noise_reduction": None,
            "turn_detection": found and found.model_dump(include=set(type(found).model_fields)),
        }
        if self.transcription:
            return {
                "type": "transcription",
                "object": "realtime.transcription_session",
                "id": self.id,
                "include": None,
                "audio": {"input": listening},
            }
        choice, voice = self.tool_choice, self.voice or (voices[0] if voices else None)
        speaking = {"format": FORMATS[self.sounds_as], "voice": voice, "speed": self.speed}
        return {
            "type": "realtime",
            "object": "realtime.session",
            "id": self.id,
            "model": self.model,
            "output_modalities": ["audio" if self.speaks else "text"],
            "instructions": self.instructions,
            "tools": [tool.model_dump(exclude_none=True) for tool in self.tools],
            "tool_choice": choice.model_dump() if isinstance(choice, FlatChoice) else choice,
            "max_output_tokens": "inf" if self.max_rows is None else self.max_rows,
            "tracing": None,
            "truncation": "auto",
            "prompt": None,
            "include": None,
            "audio": {"input": listening, "output": speaking},
        }


def first_session(server: Server, session_id: str) -> Session:
    """The settings of a new session."""
    detection = SemanticVad() if server.judges else ServerVad()
    return Session(session_id, server.model, detection=detection if server.info.hears else None)


def warning(ignored: list[str] | None) -> dict[str, list[str]]:
    """The field of an event that names fields without effect."""
    return {"warnings": ignored} if ignored else {}


def settled(
    server: Server, before: Session, said: dict[str, Any]
) -> tuple[Session, list[str], list[ApiError]]:
    """A session with what a client sets, as far as possible; the fields without effect, and what is
    wrong with others."""
    fields, refused = read_session(said)
    session, ignored = before.updated(fields), without_effect(fields)

    def fits(check: Callable[[], object], param: str) -> bool:
        try:
            check()
        except ApiError as error:
            error.param = param
            refused.append(error)
            return False
        return True

    if fields.model is not None:
        model = fields.model
        fits(lambda: server.check_model(model), "session.model")
    if (voice := session.voice) is not None and not fits(
        lambda: server.check_voice(voice, ""), "session.audio.output.voice"
    ):
        session = replace(session, voice=before.voice)
    if session.tools and not fits(lambda: _check_tools(server, session), "session.tools"):
        session = replace(session, tools=before.tools)
    if session.transcription and not fits(lambda: _check_ears(server), "session.type"):
        session = replace(session, transcription=False)
    if (speed := server.nearest_speed(session.speed)) != session.speed:
        ignored.append(f"audio.output.speed;used={speed:g}")
        session = replace(session, speed=speed)
    if session.instructions and not server.own_system:
        ignored.append("instructions")
        session = replace(session, instructions="")
    return session, ignored, refused


def _check_tools(server: Server, session: Session) -> None:
    if (tools := session.offered) is not None:
        server.check_tools(server.mode_for(False, speaks=session.speaks), (), tools)


def _check_ears(server: Server) -> None:
    if server.info.recogniser is None:
        raise ApiError(
            400,
            f"No recogniser listens to what is said to {server.model!r}; its operator installs one "
            "with run.sh.",
            "no_recogniser",
        )
