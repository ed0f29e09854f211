"""Moonshine tiny-en: the weights in the wheel of moonshine-voice 0.0.65, run by ONNX Runtime.

The library's own runner keeps every core busy for a third of the speed, and does not say how sure
it is.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moss_engine.api.errors import MissingPackageError
from moss_engine.api.telemetry import switch_off_telemetry
from moss_engine.api.transcript import Word
from moss_engine.recogniser.base import RATE_HZ, Heard

INSTALL = "pip install moonshine-voice==0.0.65 onnxruntime silero-vad"
WEIGHTS = Path("assets") / "tiny-en"
SILENCE_PEAK = 1e-3
NOTHING = ("", "you", "thankyouforwatching")
"""What it writes, letters alone, where there are no words: nothing for music, "You" for noise."""
BEGIN, END = 1, 2
TOKENS_PER_S, LEAST_TOKENS = 6.5, 4
MADE_UP, PAUSE_S = " Thank you.", 2.0
"""What it may put behind the last word of a recording, and silence that is no such end."""
MOST_S = 14.0
"""A longer recording is transcribed in parts, cut where it is quietest."""
CUT_FROM_S, SOFT_S = 8.0, 0.1
LEAST_S = 0.5  # the network takes no shorter ones
UNSURE = -0.9
"""Mean log-probability of tokens below which the speech was not English, or unintelligible."""
FEW_TOKENS = 3  # that say too little about it
FRAME = 384
"""Samples of one step of the encoder."""
STEP, TRIED, SEARCHED = 2, 16, 120
"""To find where a word ends: frames between two tries, tries at a time, and frames searched."""
HEARD_BEFORE = 60  # frames that are heard with them
QUIET = 0.03  # of the loudest frame


class Moonshine:
    """`encoder` and `decoder` are sessions of ONNX Runtime, `pieces[i]` is token i in UTF-8."""

    name = "Moonshine tiny"
    language = "English"

    def __init__(self, encoder: Any, decoder: Any, pieces: list[bytes]):
        self._encoder: Any = encoder
        self._decoder: Any = decoder
        self._pieces = pieces
        self._outputs = [output.name for output in decoder.get_outputs()]
        self._empty = {
            given.name: np.zeros([1, given.shape[1], 0, given.shape[3]], np.float32)
            for given in decoder.get_inputs()
            if given.name.startswith("past")
        }

    def transcribe(self, wave: np.ndarray, between: Callable[[], None] | None = None) -> Heard:
        """As `Recogniser.transcribe`."""
        texts, scores, words = [], [], list[Word]()
        for begin, part in _parts(wave):
            found = self._decode(part)
            text = self._text(found.tokens).strip()
            if text.endswith(MADE_UP):
                part = np.pad(part, (0, round(PAUSE_S * RATE_HZ)))
                found = self._decode(part)
                text = self._text(found.tokens).strip()
            if _letters(text) in NOTHING:
                continue
            texts.append(text)
            scores += found.scores
            if between is not None:
                words += self._words(found, part, begin, between)
        unsure = len(scores) > FEW_TOKENS and float(np.mean(scores)) < UNSURE
        return Heard(" ".join(texts), not unsure, tuple(words))

    def close(self) -> None:
        self._encoder = self._decoder = None

    def _text(self, tokens: list[int]) -> str:
        text = b"".join(self._pieces[token] for token in tokens).decode("utf-8", "ignore")
        return text.replace("▁", " ")

    def _decode(self, wave: np.ndarray) -> _Decoded:
        """float32 [samples] -> the likeliest tokens one by one."""
        seen = np.ones((1, len(wave)), np.int64)  # of samples, for both
        (states,) = self._encoder.run(None, {"input_values": wave[None], "attention_mask": seen})
        past, tokens, scores = dict(self._empty), [BEGIN], []
        for _ in range(LEAST_TOKENS + int(TOKENS_PER_S * len(wave) / RATE_HZ)):
            given = {
                "input_ids": np.array([tokens[-1:]], np.int64),
                "encoder_hidden_states": states,
                "encoder_attention_mask": seen,
                "use_cache_branch": np.array([len(tokens) > 1]),
            }
            found = dict(zip(self._outputs, self._decoder.run(None, given | past), strict=True))
            logits = found.pop("logits")[0, -1]
            for name, value in found.items():
                if len(tokens) == 1 or ".decoder." in name:  # what was encoded stays as it is
                    past[name.replace("present", "past_key_values")] = value
            tokens.append(int(logits.argmax()))
            scores.append(-float(np.log(np.exp(logits - logits.max()).sum())))
            if tokens[-1] == END:
                break
        said = tokens[1:-1] if tokens[-1] == END else tokens[1:]
        return _Decoded(said, scores, states, past)

    def _words(
        self, found: _Decoded, wave: np.ndarray, begin: int, between: Callable[[], None]
    ) -> list[Word]:
        """The words of a part that begins at sample `begin`, each from where the decoder recognises
        it without having heard more."""
        texts, firsts = list[str](), list[int]()
        for place in range(len(found.tokens)):
            texts = self._text(found.tokens[: place + 1]).split()
            if len(texts) > len(firsts):
                firsts.append(place)
        starts, last = list[int | None](), 0
        for first in firsts:
            between()
            starts.append(self._recognised(found, first, last))
            last = starts[-1] or last
        num_frames = found.states.shape[1]
        frames = _spread(starts, [len(text) for text in texts], num_frames)
        quiet = _quiet(wave, num_frames)
        words = []
        for text, start, end in zip(texts, frames, [*frames[1:], num_frames], strict=True):
            while start < end - 1 and quiet[start]:
                start += 1
            while end - 1 > start and quiet[end - 1]:
                end -= 1
            first_s, last_s = ((begin + at * FRAME) / RATE_HZ for at in (start, max(end, start)))
            words.append(Word(text, first_s, last_s))
        return words

    def _recognised(self, found: _Decoded, place: int, after: int) -> int | None:
        """The first frame behind `after` up to which a token can be recognised; None where it is
        guessed from the words before it, or nowhere."""
        num_frames = found.states.shape[1]
        for begin in range(after, min(num_frames, after + SEARCHED), STEP * TRIED):
            ends = np.arange(begin + STEP, min(begin + STEP * TRIED, num_frames) + 1, STEP)
            if not len(ends):
                return None
            likely = np.flatnonzero(self._probability(found, place, ends) > 0.5)
            if len(likely):
                guessed = likely[0] == 0 and begin == after
                return None if guessed else int(ends[likely[0]])
        return None

    def _probability(self, found: _Decoded, place: int, ends: np.ndarray) -> np.ndarray:
        """Of a token, where only the frames before each of `ends` were heard."""
        first, last, count = max(0, int(ends[0]) - HEARD_BEFORE), int(ends[-1]), len(ends)
        heard = np.arange(first, last)[None] < ends[:, None]

        def of_all(value: np.ndarray) -> np.ndarray:
            return np.repeat(value, count, axis=0)

        past = {
            name: of_all(value[:, :, first:last] if ".encoder." in name else value[:, :, :place])
            for name, value in (found.past if place else self._empty).items()
        }
        given = {
            "input_ids": np.full((count, 1), ([BEGIN, *found.tokens])[place], np.int64),
            "encoder_hidden_states": of_all(found.states[:, first:last]),
            "encoder_attention_mask": np.repeat(heard, FRAME, axis=1).astype(np.int64),
            "use_cache_branch": np.array([place > 0]),
        }
        logits = self._decoder.run(["logits"], given | past)[0][:, -1]
        likely = np.exp(logits - logits.max(axis=1, keepdims=True))
        return likely[:, found.tokens[place]] / likely.sum(axis=1)


class _Decoded(NamedTuple):
    """Tokens without the marks of begin and end; the log-probabilities of all, that of the end
    among them; what the encoder made of the sound, float32 [1, frames, width]; and what the decoder
    remembers of both."""

    tokens: list[int]
    scores: list[float]
    states: np.ndarray
    past: dict[str, np.ndarray]


def _spread(starts: list[int | None], sizes: list[int], end: int) -> list[int]:
    """Starts with those between that are not known, by the length of the words."""
    known = {at: start for at, start in enumerate(starts) if start is not None}
    known |= {0: 0, len(starts): end}
    places, before = sorted(known), np.cumsum([0, *sizes])  # letters before each word
    frames = np.interp(before[:-1], before[places], [known[at] for at in places])
    return np.rint(frames).astype(int).tolist()


def _quiet(wave: np.ndarray, num_frames: int) -> np.ndarray:
    """bool [num_frames]: where a part is far below its loudest."""
    whole = np.resize(np.pad(wave, (0, FRAME)), num_frames * FRAME).reshape(num_frames, FRAME)
    level = np.sqrt((whole**2).mean(axis=1))
    return level < QUIET * level.max()


def _parts(wave: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """What is not silent of a recording, in parts of at most MOST_S, each with the number of its
    first sample."""
    wave, begin = np.ascontiguousarray(wave, np.float32), 0
    while len(wave):
        end, size = len(wave), round(SOFT_S * RATE_HZ)
        if end > MOST_S * RATE_HZ:
            first, last = round(CUT_FROM_S * RATE_HZ), round(MOST_S * RATE_HZ)
            frames = wave[first : last - (last - first) % size].reshape(-1, size)
            end = first + size * int((frames**2).mean(axis=1).argmin()) + size // 2
        if max(wave[:end].max(), -wave[:end].min()) >= SILENCE_PEAK:
            yield begin, np.pad(wave[:end], (0, max(0, round(LEAST_S * RATE_HZ) - end)))
        wave, begin = wave[end:], begin + end


def _letters(text: str) -> str:
    return "".join(char for char in text.lower() if char.isalnum())


def load() -> Moonshine:
    """Raises MissingPackageError with the command that installs it."""
    found = importlib.util.find_spec("moonshine_voice")  # not imported: its files are all we need
    folder = Path(found.origin).parent / WEIGHTS if found and found.origin else None
    if folder is None or importlib.util.find_spec("onnxruntime") is None:
        raise MissingPackageError(f"Talking to it needs a recogniser; run: {INSTALL}")
    if not folder.is_dir():
        raise MissingPackageError(
            f"The installed moonshine-voice has no weights in {WEIGHTS}; run: {INSTALL}"
        )
    switch_off_telemetry()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    encoder, decoder = (
        onnxruntime.InferenceSession(
            str(folder / f"{name}.ort"), options, providers=["CPUExecutionProvider"]
        )
        for name in ("encoder_model", "decoder_model_merged")
    )
    return Moonshine(encoder, decoder, _pieces((folder / "tokenizer.bin").read_bytes()))


def _pieces(data: bytes) -> list[bytes]:
    """Tokens, each behind its length: one byte, or two from 128 on."""
    pieces, at = [], 0
    while at < len(data):
        size, at = data[at], at + 1
        if size >= 128:
            size, at = data[at] * 128 + size - 128, at + 1
        pieces.append(data[at : at + size])
        at += size
    return pieces
