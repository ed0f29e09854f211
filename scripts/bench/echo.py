"""The page's own voice at its microphone, hands-free, in a room where nothing else cancels it.

The built-in voice speaks one answer after the other; each comes back at -6, -12 and -20 dB, 50 and
150 ms later, with a room's reverberation, into what the server hears a tab's microphone with. As on
the page, the voice falls silent while somebody is heard. The clock is the sound's own: it stands
still while the recogniser works.

    stopped      answers that their own echo interrupted
    questions    echoes that were taken for a question
    hesitations  moments in which an answer was silent because somebody might have begun to speak
    visitor      a question over an answer: whether the answer stops, and how long after the
                 question's first loud sample
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from moss_engine.audio.pcm import to_pcm16
from moss_engine.audio.rate import Downsampler
from moss_engine.audio.turn_taking import RATE_HZ
from moss_engine.build import build_service
from moss_engine.client import open_service
from moss_engine.config import EngineConfig, TalkConfig
from moss_engine.ui.audio_in.ingest import AudioIngest, open_ingest
from moss_engine.ui.audio_in.microphone import BlockResult, Microphone
from scripts.bench.common import Report, machine
from scripts.sentences import sentence

SETTINGS = tuple(itertools.product((-6, -12, -20), (50, 150)))  # dB, ms
BLOCK = 512
ROOM_S = 0.3  # in which the room's echo fades by 60 dB
NOISE_DB = -55.0
SAID_S, NEXT_S = 6.0, 1.0  # of an answer's words, around what is heard, that the page tells
PAUSE_S = 1.5
SOFTER_DB = -26.0
QUESTION = "What is the capital of France?"
ANSWERS = 60


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=30.0, help="in each setting (30)")


@dataclass
class Answer:
    """An answer's sound, float32 [n] at RATE_HZ, and its words, taken as evenly spread over it."""

    words: list[str]
    wave: np.ndarray

    def around(self, at_s: float) -> str:
        step_s = len(self.wave) / RATE_HZ / len(self.words)
        first, last = (max(0, round((at_s + by_s) / step_s)) for by_s in (-SAID_S, NEXT_S))
        return " ".join(self.words[first:last])


class Room:
    """A room with a loudspeaker and a microphone."""

    def __init__(self, db: float, delay_ms: float):
        self._rng = np.random.default_rng(0)
        size = round(ROOM_S * RATE_HZ)
        response = self._rng.normal(size=size) * 10 ** (-3 * np.arange(size) / size)
        response[0] = 3.0
        response *= 10 ** (db / 20) / np.sqrt(np.sum(response**2))
        self._response = np.concatenate([np.zeros(round(delay_ms / 1000 * RATE_HZ)), response])
        self._coming = np.zeros(len(self._response) + BLOCK)

    def hear(self, played: np.ndarray, said: np.ndarray | float = 0.0) -> np.ndarray:
        """A block of the answer and of the visitor -> what the microphone hears, int16 [BLOCK]."""
        size = len(self._coming)
        spectrum = np.fft.rfft(played, size) * np.fft.rfft(self._response, size)
        self._coming += np.fft.irfft(spectrum, size)
        heard, rest = self._coming[:BLOCK], self._coming[BLOCK:]
        self._coming = np.concatenate([rest, np.zeros(BLOCK)])
        noise = 10 ** (NOISE_DB / 20) * self._rng.normal(size=BLOCK)
        return to_pcm16(np.clip(heard + noise + said, -1, 1))


