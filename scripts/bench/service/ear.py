"""How well and how fast the recogniser hears: `python -m scripts.bench.service.ear`, JSON.

The built-in voice says everyday sentences; the recogniser that the page listens with hears them,
clean and in noise. Then the page's own turn taking listens, while an answer is playing, to ten
minutes of what must not interrupt it: noise, coughs, murmurs, and the answer's echo through a
simulated room.

    text_after_ms       from the end of a recording to its text (`--runs` questions)
    word_error_percent  over the sentences, over half of them at 15 dB, and over all of them with
                        two seconds of a quiet room behind each
    false_barge_ins     of ten minutes: answers that would have been stopped
    hesitations         of the same: how often an answer would have been silent for a moment, as
                        somebody might have begun to speak, and for how many seconds in all
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from moss_engine.api.errors import ConfigError, MossError
from moss_engine.api.request import Speech
from moss_engine.api.transcript import Transcript
from moss_engine.audio.turn_taking import INTERRUPT_S, RATE_HZ
from moss_engine.audio.voice_activity import Detector, load_detector, spoken_part
from moss_engine.client import Client, open_service
from moss_engine.recogniser.base import Recogniser
from moss_engine.recogniser.load import DEFAULT, load_recogniser
from moss_engine.ui.audio_in.ingest import AudioIngest
from scripts.judges.sentences import EVERYDAY
from scripts.judges.words import ErrorCount, count_errors, resample

NUM_SENTENCES, NUM_NOISY = 40, 20
NOISE_DB = 15.0
QUIET, QUIET_S = 0.0005, 2.0  # of a room behind a sentence
ECHO_DB = -20.0
ECHO_S = 0.25  # in which the room's echo fades by 60 dB
BLOCK_S = 0.1
MINUTES = {"noise": 3.0, "coughs": 2.0, "murmurs": 1.0, "echo": 4.0}
QUESTION = "What is the capital of France?"
QUESTIONS = 10


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.service.ear",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="questions (20)")
    parser.add_argument(
        "--parts",
        default="hearing,turns",
        metavar="NAMES",
        help="hearing: times and word error; turns: false barge-ins, 4 minutes (both)",
    )
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - {"hearing", "turns"}:
        raise ConfigError(f"--parts {unknown.pop()!r} is unknown; name hearing, turns or both.")
    recogniser, _ = load_recogniser(DEFAULT)
    assert recogniser is not None, "one that is asked for by name is there, or an error was raised"
    with open_service() as client:
        said = [spoken(client, text, seed) for seed, text in enumerate(EVERYDAY[:NUM_SENTENCES])]
        question = spoken(client, QUESTION, 0)
    report: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {os.getloadavg()[0]:.1f} busy",
        "recogniser": recogniser.name,
    }
    if "hearing" in parts:
        report |= hearing(recogniser, said, question, options.runs)
    if "turns" in parts:
        report |= turns(recogniser, said, question)
    print(json.dumps(report, indent=1))


def hearing(
    recogniser: Recogniser, said: list[np.ndarray], question: np.ndarray, runs: int
) -> dict[str, Any]:
    """How fast and how well it hears."""
    rng = np.random.default_rng(0)
    noisy = [in_noise(wave, rng) for wave in said[:NUM_NOISY]]
    room_noise = rng.normal(0.0, QUIET, round(QUIET_S * RATE_HZ)).astype(np.float32)
    longer = [np.concatenate([wave, room_noise]) for wave in said]
    took = [timed(recogniser, question) for _ in range(runs + 1)][1:]
    return {
        "question_s": round(len(question) / RATE_HZ, 2),
        "text_after_median_ms": round(statistics.median(took), 1),
        "text_after_worst_ms": round(max(took), 1),
        "word_error_percent": error_percent(recogniser, said),
        "word_error_in_noise_percent": error_percent(recogniser, noisy),
        "word_error_before_silence_percent": error_percent(recogniser, longer),
    }


def turns(recogniser: Recogniser, said: list[np.ndarray], question: np.ndarray) -> dict[str, Any]:
    """What stops an answer, of sounds that must not and of questions that must."""
    rng = np.random.default_rng(0)
    sounds = {
        "noise": noise(MINUTES["noise"], rng),
        "coughs": coughs(MINUTES["coughs"], rng),
        "murmurs": spread([murmur(110.0), murmur(190.0)], MINUTES["murmurs"]),
        "echo": room(spread(said, MINUTES["echo"], 0.3), rng),
    }
    asked = np.concatenate([question, np.zeros(3 * RATE_HZ, np.float32)] * QUESTIONS)
    found = {
        name: asyncio.run(barge_ins(recogniser, wave, question)) for name, wave in sounds.items()
    }
    true = asyncio.run(barge_ins(recogniser, asked, question))
    return {
        "speech_that_holds_ms": round(1000 * INTERRUPT_S),
        "false_barge_ins": {name: count for name, (count, _, _) in found.items()},
        "hesitations": {name: [count, held_s] for name, (_, count, held_s) in found.items()},
        "true_barge_ins": true[0],
        "of_questions": QUESTIONS,
    }


def spoken(client: Client, text: str, seed: int) -> np.ndarray:
    """float32 [n] at RATE_HZ."""
    voices = client.info.voices
    speech = client.say(text, voice=voices[seed % len(voices)], seed=seed)
    return resample(speech.samples, speech.sample_rate_hz, RATE_HZ)


def in_noise(wave: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    level = np.sqrt(np.mean(wave**2) / 10 ** (NOISE_DB / 10))
    return (wave + rng.normal(0.0, level, len(wave))).astype(np.float32)


def timed(recogniser: Recogniser, wave: np.ndarray) -> float:
    begun_s = time.perf_counter()
    understood(recogniser, wave)
    return 1000 * (time.perf_counter() - begun_s)


def understood(recogniser: Recogniser, wave: np.ndarray) -> str:
    """As a service hears a recording: without the silence around its words."""
    return recogniser.transcribe(spoken_part(detector(), wave)).text


@lru_cache(maxsize=1)
def detector() -> Detector:
    return load_detector()


def error_percent(recogniser: Recogniser, waves: list[np.ndarray]) -> float:
    total = ErrorCount()
    for wave, text in zip(waves, EVERYDAY, strict=False):
        total += count_errors(text, understood(recogniser, wave))
    return round(100 * total.word_error_rate, 2)


def noise(minutes: float, rng: np.random.Generator) -> np.ndarray:
    """A room: noise that swells and fades, at -40 dB on average."""
    time_s = np.arange(round(60 * minutes * RATE_HZ)) / RATE_HZ
    swell = 0.6 + 0.4 * np.sin(2 * np.pi * 0.3 * time_s)
    return (0.01 * swell * rng.normal(size=len(time_s))).astype(np.float32)


def coughs(minutes: float, rng: np.random.Generator) -> np.ndarray:
    """Two bursts of noise from the throat, every four seconds, as loud as a voice."""
    wave = np.zeros(round(60 * minutes * RATE_HZ), np.float32)
    for start in range(RATE_HZ, len(wave) - RATE_HZ, 4 * RATE_HZ):
        for begin, length_s in ((0.0, 0.22), (0.35, 0.16)):
            size, at = round(length_s * RATE_HZ), start + round(begin * RATE_HZ)
            burst = rng.normal(size=size) * np.exp(-np.arange(size) / (0.25 * size))
            wave[at : at + size] += 0.25 * np.convolve(burst, np.ones(8) / 8, "same")
    return wave


def murmur(pitch_hz: float) -> np.ndarray:
    """ "Mhm": two hums through the nose, the second one higher."""
    parts = []
    for length_s, factor in ((0.16, 1.0), (0.05, 0.0), (0.24, 1.2)):
        time_s = np.arange(round(length_s * RATE_HZ)) / RATE_HZ
        hum = sum(np.sin(2 * np.pi * pitch_hz * factor * k * time_s) / k**2 for k in range(1, 8))
        parts.append(0.15 * (factor > 0) * hum * np.sin(np.pi * time_s / length_s))
    return np.concatenate(parts).astype(np.float32)


def spread(waves: list[np.ndarray], minutes: float, pause_s: float = 2.5) -> np.ndarray:
    """Over and over, with a pause behind each."""
    parts: list[np.ndarray] = []
    while sum(map(len, parts)) < 60 * minutes * RATE_HZ:
        for wave in waves:
            parts += [wave, np.zeros(round(pause_s * RATE_HZ), np.float32)]
    return np.concatenate(parts)[: round(60 * minutes * RATE_HZ)]


def room(wave: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What the microphone hears of the loudspeaker: ECHO_DB softer, through a fading echo."""
    from scipy.signal import fftconvolve

    size = round(ECHO_S * RATE_HZ)
    answer = rng.normal(size=size) * 10 ** (-3 * np.arange(size) / size)
    answer[0] = 3.0
    answer /= np.sqrt(np.sum(answer**2))
    return (10 ** (ECHO_DB / 20) * fftconvolve(wave, answer)[: len(wave)]).astype(np.float32)


