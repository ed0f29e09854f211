"""Write a tiny checkpoint with random weights, for tests: `python -m scripts.make_tiny_checkpoint OUT`.

It has every file of a real one and the shape of a real reply (text, sosp, codes, eosp, ..., im_end), but what it says
is noise. The network's numbers come from a fixed seed through numpy's frozen generator: they are the same everywhere.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from moss_engine.models.checkpoint import FILE_NAME, expected_tensors, save_tensors
from moss_engine.models.config import MODEL_TYPE, ModelConfig
from moss_engine.models.manifest import write_manifest
from scripts.make_tiny_codec import TINY_LEVELS, make_tiny_codec

NAME = "tiny-random"
NUM_CODES = math.prod(TINY_LEVELS)
SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|sosp|>", "<|audio|>", "<read>", "<chat>")
IM_START, IM_END, TEXT_PAD, SOSP, MODALITY_PAD, READ, CHAT = range(len(SPECIALS))
WORDS = ("system", "user", "assistant", " the", " and", " hello", " world", " a", " I", " you")
CARD = f"""# {NAME}

A MOSS-Speech checkpoint of random weights for tests. What it says is noise: it cannot read, answer or speak.
Made by `python -m scripts.make_tiny_checkpoint`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    out = parser.parse_args().out
    write_checkpoint(out)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: {NAME}, {size / 1000:.0f} kB")


def write_checkpoint(out: Path) -> None:
    """Write the whole folder; existing files of the same names are replaced."""
    write_language_model(out)
    make_tiny_codec(out)
    write_manifest(out, {"name": NAME, "command": "python -m scripts.make_tiny_checkpoint"})


def write_language_model(out: Path) -> ModelConfig:
    """Network, tokenizer, sampling defaults, modes and card, without codec, vocoder and manifest."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    config = make_config(tokenizer.get_vocab_size())
    hidden_layers = config.num_shared_layers + config.num_modality_layers
    _write_json(out / "config.json",
                {**dataclasses.asdict(config), "model_type": MODEL_TYPE, "num_hidden_layers": hidden_layers})
    tensors = make_tensors(config)
    save_tensors(out / FILE_NAME, tensors, [name for name, tensor in tensors.items() if tensor.dim() == 2])
    channel = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
    _write_json(out / "generation_config.json", {"text": channel, "audio": channel, "max_rows": 256, "min_rows": 0})
    mode = {"input": "text", "output": "speech", "note": "random weights: noise"}
    read = {**mode, "name": "read", "label": "Read aloud", "system": "<read>", "split_sentences": True, "default": True}
    chat = {**mode, "name": "chat", "label": "Small talk", "system": "<chat>", "split_sentences": False,
            "default": False}
    _write_json(out / "processor_config.json",
                {"modes": [read, chat], "segment_chars": 120, "max_rows_per_char": 8.0, "min_cap_rows": 64})
    (out / "README.md").write_text(CARD, encoding="utf-8")
    return config


def make_tokenizer() -> Tokenizer:
    """Byte-level BPE: the specials, all bytes, and merges that spell a few words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate([*SPECIALS, *alphabet])}
    merges = []
    for word in WORDS:
        stem, *rest = word.replace(" ", "Ġ")
        for letter in rest:
            if stem + letter not in vocab:
                merges.append((stem, letter))
                vocab[stem + letter] = len(vocab)
            stem += letter
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    return tokenizer


def make_config(vocab_size: int) -> ModelConfig:
    return ModelConfig(
        hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_shared_layers=2, num_modality_layers=1, rope_theta=1_000_000.0, rms_norm_eps=1e-6,
        max_position_embeddings=4096, vocab_size=vocab_size, audio_vocab_size=NUM_CODES + 16, sosp_token_id=SOSP,
        eosp_token_id=NUM_CODES, modality_pad_token_id=MODALITY_PAD, audio_pad_token_id=NUM_CODES + 1,
        eos_token_id=IM_END, pad_token_id=TEXT_PAD,
    )


def make_tensors(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """Random float32 tensors by the checkpoint's names.

    The first hidden value of every embedding is large and the same, so that the first column of a head acts as a bias:
    it gives sosp, eosp and im_end the probabilities of a reply of a few short spans, and the other specials none.
    """
    random = np.random.RandomState(seed)  # the legacy generator's numbers never change
    tensors = {}
    for name, shape in expected_tensors(config).items():
        values = random.standard_normal(shape)
        values = 1 + 0.1 * values if len(shape) == 1 else values / shape[1] ** 0.5
        tensors[name] = torch.from_numpy(values.astype(np.float32))
    for table in ("model.embed_tokens.weight", "model.audio_embed.weight"):
        tensors[table][:, 0] = 8.0
    text_bias, audio_bias = tensors["text_lm_head.weight"][:, 0], tensors["audio_lm_head.weight"][:, 0]
    text_bias[:], audio_bias[:] = 0.0, 0.0
    text_bias[: len(SPECIALS)] = -4.0
    text_bias[SOSP], text_bias[IM_END], audio_bias[config.eosp_token_id] = 1.8, 1.5, 1.0
    return tensors


def _write_json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
