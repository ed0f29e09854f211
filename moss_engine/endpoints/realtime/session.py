"""What holds for a whole realtime session, and what clients are told of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from moss_engine.api.request import Tools
from moss_engine.audio.g711 import Law
from moss_engine.audio.turn_taking import END_S, LEAD_S, LIKELY
from moss_engine.endpoints.bodies import without_effect
from moss_engine.endpoints.errors import ApiError
from moss_engine.endpoints.functions import FlatChoice, FlatTool, offered
from moss_engine.endpoints.realtime.fields import (
    AudioInput,
    AudioOutput,
    ResponseFields,
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
LEAST_LEVEL, MOST_LEVEL = 0.05, 0.95
"""Of the probability from which on a frame counts as speech: at 0 or 1 all or nothing would."""
LAWS: dict[str, Law] = {"audio/pcmu": "mu", "audio/pcma": "a"}


@dataclass(frozen=True)
class Session:
    """`vad`: the service finds the ends of turns; otherwise the client commits them. `judges`: it
    decides on each of them, `eagerness` says how soon; otherwise `end_s` of silence end it.
    `max_rows`: None for the checkpoint's own; `voice`: None for the default; `metadata`
    of one response are sent back with it. It answers `instead` of what was said, or reads that
    out as it stands. `transcription`: it only writes down what is said. `idle_s`: silence behind
    an answer after which it asks, None for none."""

    id: str
    model: str
    speaks: bool = True
    instructions: str = ""
    voice: str | None = None
    speed: float = 1.0
    max_rows: int | None = None
    vad: bool = False
    judges: bool = False
    eagerness: str = "auto"
    threshold: float = LIKELY
    lead_s: float = LEAD_S
    end_s: float = END_S
    answers: bool = True
    interrupts: bool = True
    transcribes: bool = False
    metadata: dict[str, str] | None = None
    hears_as: str = "audio/pcm"
    sounds_as: str = "audio/pcm"
    tools: tuple[FlatTool, ...] = ()
    tool_choice: str | FlatChoice = "auto"
    transcription: bool = False
    idle_s: float | None = None
    instead: str = ""
    reads: bool = False

    def updated(self, fields: SessionFields) -> Session:
        """With what a client set; fields that it left out stay as they are."""
        given = fields.model_fields_set
        session = self
        if fields.type is not None:
            session = replace(session, transcription=fields.type == "transcription")
        if fields.output_modalities is not None:
            session = replace(session, speaks="audio" in fields.output_modalities)
        if fields.instructions is not None:
            session = replace(session, instructions=fields.instructions)
        if fields.tools is not None:
            session = replace(session, tools=tuple(fields.tools))
        if fields.tool_choice is not None:
            session = replace(session, tool_choice=fields.tool_choice)
        if "max_output_tokens" in given:
            session = replace(session, max_rows=rows_of(fields.max_output_tokens))
        if fields.audio is not None and fields.audio.input is not None:
            session = session._listening(fields.audio.input)
        if fields.audio is not None and fields.audio.output is not None:
            session = session._speaking(fields.audio.output)
        if session.transcription:
            session = replace(session, transcribes=True, answers=False)
        return session

    def answering(self, fields: ResponseFields) -> Session:
        """As one response is asked for; fields that were left out are as the session has them."""
        said, max_tokens = fields.output_modalities, fields.max_output_tokens
        output = fields.audio.output if fields.audio else None
        return replace(
            self,
            speaks=self.speaks if said is None else "audio" in said,
            sounds_as=output.format.type if output and output.format else self.sounds_as,
            tools=self.tools if fields.tools is None else tuple(fields.tools),
            tool_choice=fields.tool_choice or self.tool_choice,
            instructions=self.instructions if fields.instructions is None else fields.instructions,
            voice=(output.voice if output else None) or self.voice,
            max_rows=self.max_rows if max_tokens is None else rows_of(max_tokens),
            metadata=fields.metadata,
        )

    def _listening(self, said: AudioInput) -> Session:
        session = self
        if "turn_detection" in said.model_fields_set:
            vad = said.turn_detection
            session = replace(
                session,
                vad=vad is not None,
                judges=isinstance(vad, SemanticVad),
                answers=vad is None or vad.create_response is not False,
                interrupts=vad is None or vad.interrupt_response is not False,
                idle_s=None,
            )
            if isinstance(vad, SemanticVad):
                session = replace(session, eagerness=vad.eagerness or "auto")
            elif vad is not None:
                session = session._by_levels(vad)
        if said.format is not None:
            session = replace(session, hears_as=said.format.type)
        if "transcription" in said.model_fields_set:
            session = replace(session, transcribes=said.transcription is not None)
        return session

    @property
    def finding(self) -> tuple[bool, bool, str, float, float, float]:
        """How the ends of turns are found."""
        return self.vad, self.judges, self.eagerness, self.threshold, self.lead_s, self.end_s

    def _by_levels(self, vad: ServerVad) -> Session:
        lead_ms, end_ms = vad.prefix_padding_ms, vad.silence_duration_ms
        level, idle_ms = vad.threshold, vad.idle_timeout_ms
        return replace(
            self,
            idle_s=None if idle_ms is None else idle_ms / 1000,
            threshold=LIKELY if level is None else min(max(level, LEAST_LEVEL), MOST_LEVEL),
            lead_s=LEAD_S if lead_ms is None else lead_ms / 1000,
            end_s=END_S if end_ms is None else end_ms / 1000,
        )

    def _detection(self) -> dict[str, Any] | None:
        if not self.vad:
            return None
        reacts = {"create_response": self.answers, "interrupt_response": self.interrupts}
        if self.judges:
            return {"type": "semantic_vad", "eagerness": self.eagerness, **reacts}
        return {
            "type": "server_vad",
            "threshold": self.threshold,
            "prefix_padding_ms": round(1000 * self.lead_s),
            "silence_duration_ms": round(1000 * self.end_s),
            "idle_timeout_ms": None if self.idle_s is None else round(1000 * self.idle_s),
            **reacts,
        }

    def _speaking(self, said: AudioOutput) -> Session:
        return replace(
            self,
            sounds_as=said.format.type if said.format else self.sounds_as,
            voice=self.voice if said.voice is None else said.voice,
            speed=self.speed if said.speed is None else said.speed,
        )

    @property
    def offered(self) -> Tools | None:
        """The functions that may be called; raises ApiError."""
        return offered(self.tools, self.tool_choice)

    def value(self, voices: tuple[str, ...], recogniser: str | None) -> dict[str, Any]:
        """The session as `session.created` and `session.updated` tell it."""
        heard = {"model": recogniser, "language": "en"}
        listening = {
            "format": FORMATS[self.hears_as],
            "transcription": heard if self.transcribes and recogniser else None,
            "noise_reduction": None,
            "turn_detection": self._detection(),
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


def rows_of(max_tokens: int | str | None) -> int | None:
    return max_tokens if isinstance(max_tokens, int) else None


def settled(
    server: Server, before: Session, said: dict[str, Any]
) -> tuple[Session, list[str], list[ApiError]]:
    """A session with what a client says of it, as far as it can be had; the fields without effect,
    and what is wrong with the others."""
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
        fits(lambda: server.check_model(model), "model")
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