def blocks(wave: np.ndarray) -> Iterator[bytes]:
    size = round(BLOCK_S * RATE_HZ)
    for start in range(0, len(wave), size):
        yield (
            np.clip(np.round(wave[start : start + size] * 32767), -32768, 32767)
            .astype("<i2")
            .tobytes()
        )


async def barge_ins(
    recogniser: Recogniser, wave: np.ndarray, question: np.ndarray
) -> tuple[int, int, float]:
    """How often an answer would be stopped, after the visitor has asked one question; how often it
    would be held in between, and for how many seconds. Every block is waited for as if it came in
    real time, and so is what the recogniser finds in it."""
    looking: list[asyncio.Task[Transcript]] = []

    async def glimpse(part: np.ndarray, _rate_hz: int) -> Transcript:
        looking.append(asyncio.ensure_future(asyncio.to_thread(hear, part)))
        return await looking[-1]

    def hear(part: np.ndarray) -> Transcript:
        heard = recogniser.transcribe(part)
        return Transcript(heard.text, recogniser.name, len(part) / RATE_HZ, sure=heard.sure)

    async def whole(part: np.ndarray, _rate_hz: int) -> Speech:
        return Speech((), await asyncio.to_thread(hear, part))

    ingest = AudioIngest(whole, load_detector(), max_s=60.0, glimpse=glimpse, by_words=True)
    key, count, was_sure, seq = ingest.open(), 0, False, 0
    holds, held_blocks, was_held = 0, 0, False
    silence = np.zeros(2 * RATE_HZ, np.float32)
    for part, answering in ((np.concatenate([question, silence]), False), (wave, True)):
        for body in blocks(part):
            found = await ingest.hear(
                key, seq, body, hands_free=True, answering=answering, end=False
            )
            seq += 1
            for task in looking:
                await asyncio.wait({task})
            looking.clear()
            await asyncio.sleep(0)
            stops = bool(found.utterance) or (found.talking and found.sure)
            count += stops and answering and not was_sure
            was_sure = stops and found.talking
            held = answering and found.talking and not found.sure
            holds, held_blocks, was_held = holds + (held and not was_held), held_blocks + held, held
    return count, holds, round(held_blocks * BLOCK_S, 1)


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
