"""The values of the page's controls, checked, as a request."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from moss_engine.errors import InputError, ParameterError, UnsupportedModeError
from moss_engine.request import ChannelSampling, Message, Request, Sampling, Speech, Text
from moss_engine.ui.facts import Facts
from moss_engine.validation import check_sampling, check_text

CONTROLS = (
    "text", "mode", "voice", "text_temperature", "text_top_k", "text_top_p", "text_repetition_penalty",
    "speech_temperature", "speech_top_k", "speech_top_p", "speech_repetition_penalty", "seed", "new_seed", "max_rows",
    "system", "utterance", "heard", "run",
)
"""The inputs of a reply, in order; these are also the argument names of the `/reply` endpoint. `utterance` names what
was said, in a mode that takes speech; `heard` how much of the reply before reached the ear, if not all of it did, which
ends that reply; `run` is what the caller will call this one, so that it can be stopped before it has begun."""

RUN = re.compile(r"[0-9a-f]{8}")
MAX_SEED = 2**31 - 1


def defaults(facts: Facts) -> dict[str, Any]:
    """The values that the page opens with."""
    values = {"text": "", "mode": facts.default_mode.name, "voice": facts.voices[0], "seed": 0, "new_seed": True,
              "max_rows": facts.sampling.max_rows, "system": "", "utterance": "", "heard": "", "run": ""}
    for name, channel in (("text", facts.sampling.text), ("speech", facts.sampling.audio)):
        values |= {f"{name}_{field}": value for field, value in asdict(channel).items()}
    return {name: values[name] for name in CONTROLS}


def check(values: Mapping[str, Any], facts: Facts, own_voice: str = "") -> None:
    """Raise a MossError with one sentence unless these values can be asked for by a visitor who has that own voice."""
    modes = [mode.name for mode in facts.modes]
    if values["mode"] not in modes:
        raise UnsupportedModeError(f"There is no mode {_short(values['mode'])}; choose one of {', '.join(modes)}.")
    mode = facts.mode(values["mode"])
    if mode.input == "text":
        check_text(values["text"], facts.max_text_chars)
    elif not isinstance(values["utterance"], str) or not values["utterance"]:
        raise InputError("Nothing was said yet; record a question or choose a file.")
    if values["voice"] not in facts.voices and (not own_voice or values["voice"] != own_voice):
        raise ParameterError(f"There is no voice {_short(values['voice'])}; choose one of {', '.join(facts.voices)}.")
    if not isinstance(values["heard"], str):
        raise ParameterError("heard must be a text; leave it empty.")
    if not isinstance(values["run"], str) or (values["run"] and not RUN.fullmatch(values["run"])):
        raise ParameterError("run must be eight digits from 0 to f, or empty.")
    if not isinstance(values["system"], str) or (values["system"].strip() and not mode.own_system):
        raise ParameterError(f"The mode {mode.name!r} has a fixed system turn; leave the system prompt empty.")
    if values["system"].strip():
        check_text(values["system"], facts.max_text_chars)
    check_sampling(sampling_of(values, facts, seed=0 if values["new_seed"] else _whole(values["seed"])))


def draw_seed(values: Mapping[str, Any]) -> int:
    """The seed to use: a new one, or the one given."""
    return secrets.randbelow(MAX_SEED) if values["new_seed"] else int(values["seed"])


def sampling_of(values: Mapping[str, Any], facts: Facts, seed: Any) -> Sampling:
    return Sampling(text=_channel(values, "text"), audio=_channel(values, "speech"),
                    max_rows=_whole(values["max_rows"]), min_rows=facts.sampling.min_rows, seed=seed)


def request_of(values: Mapping[str, Any], facts: Facts, seed: int, history: Sequence[Message], said: Text | Speech,
               session_id: str) -> Request:
    """A request with a new secret id: `said` after `history`. `values` have passed `check`.

    Every mode begins with its own system turn, whatever the modes of the turns before were: it is what tells the
    network how to answer. So a change between spoken and written answers computes the conversation once more (without
    encoding anything again), and a change between typing and talking computes nothing again.
    """
    own = values["system"].strip()
    system = (Message("system", Text(own)),) if own else ()
    messages = (*system, *history, Message("user", said))
    return Request(secrets.token_urlsafe(16), session_id, messages, values["mode"], sampling_of(values, facts, seed),
                   values["voice"])


def _channel(values: Mapping[str, Any], name: str) -> ChannelSampling:
    return ChannelSampling(values[f"{name}_temperature"], _whole(values[f"{name}_top_k"]), values[f"{name}_top_p"],
                           values[f"{name}_repetition_penalty"])


def _whole(value: Any) -> Any:
    """3.0 -> 3: browsers do not tell the two apart. Anything else is left for the check."""
    return int(value) if isinstance(value, float) and math.isfinite(value) and value.is_integer() else value


def _short(value: Any) -> str:
    return repr(str(value)[:40])
