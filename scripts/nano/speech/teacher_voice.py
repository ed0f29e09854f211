"""The teacher: hibari-tts with word times, and the second voice made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.api.errors import MissingPackageError
from scripts.nano.speech.derived_voice import TRACT, convert, teacher_speed
from scripts.nano.speech.pronunciations import said_otherwise
from scripts.nano.speech.shards import SAMPLE_RATE_HZ
from scripts.nano.speech.voices import ADA, BEN
from scripts.nano.speech.word_times import (
    DURATION_UNIT_SAMPLES,
    code_labels,
    join_words,
    speech_bounds,
    spelled_a,
    word_starts_s,
)

DURATION_TENSOR = "/Clip_output_0"

MAX_PHONEMES = 400

CODE_SAMPLES = 960
"""A code, 40 ms: sentences joined to one utterance begin with a code."""

SPELLED_A = "ˈA"

ONSET_S = 0.05
"""A word is heard this much before its first phoneme's nominal start (median of 73 words after a
pause, at -40 dB)."""


class UnusablePromptError(Exception):
    """The teacher cannot say this prompt with known word times; the message is the reason that is
    counted."""


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


class Teacher:
    """hibari with word times; one onnxruntime thread."""

    def __init__(self) -> None:
        try:
            import onnxruntime
            from hibari.tts import Hibari  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingPackageError(
                "The teacher needs hibari-tts and onnxruntime: pip install hibari-tts==0.2.1"
            ) from error
        self._hibari = Hibari(voice="heart", threads=1)
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
        """Phonemes of the sentence piece by piece, each with whether it ends a written word.

        `forced` are phonemes of words by their place in the sentence, where the teacher's own would
        be another sense.
        """
        g2p = self._hibari.g2p
        tokens = g2p.tokenize(sentence.replace("’", "'"))
        for index in spelled_a([token.text for token in tokens]):
            tokens[index].phonemes, tokens[index].rating = SPELLED_A, 5
        word, begins = 0, True
        for token in tokens:
            said = forced.get(word) if begins else None
            said = said or (said_otherwise(token.text) if token.phonemes is None else None)
            if said is not None:
                token.phonemes, token.rating = said, 5
            begins = begins and said is None and not token.text[:1].isalnum()
            if token.whitespace:
                word, begins = word + 1, True
        tokens = g2p.phonemize_tokens(tokens)
        return [(token.phonemes or "", bool(token.whitespace)) for token in tokens]

    def say_sentence(
        self,
        sentence: str,
        voice: str,
        speed: float,
        rng: np.random.Generator,
        forced: dict[int, str],
    ) -> tuple[np.ndarray, list[float], np.ndarray]:
        """-> float32 [samples] without the silence around it, the start of each written word in it
        in seconds, and the phoneme of every code."""
        from hibari import dsp  # pyright: ignore[reportMissingImports]

        spoken = join_words(self.pieces(sentence, forced), self._known)
        if len(spoken.phonemes) > MAX_PHONEMES:
            raise UnusablePromptError("sentence too long")
        ids = np.asarray([self._hibari.ids(spoken.phonemes)], np.int64)
        asked = teacher_speed(speed) if voice == BEN else speed
        outputs: Any = self._session.run(
            None, {"ids": ids, "speed": np.asarray([asked], np.float32)}
        )
        *spectrum, durations = outputs
        wave = dsp.synth(*(part[0] for part in spectrum), rng)  # pyright: ignore[reportCallIssue]
        durations = durations.reshape(-1)
        assert len(durations) == ids.shape[1] and round(
            float(durations.sum())
        ) * DURATION_UNIT_SAMPLES == len(wave)
        if voice == BEN:
            wave, durations = convert(wave[None], spectrum[-1][0]).waves[0], durations / TRACT
        first, end = speech_bounds(wave)
        if end == 0:
            raise UnusablePromptError("silent")
        shift_s = ONSET_S + first / SAMPLE_RATE_HZ
        starts = [
            max(0.0, start_s - shift_s) for start_s in word_starts_s(durations, spoken.word_begins)
        ]
        return (
            wave[first:end],
            starts,
            code_labels(ids[0], spoken.phonemes, durations, shift_s, end - first),
        )

    def say(self, row: dict[str, Any], seed: int) -> tuple[np.ndarray, list[float], np.ndarray]:
        """A row of prompts -> int16 [samples], one start in seconds for each item of text.split(),
        phonemes of codes."""
        rng = np.random.default_rng(seed)
        forced = {int(place): said for place, said in row.get("forced", {}).items()}
        waves: list[np.ndarray] = []
        labels: list[np.ndarray] = []
        starts: list[float] = []
        begin = 0
        for sentence in self._hibari.split_sentences(row.get("voiced", row["spoken"])):
            here = {
                place - len(starts): said for place, said in forced.items() if place >= len(starts)
            }
            wave, sentence_starts, said = self.say_sentence(
                sentence, row.get("voice", ADA), row["speed"], rng, here
            )
            wave = wave[: len(wave) // CODE_SAMPLES * CODE_SAMPLES]
            starts += [begin / SAMPLE_RATE_HZ + start for start in sentence_starts]
            waves.append(wave)
            labels.append(said[: len(wave) // CODE_SAMPLES])
            begin += len(wave)
        if len(starts) != len(row["spoken"].split()):
            raise UnusablePromptError("word count differs")
        pcm = np.clip(np.concatenate(waves), -1.0, 1.0) * 32767.0
        return pcm.astype("<i2"), starts, np.concatenate(labels)
