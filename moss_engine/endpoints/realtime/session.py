"""What holds for a whole realtime session, and what clients are told of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from moss_engine.audio.turn_taking import END_S, LEAD_S, LIKELY
from moss_engine.endpoints.realtime.fields import (
    AudioInput,
    AudioOutput,
    ResponseFields,
    SemanticVad,
    ServerVad,
    SessionFields,
)

PCM = {"type": "audio/pcm", "rate": 24_000}


@dataclass(frozen=True)
class Session:
    """`vad`: the service finds the ends of turns; otherwise the client commits them. `judges`: it
    decides on each of them, `eagerness` says how soon; otherwise `end_s` of silence end it.
    `max_rows`: None for the checkpoint's own; `voice`: None for the default; `metadata`
    of one response are sent back with it."""

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

    def updated(self, fields: SessionFields) -> Session:
        """With what a client set; fields that it left out stay as they are."""
        given = fields.model_fields_set
        session = self
        if fields.output_modalities is not None:
            session = replace(session, speaks=fields.output_modalities == ["audio"])
        if fields.instructions is not None:
            session = replace(session, instructions=fields.instructions)
        if "max_output_tokens" in given:
            session = replace(session, max_rows=rows_of(fields.max_output_tokens))
        if fields.audio is not None and fields.audio.input is not None:
            session = session._listening(fields.audio.input)
        if fields.audio is not None and fields.audio.output is not None:
            session = session._speaking(fields.audio.output)
        return session

    def answering(self, fields: ResponseFields) -> Session:
        """As one response is asked for; fields that were left out are as the session has them."""
        said, max_tokens = fields.output_modalities, fields.max_output_tokens
        output = fields.audio.output if fields.audio else None
        return replace(
            self,
            speaks=self.speaks if said is None else said == ["audio"],
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
                answers=vad is None or vad.create_response,
                interrupts=vad is None or vad.interrupt_response,
            )
            if isinstance(vad, SemanticVad):
                session = replace(session, eagerness=vad.eagerness)
            elif vad is not None:
                session = session._by_levels(vad)
        if "transcription" in said.model_fields_set:
            session = replace(session, transcribes=said.transcription is not None)
        return session

    @property
    def finding(self) -> tuple[bool, bool, str, float, float, float]:
        """How the ends of turns are found."""
        return self.vad, self.judges, self.eagerness, self.threshold, self.lead_s, self.end_s

    def _by_levels(self, vad: ServerVad) -> Session:
        lead_ms, end_ms = vad.prefix_padding_ms, vad.silence_duration_ms
        return replace(
            self,
            threshold=LIKELY if vad.threshold is None else vad.threshold,
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
            "idle_timeout_ms": None,
            **reacts,
        }

    def _speaking(self, said: AudioOutput) -> Session:
        return replace(
            self,
            voice=self.voice if said.voice is None else said.voice,
            speed=self.speed if said.speed is None else said.speed,
        )

    def value(self, voices: tuple[str, ...], recogniser: str | None) -> dict[str, Any]:
        """The session as `session.created` and `session.updated` tell it."""
        transcription = {"model": recogniser} if self.transcribes and recogniser else None
        voice = self.voice or (voices[0] if voices else None)
        return {
            "type": "realtime",
            "object": "realtime.session",
            "id": self.id,
            "model": self.model,
            "output_modalities": ["audio" if self.speaks else "text"],
            "instructions": self.instructions,
            "tools": [],
            "tool_choice": "none",
            "max_output_tokens": "inf" if self.max_rows is None else self.max_rows,
            "tracing": None,
            "truncation": "auto",
            "prompt": None,
            "include": None,
            "audio": {
                "input": {
                    "format": PCM,
                    "transcription": transcription,
                    "noise_reduction": None,
                    "turn_detection": self._detection(),
                },
                "output": {"format": PCM, "voice": voice, "speed": self.speed},
            },
        }


def rows_of(max_tokens: int | str | None) -> int | None:
    return max_tokens if isinstance(max_tokens, int) else None
