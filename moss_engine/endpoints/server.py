"""What all endpoints share: the service, who may call it, and how the fields of a program's call
become a request."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field

from moss_engine.api.controls import LOWEST_TEMPERATURE
from moss_engine.api.errors import MossError, UnsupportedModeError
from moss_engine.api.info import ServiceInfo
from moss_engine.api.modes import Medium, Mode
from moss_engine.api.request import Message, Request, Sampling, Text, Tools
from moss_engine.api.service import SpeechService, request_of
from moss_engine.audio.smart_turn import find_melody
from moss_engine.endpoints.access import Access, Caller
from moss_engine.endpoints.errors import ApiError
from moss_engine.endpoints.figures import Figures
from moss_engine.endpoints.names import Names

MAX_SEED = 2**31 - 1


@dataclass(frozen=True)
class Server:
    """`model` is the model's name for programs; `names` are others that programs have built in, for
    it or for a voice. OpenAI's own names work, too, unless `strict_names`."""

    service: SpeechService
    info: ServiceInfo
    model: str
    access: Access
    figures: Figures = field(default_factory=Figures)
    names: InitVar[Mapping[str, str] | None] = None
    strict_names: InitVar[bool] = False
    known: Names = field(init=False)
    calls: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # over WebRTC, while open

    def __post_init__(self, names: Mapping[str, str] | None, strict_names: bool) -> None:
        known = Names(self.model, self.info.voices, names or {}, strict_names)
        object.__setattr__(self, "known", known)

    def refused(self, error: ApiError | MossError) -> None:
        """Count what a program is told."""
        self.figures.refused(error.code)

    def check_model(self, model: str) -> None:
        """Raise ApiError for a name that does not stand for the model."""
        if not self.known.is_model(model):
            raise ApiError(
                404,
                f"There is no model {model[:60]!r} here; ask for {self.model!r}.",
                "model_not_found",
                param="model",
            )

    def check_voice(self, voice: str, param: str) -> None:
        """Raise ApiError for one that is not here, before anything is asked for."""
        if self.known.voice(voice) is None:
            raise ApiError(
                400,
                f"There is no voice {voice[:60]!r}; choose one of {', '.join(self.info.voices)}.",
                "unknown_voice",
                param=param,
            )

    def nearest_speed(self, speed: float) -> float:
        """The speaking rate nearest to one of OpenAI's that the voices have."""
        slowest, fastest = self.info.speeds or (1.0, 1.0)
        return min(max(speed, slowest), fastest)

    def mode(self, name: str, given: Medium, output: Medium | None) -> Mode:
        """The mode of that name; raises UnsupportedModeError unless it goes from `given` to
        `output` (None: anywhere)."""
        found = [mode for mode in self.info.modes if mode.name == name]
        if not found or found[0].input != given or output not in (None, found[0].output):
            fitting = [m.name for m in self.info.modes if m.goes(given, output)]
            raise UnsupportedModeError(
                f"There is no mode {name[:40]!r} from {given} to {output or 'any answer'} here; "
                + (f"choose one of {', '.join(fitting)}." if fitting else "leave it out.")
            )
        return found[0]

    def answering_mode(self, given: Medium, output: Medium) -> Mode:
        """The mode that answers; raises UnsupportedModeError if there is none."""
        fitting = [m for m in self.info.modes if m.goes(given, output) and not m.reads]
        if not fitting:
            raise UnsupportedModeError(
                f"The model {self.model!r} has no answer from {given} to {output}; its modes are "
                f"{', '.join(mode.name for mode in self.info.modes)}."
            )
        return next((mode for mode in fitting if mode.history), fitting[0])

    def mode_for(self, spoken: bool, *, speaks: bool) -> Mode:
        """The mode that answers speech or text, by sound if `speaks`. Where no mode answers in
        writing, a spoken one whose text comes first. Raises UnsupportedModeError."""
        given: Medium = "speech" if spoken else "text"
        try:
            return self.answering_mode(given, "speech" if speaks else "text")
        except UnsupportedModeError:
            spoken_mode = None if speaks else self.answering_mode(given, "speech")
            if spoken_mode is None or spoken_mode.opens_speech:
                raise
            return spoken_mode

    @property
    def own_system(self) -> bool:
        """Whether a conversation may bring a system turn."""
        return any(mode.own_system for mode in self.info.modes if not mode.reads)

    @property
    def judges(self) -> bool:
        """Whether words or melody can tell that a turn is over."""
        return self.info.recogniser is not None or find_melody() is not None

    def check_tools(self, mode: Mode, messages: tuple[Message, ...], tools: Tools | None) -> None:
        """Raise ApiError where functions are offered, or were called, without a chat server."""
        if mode.through_text and self.info.brain is not None:
            return
        called = any(message.calls or message.role == "tool" for message in messages)
        if tools is not None or called:
            raise ApiError(
                400,
                f"The model {self.model!r} calls no functions; leave them out, or let its operator "
                "start it with --brain, the address of a chat server that does.",
                "no_tools",
                param="messages" if tools is None else "tools",
            )

    def sampling(
        self,
        seed: int | None,
        temperature: float | None = None,
        top_p: float | None = None,
        max_rows: int | None = None,
    ) -> Sampling:
        """The checkpoint's own sampling with these values in both channels; without a seed, a
        random one. Tiny temperatures, which programs send where a server refuses 0, count as 0."""
        own = self.info.sampling
        if temperature is not None and 0 < temperature < LOWEST_TEMPERATURE:
            temperature = 0.0
        said = {"temperature": temperature, "top_p": top_p}
        said = {name: value for name, value in said.items() if value is not None}
        return dataclasses.replace(
            own,
            text=dataclasses.replace(own.text, **said),
            audio=dataclasses.replace(own.audio, **said),
            max_rows=own.max_rows if max_rows is None else max_rows,
            seed=secrets.randbelow(MAX_SEED) if seed is None else seed,
        )

    def request(
        self,
        caller: Caller,
        messages: tuple[Message, ...],
        mode: Mode,
        sampling: Sampling,
        *,
        voice: str | None = None,
        speed: float = 1.0,
        truncate_history: bool = False,
        tools: Tools | None = None,
    ) -> Request:
        """A request in a session of its own, as a session has one reply at a time; callers, not
        sessions, share places and queue. Raises ApiError for functions that nobody calls."""
        self.check_tools(mode, messages, tools)
        request = request_of(
            self.info, messages, f"api-{secrets.token_hex(8)}", mode=mode.name, speed=speed,
            voice=None if voice is None else self.known.voice(voice) or voice,
        )  # fmt: skip
        return dataclasses.replace(
            request, sampling=sampling, truncate_history=truncate_history,
            visitor=f"api-{caller.name}", tools=tools,
        )  # fmt: skip


def with_system(messages: list[Message], texts: list[str]) -> list[Message]:
    """The messages behind one system message that holds these texts."""
    return [*([Message("system", Text("\n\n".join(texts)))] if texts else ()), *messages]