@dataclass
class Visit:
    """A visit to the page: a tab that plays answers and listens at the same time."""

    ingest: AudioIngest
    room: Room
    counts: dict[str, int] = field(
        default_factory=lambda: {"stopped": 0, "questions": 0, "hesitations": 0}
    )
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._microphone = Microphone(self.ingest)
        self._microphone.use(hands_free=True)

    async def tick(
        self, played: np.ndarray, said: np.ndarray | float = 0.0, *, answering: bool, saying: str
    ) -> BlockResult:
        heard = self.room.hear(played, said).tobytes()
        out = to_pcm16(np.clip(played, -1, 1)).tobytes()
        before = asyncio.all_tasks()
        self._microphone.page.answering, self._microphone.page.words = answering, saying
        found = await self._microphone.hear(heard, out)
        if looks := asyncio.all_tasks() - before:
            await asyncio.wait(looks)
        self.seconds += BLOCK / RATE_HZ
        self.counts["questions"] += bool(found.utterance)
        return found

    async def answer(self, answer: Answer, said: np.ndarray | None = None) -> float | None:
        """Play an answer; the seconds after which it was stopped, None if it came to its end."""
        silence, held, at, asked = np.zeros(BLOCK, np.float32), False, 0, 0
        begun_s = self.seconds
        while at < len(answer.wave):
            played = silence
            if not held:
                played = np.resize(answer.wave[at : at + BLOCK], BLOCK)
                at += BLOCK
            voice = said[asked : asked + BLOCK] if said is not None else silence
            asked += BLOCK
            found = await self.tick(
                played,
                voice if len(voice) == BLOCK else 0.0,
                answering=True,
                saying=answer.around(at / RATE_HZ) if held else "",
            )
            if (found.talking or found.begins) and not held:
                held = True
                self.counts["hesitations"] += 1
            if held and (found.utterance or (found.talking and found.sure)):
                return self.seconds - begun_s
            held = held and (found.talking or found.begins)
        return None

    async def pause(self) -> None:
        for _ in range(round(PAUSE_S * RATE_HZ / BLOCK)):
            await self.tick(np.zeros(BLOCK, np.float32), answering=False, saying="")


def spoken() -> Iterator[Answer]:
    """Answers of one to four sentences, and a question at the end."""
    rng = np.random.default_rng(3)
    texts = [
        " ".join(sentence(int(rng.integers(9000))) for _ in range(int(rng.integers(1, 5))))
        for _ in range(ANSWERS)
    ]
    with open_service() as client:
        for number, text in enumerate([*texts, QUESTION]):
            voices = client.info.voices
            speech = client.say(text, voice=voices[number % len(voices)], seed=number)
            pcm = Downsampler().push(to_pcm16(np.clip(speech.samples, -1, 1)))
            yield Answer(text.split(), pcm.astype(np.float32) / 32768)


async def measure(ingest: AudioIngest, answers: list[Answer], args: argparse.Namespace, **where):
    """What became of answers in a room, and of a visitor who asks over one."""
    *answers, question = answers
    visit = Visit(ingest, Room(**where))
    for answer in itertools.cycle(answers):
        visit.counts["stopped"] += await visit.answer(answer) is not None
        await visit.pause()
        if visit.seconds > 60 * args.minutes:
            break
    counts = dict(visit.counts)
    loud = question.wave / np.sqrt(np.mean(question.wave**2)) * 10 ** (SOFTER_DB / 20)
    onset_s = float(np.argmax(np.abs(loud) > 0.02)) / RATE_HZ
    longest = sorted(answers, key=lambda one: len(one.wave))[-10:]
    stops = []
    for answer in longest:
        stops.append(await visit.answer(answer, loud))
        await visit.pause()
    waits = [round(1000 * (stop - onset_s)) for stop in stops if stop is not None]
    return counts | {"visitor": {"asked": len(stops), "stopped": len(waits), "after_ms": waits}}


def run(args: argparse.Namespace, report: Report) -> None:
    report.add(machine=machine(), minutes=args.minutes)
    answers = list(spoken())
    service = build_service(EngineConfig(), TalkConfig())

    async def all_settings() -> None:
        ingest = open_ingest(service, await service.describe())
        if ingest.no_hands_free is not None:
            raise SystemExit(ingest.no_hands_free)
        for db, delay_ms in SETTINGS:
            found = await measure(ingest, answers, args, db=db, delay_ms=delay_ms)
            report.add(**{f"{db} dB, {delay_ms} ms": found})
            report.say(f"{db} dB, {delay_ms} ms: {found}")

    asyncio.run(all_settings())
    service.close()
