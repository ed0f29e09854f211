"""Write the golden logits of the tiny random network: `python -m tests.golden.make`.

They come from the plain numpy network of `tests/reference_network.py`, in float64, and are stored as float32.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from scripts.make_tiny_checkpoint import make_config, make_tensors, make_tokenizer
from tests.reference_network import reference_logits

PATH = Path(__file__).with_name("tiny_logits.npz")
NUM_ROWS = 24


def golden_rows() -> list[tuple[int, int]]:
    """Text rows, a span of codes, and text again."""
    config = make_config(make_tokenizer().get_vocab_size())
    random = np.random.RandomState(1)
    text, audio = random.randint(7, config.vocab_size, NUM_ROWS), random.randint(0, config.eosp_token_id, NUM_ROWS)
    text[9], text[10:18] = config.sosp_token_id, config.modality_pad_token_id
    audio[:10], audio[17], audio[18:] = config.audio_pad_token_id, config.eosp_token_id, config.audio_pad_token_id
    return [(int(t), int(a)) for t, a in zip(text, audio, strict=True)]


def make() -> dict[str, np.ndarray]:
    config = make_config(make_tokenizer().get_vocab_size())
    tensors = {name: tensor.numpy() for name, tensor in make_tensors(config).items()}
    rows = golden_rows()
    text, audio = reference_logits(tensors, dataclasses.asdict(config), rows)
    return {"rows": np.array(rows), "text": text.astype(np.float32), "audio": audio.astype(np.float32)}


if __name__ == "__main__":
    np.savez_compressed(PATH, **make())
    print(f"{PATH}: {PATH.stat().st_size / 1000:.0f} kB")
