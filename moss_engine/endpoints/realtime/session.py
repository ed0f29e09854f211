"""What holds for a whole realtime session, and what clients are told of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from moss_engine.audio.turn_taking import END_S, LEAD_S, LIKELY
from moss_engine.endpoints.realtime.fields import (
    AudioInput,
    AudioOutput,
    ResponseFields,
    ServerVad,
    SessionFields,
)

PCM = {"type": "audio/pcm", "rate": 24_000}


@dataclass(frozen=True)
class Session:
    """`vad`: the service finds the ends of turns; otherwise the client commits them. `max_rows`:
    None for the checkpoint's own; `voice`: None for the default; `metadata`
    of one response are sent back with it."""

    id: str
    model: str
    speaks: bool = True
    instructions: str = ""
    voice: str | None = None
    speed: float = 1.0
    max_rows: int | None = None
    vad: bool = False
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
            vad = said.turn_detection or ServerVad(type="server_vad")
            session = replace(
                session,
                vad=said.turn_detection is not None,
                answers=vad.create_response,
                interrupts=vad.interrupt_response,
            )
        if "transcription" in said.model_fields_set:
            session = replace(session, transcribes=said.transcription is not None)
        return session

    def _speaking(self, said: AudioOutput) -> Session:
        return replace(
            self,
            voice=self.voice if said.voice is None else said.voice,
            speed=self.speed if said.speed is None else said.speed,
        )

    def value(self, voices: tuple[str, ...], recogniser: str | None) -> dict[str, Any]:
        """The session as `session.created` and `session.updated` tell it."""
        detection = {
            "type": "server_vad",
            "threshold": LIKELY,
            "prefix_padding_ms": round(1000 * LEAD_S),
            "silence_duration_ms": round(1000 * END_S),
            "idle_timeout_ms": None,
            "create_response": self.answers,
            "interrupt_response": self.interrupts,
        }
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
                    "turn_detection": detection if self.vad else None,
                },
                "output": {"format": PCM, "voice": voice, "speed": self.speed},
            },
        }


def rows_of(max_tokens: int | str | None) -> int | None:
    return max_tokens if isinstance(max_tokens, int) else None
