"""What the browser asks, checked, as a request: the values of the page's controls."""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moss_engine.api import service
from moss_engine.api.controls import BY_NAME, CONTROLS, MAX_PAGE_SEED
from moss_engine.api.errors import (
    ForeignTextError,
    InputError,
    ParameterError,
    UnsupportedModeError,
)
from moss_engine.api.info import ServiceInfo
from moss_engine.api.modes import Mode
from moss_engine.api.request import ChannelSampling, Message, Request, Sampling, Speech, Text
from moss_engine.text.language import check_language

RUN = re.compile(r"[0-9a-f]{8}")


def defaults(facts: ServiceInfo) -> dict[str, Any]:
    """The values that the page opens with: the checkpoint's own where it has some."""
    own = {control.name: control.default for control in CONTROLS}
    sampled = {control.name: control.of(facts.sampling) for control in CONTROLS if control.path}
    chosen = {"mode": facts.default_mode.name, "voice": facts.voices[0], "seed": own["seed"]}
    return {**own, **sampled, **chosen}


KINDS: Mapping[str, type] = {"text": str, "choice": str, "number": float, "flag": bool}


def read(given: Any, facts: ServiceInfo) -> dict[str, Any]:
    """The values of all controls, of those that a browser or a program sends: the page's own for
    what is left out. Raises ParameterError for one of another kind."""
    if not isinstance(given, dict):
        raise ParameterError("values must be an object with a value for each control.")
    values = {**defaults(facts), **{name: given[name] for name in BY_NAME if name in given}}
    for name, value in values.items():
        kind = BY_NAME[name].kind
        is_number = value is None or type(value) in (int, float)
        if not (is_number if kind == "number" else isinstance(value, KINDS[kind])):
            raise ParameterError(f"{name} must be a {kind}, not {_short(value)}.")
    return values


def check(values: Mapping[str, Any], facts: ServiceInfo, own_voice: str = "") -> None:
    """Raise a MossError with one sentence where there are no such mode, voice and recording here,
    for a visitor who has that own voice. The rest is the service's to refuse."""
    modes = [mode.name for mode in facts.modes]
    if values["mode"] not in modes:
        raise UnsupportedModeError(
            f"There is no mode {_short(values['mode'])}; choose one of {', '.join(modes)}."
        )
    mode = facts.mode(values["mode"])
    if mode.input == "speech" and not values["utterance"]:
        raise InputError("Nothing was said yet; record a question or choose a file.")
    if values["voice"] not in facts.voices and (not own_voice or values["voice"] != own_voice):
        raise ParameterError(
            f"There is no voice {_short(values['voice'])}; choose one of {', '.join(facts.voices)}."
        )
    if values["system"].strip() and not mode.own_system:
        raise ParameterError(
            f"The mode {mode.name!r} has a fixed system turn; leave the system prompt empty."
        )


def run_name(run: Any) -> str:
    """What a reply is called: as its caller says, or drawn."""
    return run if isinstance(run, str) and RUN.fullmatch(run) else secrets.token_hex(4)


def draw_seed(values: Mapping[str, Any]) -> Any:
    """The seed to use: a new one, or the one given, which the service may refuse yet."""
    return secrets.randbelow(MAX_PAGE_SEED) if values["new_seed"] else _whole(values["seed"])


def sampling_of(values: Mapping[str, Any], facts: ServiceInfo, seed: Any) -> Sampling:
    fields: dict[str, Any] = {"min_rows": facts.sampling.min_rows}
    channels: dict[str, dict[str, Any]] = {"text": {}, "audio": {}}
    for control in CONTROLS:
        value = values[control.name]
        value = _whole(value) if control.integer else value
        if len(control.path) == 2:
            channels[control.path[0]][control.path[1]] = value
        elif control.path:
            fields[control.path[0]] = value
    text, audio = (ChannelSampling(**channels[name]) for name in ("text", "audio"))
    return Sampling(**{**fields, "seed": seed, "text": text, "audio": audio})


def request_of(
    values: Mapping[str, Any],
    facts: ServiceInfo,
    seed: int,
    history: Sequence[Message],
    said: Text | Speech,
    session_id: str,
) -> Request:
    """A request with a new secret id: `said` after `history`. `values` have passed `check`.

    Every mode begins with its own system turn, whatever the modes of the turns before were: it is
    what tells the network how to answer. So a change between spoken and written answers computes
    the conversation once more (without encoding anything again), and a change between typing and
    talking computes nothing again.
    """
    own = values["system"]
    asked = service.request_of(
        facts,
        (*history, Message("user", said)),
        session_id,
        mode=values["mode"],
        system=own if own.strip() else None,
        voice=values["voice"],
        speed=values["speed"],
    )
    return replace(asked, sampling=sampling_of(values, facts, seed), truncate_history=True)


def _whole(value: Any) -> Any:
    """3.0 -> 3: browsers do not tell the two apart. Anything else is left for the check."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _short(value: Any) -> str:
    return repr(str(value)[:40])


def key_of(text: str) -> int:
    """By which a text that was doubted is found again."""
    return hash(text.strip())


def doubt_once(doubted: deque[int], mode: Mode, text: str) -> None:
    """Raise ForeignTextError where `mode` reads English and `text` looks otherwise, unless its key
    is among those that were `doubted`, to which it is added."""
    key = key_of(text)
    if mode.input != "text" or key in doubted:
        return
    try:
        meant = "hear" if mode.split_sentences else "ask"
        check_language(mode, text, f"send it again to {meant} it anyway")
    except ForeignTextError:
        doubted.append(key)
        raise
