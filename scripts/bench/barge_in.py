"""What stops an answer in Chromium, hands-free, while the built-in voice recites sentences.

Chromium's fake microphone asks one question, then it plays, while the answer is heard, minutes of
what must not interrupt it, and behind them a question that must:

    noise     a room that swells and fades
    coughs    two bursts every four seconds, as loud as a voice
    murmurs   "mhm", low and high
    echo      other sentences of the same voice through a simulated room, 20 dB softer

For each: answers that were stopped (false_barge_ins, true_barge_ins), how often an answer was
silent for a moment because somebody might have begun to speak (hesitations), and how soon it fell
silent at the question. What --out holds of other sounds is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import numpy as np

from moss_engine.build import build_listening_service
from moss_engine.client import Client, open_service
from moss_engine.config import EngineConfig, TalkConfig
from moss_engine.talk.answer import Part, Question, Say
from moss_engine.talk.modes import talking_modes
from moss_engine.talk.service import TalkingService
from scripts.bench.browser import RATE_HZ, hearing, require_listening, served, talk_hands_free
from scripts.bench.common import Report, machine, names_of
from scripts.sentences import sentence

MINUTES = {"noise": 3.0, "coughs": 2.0, "murmurs": 1.0, "echo": 4.0}
QUESTION = "What is the capital of France?"
BEFORE_S, ANSWER_S = 4.0, 5.0  # of silence before the first question, and around the sound
LAST_S = 10.0  # in which the last question must have stopped the answer
RECITED = 100  # sentences: longer than any of the sounds
LOUD = 0.15
ECHO_DB, ECHO_S = -20.0, 0.25  # which fades by 60 dB in this time


def add_options(parser: argparse.ArgumentParser) -> None:
    known = tuple(MINUTES)
    parser.add_argument("--sounds", type=names_of(known), default=known, metavar="NAME,...",
                        help=f"some of {', '.join(known)} (all)")  # fmt: skip


def run(args: argparse.Namespace, report: Report) -> None:
    report.go_on()
    with open_service() as client:
        question = spoken(client, QUESTION, 0)
        said = [spoken(client, sentence(n), n) for n in range(30)] if "echo" in args.sounds else []
    below = build_listening_service(EngineConfig(), TalkConfig())
    info = asyncio.run(below.describe())
    service = TalkingService(below, replace(info, modes=talking_modes(info)), Recital())
    found = dict(report.values.get("sounds", {}))
    with served(service) as url:
        for name in args.sounds:
            wave = sound(name, said, np.random.default_rng(0))
            found[name] = heard(url, wave, question)
            report.say(f"{name}: {found[name]}")
            totals = {
                total: sum(one[total] for one in found.values())
                for total in ("seconds", "false_barge_ins", "true_barge_ins")
            }
            report.add(machine=machine(), sounds=found, **totals)


def spoken(client: Client, text: str, seed: int) -> np.ndarray:
    """float32 [n] at RATE_HZ."""
    voices = client.info.voices
    speech = client.say(text, voice=voices[seed % len(voices)], seed=seed)
    assert speech.sample_rate_hz == RATE_HZ
    return speech.samples


class Recital:
    """Answers every question with the same sentences."""

    async def answer(self, question: Question) -> AsyncGenerator[Part, None]:
        for number in range(RECITED):
            yield Say(sentence(5000 + number))


def heard(url: str, wave: np.ndarray, question: np.ndarray) -> dict[str, Any]:
    """What a sound does to the answer that is heard meanwhile, and a question behind it."""
    pauses = [silence(seconds) for seconds in (BEFORE_S, ANSWER_S, 99.0)]
    parts = [pauses[0], question, pauses[1], wave, pauses[1], question, pauses[2]]
    with hearing(np.concatenate(parts), again=False) as browser:
        tab = talk_hands_free(browser, url, LOUD)
        tab.wait("speaking")
        tab.page.evaluate(
            "Object.assign(seen, { stops: 0, holds: 0, silences: [], silent_ms: 0, peak: 0 })"
        )
        end_s = time.monotonic() + ANSWER_S - 1.0 + len(wave) / RATE_HZ
        while time.monotonic() < end_s:
            tab.page.wait_for_timeout(500)
            require_listening(tab)
        before = tab.page.evaluate("structuredClone(seen)")
        tab.page.wait_for_timeout(1000 * LAST_S)
        after = tab.page.evaluate("structuredClone(seen)")
    return {
        "seconds": round(len(wave) / RATE_HZ),
        "peak_db": round(20 * math.log10(max(before["peak"], 1e-5)), 1),
        "false_barge_ins": before["stops"],
        "hesitations": before["holds"],
        "hesitations_s": round(before["silent_ms"] / 1000, 1),
        "true_barge_ins": after["stops"] - before["stops"],
        "silence_ms": [round(ms) for ms in after["silences"][before["holds"] :][:1]],
    }


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE_HZ), np.float32)


def sound(name: str, said: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """float32 [n] at RATE_HZ."""
    minutes = MINUTES[name]
    if name == "noise":
        return noise(minutes, rng)
    if name == "coughs":
        return coughs(minutes, rng)
    if name == "murmurs":
        return spread_out([murmur(110.0), murmur(190.0)], minutes, 2.5)
    return room(spread_out(said, minutes, 0.3), rng)


def noise(minutes: float, rng: np.random.Generator) -> np.ndarray:
    """At -40 dB on average."""
    time_s = np.arange(round(60 * minutes * RATE_HZ)) / RATE_HZ
    swell = 0.6 + 0.4 * np.sin(2 * np.pi * 0.3 * time_s)
    return (0.01 * swell * rng.normal(size=len(time_s))).astype(np.float32)


def coughs(minutes: float, rng: np.random.Generator) -> np.ndarray:
    """Bursts of noise from the throat."""
    wave = silence(60 * minutes)
    for start in range(RATE_HZ, len(wave) - RATE_HZ, 4 * RATE_HZ):
        for begin, length_s in ((0.0, 0.22), (0.35, 0.16)):
            size, at = round(length_s * RATE_HZ), start + round(begin * RATE_HZ)
            burst = rng.normal(size=size) * np.exp(-np.arange(size) / (0.25 * size))
            wave[at : at + size] += 0.25 * np.convolve(burst, np.ones(12) / 12, "same")
    return wave


def murmur(pitch_hz: float) -> np.ndarray:
    """Two hums through the nose, the second one higher."""
    parts = []
    for length_s, factor in ((0.16, 1.0), (0.05, 0.0), (0.24, 1.2)):
        time_s = np.arange(round(length_s * RATE_HZ)) / RATE_HZ
        hum = sum(np.sin(2 * np.pi * pitch_hz * factor * k * time_s) / k**2 for k in range(1, 8))
        parts.append(0.15 * (factor > 0) * hum * np.sin(np.pi * time_s / length_s))
    return np.concatenate(parts).astype(np.float32)


def spread_out(waves: list[np.ndarray], minutes: float, pause_s: float) -> np.ndarray:
    """Over and over, with a pause behind each."""
    parts: list[np.ndarray] = []
    while sum(map(len, parts)) < 60 * minutes * RATE_HZ:
        for wave in waves:
            parts += [wave, silence(pause_s)]
    return np.concatenate(parts)[: round(60 * minutes * RATE_HZ)]


def room(wave: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What the microphone hears of the loudspeaker: ECHO_DB softer, through a fading echo."""
    size = round(ECHO_S * RATE_HZ)
    answer = rng.normal(size=size) * 10 ** (-3 * np.arange(size) / size)
    answer[0] = 3.0
    answer *= 10 ** (ECHO_DB / 20) / np.sqrt(np.sum(answer**2))
    length = len(wave) + size
    echo = np.fft.irfft(np.fft.rfft(wave, length) * np.fft.rfft(answer, length), length)
    return echo[: len(wave)].astype(np.float32)
