"""The rows of a training sequence: prompt, then chunks of words and their codes. Pure; numpy only.

A reply is: text rows of chunk 1, sosp, codes of chunk 1, eosp, text rows of chunk 2, ..., im_end. A
chunk is cut where its first word starts; all chunks together hold every code of the utterance once,
in order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moss_engine.api.tokens import SpecialIds

NANO_CONFIG: dict[str, object] = {
    "architectures": ["MossSpeechForCausalLM"],
    "model_type": "moss_speech",
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_shared_layers": 6,
    "num_modality_layers": 2,
    "num_hidden_layers": 8,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "vocab_size": 1024,
    "audio_vocab_size": 4112,
    "sosp_token_id": 3,
    "eosp_token_id": 4096,
    "modality_pad_token_id": 4,
    "audio_pad_token_id": 4097,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "hidden_act": "silu",
}
NO_TARGET, TEXT_TARGET, AUDIO_TARGET = 0, 1, 2
KEPT_CODES = 2
_CHUNK_WORDS = ((1, 2), (2, 3), (2, 5))
_MIN_FIRST_LETTERS = 4
_BREAK_MARKS = (".", ",", "?", "!", ";", ":")


@dataclass(frozen=True)
class Chunk:
    """Words [first_word, end_word) and codes [first_code, end_code) of one utterance."""

    first_word: int
    end_word: int
    first_code: int
    end_code: int


@dataclass(frozen=True)
class LaidOut:
    """rows: int16 [n, 2]; target: int8 [n], which head learns to predict row i + 1 from row i."""

    rows: np.ndarray
    target: np.ndarray


def cut_chunks(
    words: Sequence[str], word_starts: Sequence[int], num_codes: int, rng: random.Random
) -> list[Chunk]:
    """Random chunks: short ones first; ends at a mark where one is in reach; every chunk has at
    least one code.

    words: the utterance's words with their punctuation; word_starts: in codes, not falling, the
    first 0.
    """
    assert len(words) == len(word_starts) > 0 and num_codes > 0
    chunks: list[Chunk] = []
    first = 0
    while first < len(words):
        end = _chunk_end(words, first, len(chunks), rng)
        start_code = chunks[-1].end_code if chunks else 0
        while end < len(words) and not start_code < word_starts[end] < num_codes:
            end += 1
        chunks.append(
            Chunk(first, end, start_code, num_codes if end == len(words) else int(word_starts[end]))
        )
        first = end
    return chunks


def _chunk_end(words: Sequence[str], first: int, index: int, rng: random.Random) -> int:
    low, high = _CHUNK_WORDS[min(index, len(_CHUNK_WORDS) - 1)]
    if index == 0 and sum(map(str.isalpha, words[0])) < _MIN_FIRST_LETTERS:
        low = 2
    count = rng.randint(low, high)
    if index > 0:
        marked = [
            n
            for n in range(low - 1, high + 1)
            if n > 0 and words[min(first + n, len(words)) - 1].endswith(_BREAK_MARKS)
        ]
        if marked and rng.random() < 0.8:
            count = marked[0]
    end = min(first + count, len(words))
    return len(words) if len(words) - end == 1 and index > 0 and count < high else end


def lay_out(
    prompt_ids: Sequence[int],
    word_ids: Sequence[Sequence[int]],
    codes: np.ndarray,
    chunks: Sequence[Chunk],
    ids: SpecialIds,
    *,
    only_text: bool = False,
) -> LaidOut:
    """Prompt rows, then the reply. `word_ids[k]` are the text ids of word k with its leading space.

    With `only_text` the last chunk keeps just its first codes and none is to be predicted: a
    shorter sequence that teaches what to say, with the words of every chunk after sound as in a
    real reply.
    """
    text: list[np.ndarray] = [np.asarray(prompt_ids, np.int16)]
    audio: list[np.ndarray] = [np.full(len(prompt_ids), ids.audio_pad, np.int16)]
    is_audio: list[np.ndarray] = [np.zeros(len(prompt_ids), bool)]
    for chunk in chunks:
        said = [piece for word in word_ids[chunk.first_word : chunk.end_word] for piece in word]
        is_cut = only_text and chunk is chunks[-1]
        end_code = min(chunk.end_code, chunk.first_code + KEPT_CODES) if is_cut else chunk.end_code
        count = end_code - chunk.first_code
        text.append(np.asarray([*said, ids.sosp], np.int16))
        text.append(np.full(count + 1, ids.modality_pad, np.int16))
        audio.append(np.full(len(said) + 1, ids.audio_pad, np.int16))
        audio.append(np.append(codes[chunk.first_code : end_code], ids.eosp).astype(np.int16))
        is_audio.append(np.repeat([False, True], [len(said) + 1, count + 1]))
    text.append(np.asarray([ids.im_end], np.int16))
    audio.append(np.asarray([ids.audio_pad], np.int16))
    is_audio.append(np.zeros(1, bool))
    rows = np.stack([np.concatenate(text), np.concatenate(audio)], axis=1)
    target = np.full(len(rows), NO_TARGET, np.int8)
    spoken = NO_TARGET if only_text else AUDIO_TARGET
    target[len(prompt_ids) - 1 : -1] = np.where(np.concatenate(is_audio), spoken, TEXT_TARGET)[
        len(prompt_ids) :
    ]
    return LaidOut(rows, target)
