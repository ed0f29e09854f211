"""The teacher: hibari-tts with word times, its sound in parts, and the second voice made of it.

Inside hibari's network there is a duration for every phoneme, in units of 25 ms. A few bytes that
are appended to the ONNX file make that tensor an output, so that word starts are known without any
alignment. The network makes a voice of filtered pulses plus a rest, which are kept apart here, with
F0 and the phase of the pulses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moss_engine.api.errors import MissingPackageError
from scripts.nano.speech.second_voice import TRACT, convert, phase_of, teacher_speed
from scripts.nano.speech.shards import SAMPLE_RATE_HZ, SAMPLES_PER_CODE
from scripts.nano.speech.voices import ADA, BEN

DURATION_TENSOR = "/Clip_output_0"
MAX_PHONEMES = 400
SPELLED_A = "ˈA"
ONSET_S = 0.05
"""A word is heard this much before its first phoneme's nominal start (median of 73 words after a
pause, at -40 dB)."""
DURATION_UNIT_SAMPLES = 600
PUNCTUATION = frozenset(' ;:,.!?—…"()“”')
STRESS_MARKS = frozenset("ˈˌ")
SILENCE = 0
"""The label of a code without a phoneme."""
ENVELOPE_SAMPLES = 120
SILENCE_DB = -45.0
LEAD_S = 0.06
TAIL_S = 0.30
"""Silence kept at the end. Replies are read sentence by sentence, so this and LEAD_S make the pause
between two."""


class UnusablePromptError(Exception):
    """The teacher cannot say this prompt with known word times; prompts that are left out are
    counted by the message."""


def with_output(model: bytes, tensor: str) -> bytes:
    """An ONNX file with one more graph output of float32.

    Protobuf messages merge when their bytes are joined, so this appends
    ModelProto{graph{output{name, float}}}.
    """

    def field(number: int, payload: bytes) -> bytes:
        assert len(payload) < 128
        return bytes([number << 3 | 2, len(payload)]) + payload

    float32_type = field(2, field(1, b"\x08\x01"))
    return model + field(7, field(12, field(1, tensor.encode()) + float32_type))


def corrections() -> dict[str, str]:
    """Words that the teacher would say wrongly -> phonemes in its alphabet."""
    text = Path(__file__).with_name("pronunciations.txt").read_text(encoding="utf-8")
    entries = (entry.rpartition(" ") for line in text.splitlines() for entry in line.split("|"))
    return {word: phonemes for word, _, phonemes in entries}


@dataclass(frozen=True)
class Sound:
    """A sentence. `voiced` and `rest`, float32 [samples], add up to its wave; `f0_hz`, float32
    [frames], is 0 where unvoiced; `phase` [samples] counts periods; `durations` [1 + phonemes + 1]
    are in units of 25 ms, the first and the last one silence."""

    voiced: np.ndarray
    rest: np.ndarray
    f0_hz: np.ndarray
    phase: np.ndarray
    durations: np.ndarray


class Said(NamedTuple):
    """A prompt: `pcm`, int16 [samples], of its sentences without the silence around them, the start
    of each item of text.split(), the phoneme of each code, and the sentences one by one."""

    pcm: np.ndarray
    word_starts_s: tuple[float, ...]
    phonemes: np.ndarray
    sounds: list[Sound]


@cache
def teacher() -> Teacher:
    """The teacher of this process, made at the first call."""
    return Teacher()


class Teacher:
    """hibari, voice heart; one onnxruntime thread."""

    def __init__(self) -> None:
        try:
            import onnxruntime
            from hibari import dsp  # pyright: ignore[reportMissingImports]
            from hibari.tts import Hibari  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingPackageError(
                "The teacher needs hibari-tts and onnxruntime: pip install hibari-tts==0.2.1"
            ) from error
        self._dsp, self._hibari = dsp, Hibari(voice="heart", threads=1)
        self._corrections = corrections()
        self._known = frozenset(self._hibari.vocab)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            with_output(Path(self._hibari.model_path).read_bytes(), DURATION_TENSOR),
            options,
            providers=["CPUExecutionProvider"],
        )

    def pieces(self, sentence: str, forced: dict[int, str]) -> list[tuple[str, bool]]:
        """(phonemes, whether a written word ends there) for each piece of the sentence.

        `forced` are phonemes of words by their place in the sentence, for words that the teacher
        would read in another sense.
        """
        g2p = self._hibari.g2p
        tokens = g2p.tokenize(sentence.replace("’", "'"))
        for index in spelled_a([token.text for token in tokens]):
            tokens[index].phonemes, tokens[index].rating = SPELLED_A, 5
        word, begins = 0, True
        for token in tokens:
            said = forced.get(word) if begins else None
            said = said or (
                self._corrections.get(token.text.lower()) if token.phonemes is None else None
            )
            if said is not None:
                token.phonemes, token.rating = said, 5
            begins = begins and said is None and not token.text[:1].isalnum()
            if token.whitespace:
                word, begins = word + 1, True
        tokens = g2p.phonemize_tokens(tokens)
        return [(token.phonemes or "", bool(token.whitespace)) for token in tokens]

    def sentences(self, row: dict[str, Any]) -> Iterator[SpokenWords]:
        """The sentences of a row of prompts, not yet as sound. Raises UnusablePromptError."""
        forced, first = {int(place): said for place, said in row.get("forced", {}).items()}, 0
        for sentence in self._hibari.split_sentences(row.get("voiced", row["spoken"])):
            here = {place - first: said for place, said in forced.items() if place >= first}
            words = join_words(self.pieces(sentence, here), self._known)
            if len(words.phonemes) > MAX_PHONEMES:
                raise UnusablePromptError("sentence too long")
            yield words
            first += len(words.word_begins)

    def sound(self, phonemes: str, voice: str, speed: float, rng: np.random.Generator) -> Sound:
        """The phonemes of a sentence in one of the voices."""
        dsp, asked = self._dsp, teacher_speed(speed) if voice == BEN else speed
        ids = [self._hibari.ids(phonemes)]
        feed = {"ids": np.asarray(ids, np.int64), "speed": np.asarray([asked], np.float32)}
        outputs: Any = self._session.run(None, feed)
        *spectrum, f0, durations = outputs
        log_filter, turn, log_noise, log_free, angle = (part[0] for part in spectrum)
        f0, durations = f0.reshape(-1), durations.reshape(-1)
        pulses = dsp.stft(dsp.pulses(f0), len(f0))
        pulses = pulses * np.exp(1j * np.pi * np.tanh(turn)) * dsp.ex(log_filter)
        noise = rng.standard_normal((len(log_noise), 2 * len(f0)), dtype=np.float32)
        rest = noise.view(np.complex64) * dsp.ex(log_noise) + np.exp(1j * angle) * dsp.ex(log_free)
        waves = np.stack([dsp.ola(part.astype(np.complex64)) for part in (pulses, rest)])
        assert round(float(durations.sum())) * DURATION_UNIT_SAMPLES == waves.shape[1]
        phase = phase_of(f0)
        if voice == BEN:
            second, durations = convert(waves, f0), durations / TRACT
            waves, f0, phase = second.waves, second.f0_hz, second.phase
        return Sound(waves[0], waves[1], f0, phase, durations)

    def say(self, row: dict[str, Any], seed: int) -> Said:
        """Say a row of prompts. Raises UnusablePromptError."""
        rng = np.random.default_rng(seed)
        sounds: list[Sound] = []
        waves: list[np.ndarray] = []
        labels: list[np.ndarray] = []
        starts: list[float] = []
        for words in self.sentences(row):
            sound = self.sound(words.phonemes, row.get("voice", ADA), row["speed"], rng)
            wave = sound.voiced + sound.rest
            first, end = speech_bounds(wave)
            if end == 0:
                raise UnusablePromptError("silent")
            codes = (end - first) // SAMPLES_PER_CODE
            shift_s = ONSET_S + first / SAMPLE_RATE_HZ
            begin_s = sum(map(len, waves)) / SAMPLE_RATE_HZ
            for start_s in word_starts_s(sound.durations, words.word_begins):
                starts.append(begin_s + max(0.0, start_s - shift_s))
            sounds.append(sound)
            waves.append(wave[first:][: codes * SAMPLES_PER_CODE])
            ids = np.asarray(self._hibari.ids(words.phonemes))
            labels.append(code_labels(ids, words.phonemes, sound.durations, shift_s, codes))
        if len(starts) != len(row["spoken"].split()):
            raise UnusablePromptError("word count differs")
        pcm = np.clip(np.concatenate(waves), -1.0, 1.0) * 32767.0
        return Said(pcm.astype("<i2"), tuple(starts), np.concatenate(labels), sounds)


@dataclass(frozen=True)
class SpokenWords:
    """Phonemes of a sentence and, for each written word, the index of the phoneme where its sound
    begins."""

    phonemes: str
    word_begins: tuple[int, ...]


def join_words(pieces: list[tuple[str, bool]], known: frozenset[str]) -> SpokenWords:
    """Join pieces, (phonemes, whether a written word ends there), and find where each word begins
    in the joined string.

    Characters outside `known` are left out, as the teacher leaves them out. A word begins at its
    first phoneme that is no punctuation; one that has none begins where its punctuation does.
    """
    phonemes, begins = "", []
    start, begin = 0, None
    for index, (text, ends_word) in enumerate(pieces):
        for char in text:
            if char not in known:
                continue
            if begin is None and char not in PUNCTUATION:
                begin = len(phonemes)
            phonemes += char
        if ends_word or index == len(pieces) - 1:
            begins.append(start if begin is None else begin)
            if index < len(pieces) - 1:
                phonemes += " "
            start, begin = len(phonemes), None
    return SpokenWords(phonemes, tuple(begins))


def spelled_a(tokens: list[str]) -> list[int]:
    """Where "A" is the name of the letter, as in "ten A M", "plan A" and "A, B", not the article
    that hibari would read.

    Within a sentence an article is written small; at its start the letter is followed by a letter
    or a mark.
    """

    def is_letter(token: str) -> bool:
        return len(token) == 1 and "A" <= token <= "Z"

    def opens(token: str) -> bool:
        return not token[-1:].isalnum() and token not in (",", ";")

    around = ["", *tokens, "."]
    return [
        k - 1
        for k, token in enumerate(around)
        if token == "A"
        and (is_letter(around[k + 1]) or around[k + 1] in PUNCTUATION or not opens(around[k - 1]))
    ]


def word_starts_s(durations: np.ndarray, word_begins: tuple[int, ...]) -> list[float]:
    """Durations [1 + phonemes + 1] in units of 25 ms, the first and last being silence -> seconds,
    one per word."""
    assert len(durations) >= 2 + max(word_begins, default=0)
    ends = np.cumsum(durations)
    return [float(ends[begin]) * DURATION_UNIT_SAMPLES / SAMPLE_RATE_HZ for begin in word_begins]


def speech_bounds(wave: np.ndarray) -> tuple[int, int]:
    """[samples] -> first and end sample of the speech with a little silence around it; (0, 0) where
    all is silent."""
    frames = len(wave) // ENVELOPE_SAMPLES
    power = (
        wave[: frames * ENVELOPE_SAMPLES].astype(np.float64).reshape(frames, ENVELOPE_SAMPLES) ** 2
    ).mean(axis=1)
    if frames == 0 or power.max() < 1e-8:
        return 0, 0
    loud = np.flatnonzero(power > power.max() * 10 ** (SILENCE_DB / 10))
    first = int(loud[0]) * ENVELOPE_SAMPLES - round(LEAD_S * SAMPLE_RATE_HZ)
    end = int(loud[-1] + 1) * ENVELOPE_SAMPLES + round(TAIL_S * SAMPLE_RATE_HZ)
    return max(0, first), min(len(wave), end)


def code_labels(
    ids: np.ndarray, phonemes: str, durations: np.ndarray, shift_s: float, num_codes: int
) -> np.ndarray:
    """-> uint8 [codes]: the id of the phoneme in the middle of every code, SILENCE at spaces and
    marks.

    ids, durations: [1 + phonemes + 1]; `shift_s` is where the kept sound begins. A mark of stress
    counts to its vowel.
    """
    kinds = ids.astype(np.uint8)
    for place in range(len(phonemes) - 1, -1, -1):
        if phonemes[place] in STRESS_MARKS:
            kinds[place + 1] = kinds[place + 2]
        elif phonemes[place] in PUNCTUATION:
            kinds[place + 1] = SILENCE
    ends_s = np.cumsum(durations) * DURATION_UNIT_SAMPLES / SAMPLE_RATE_HZ - shift_s
    middles_s = (np.arange(num_codes) + 0.5) * SAMPLES_PER_CODE / SAMPLE_RATE_HZ
    return kinds[np.searchsorted(ends_s, middles_s).clip(0, len(kinds) - 1)]
