"""A tiny codec and vocoder with random weights, for tests: real in every part, but what it speaks is noise.

python -m scripts.make_tiny_codec FOLDER     writes FOLDER/codec and FOLDER/vocoder
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import nn

from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.bigvgan import build_generator
from moss_engine.codec.fsq import FsqConfig, NanoFsq
from moss_engine.codec.store import save_fsq, save_vocoder

TINY_LEVELS = (8, 8)
TINY_VOCODER: dict[str, Any] = {
    "resblock": "2", "upsample_rates": [10, 8, 6], "upsample_kernel_sizes": [20, 16, 12],
    "upsample_initial_channel": 16, "resblock_kernel_sizes": [3, 7], "resblock_dilation_sizes": [[1, 3], [1, 3]],
    "activation": "snakebeta", "snake_logscale": True, "use_tanh_at_final": False, "use_bias_at_final": False,
    "sampling_rate": 24_000, "n_fft": 1920, "win_size": 1920, "hop_size": 480, "num_mels": 80, "fmin": 0, "fmax": 8000,
}  # fmt: skip
GAINS = {"conv_pre.weight": 0.2, "conv_post.weight": 0.01}
"""Log-mels are far from zero and samples must stay within [-1, 1]."""


def tiny_fsq_config(levels: tuple[int, ...] = TINY_LEVELS) -> FsqConfig:
    return FsqConfig(
        mel=MOSS_MEL, frames_per_code=2, levels=levels, mel_mean=-5.0, mel_scale=2.0, kernel_size=7, mlp_ratio=2,
        encoder_dim=16, encoder_blocks=(1, 1), decoder_dim=16, decoder_blocks=(2, 2),
    )  # fmt: skip


def make_tiny_codec(folder: Path, seed: int = 0, levels: tuple[int, ...] = TINY_LEVELS, *, exact: bool = False) -> None:
    """Write folder/codec and folder/vocoder, about 40 kB together. The codec has prod(levels) codes.

    `exact` stores float32 instead of the shipped int8 and float16.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        fsq = NanoFsq(tiny_fsq_config(levels))
        generator = build_generator(TINY_VOCODER, weight_norm=False)
        _spread(fsq)
        _spread(generator)
    save_fsq(folder / "codec", fsq, int8=not exact)
    save_vocoder(folder / "vocoder", TINY_VOCODER, generator.state_dict(), half=not exact)


def _spread(network: nn.Module) -> None:
    """Weights that carry a signal through every layer; the usual initial ones would give near silence."""
    for name, parameter in network.named_parameters():
        if parameter.dim() > 1:
            fan_in = parameter.shape[0] if "ups." in name else parameter[0].numel()
            nn.init.normal_(parameter, std=GAINS.get(name, 1.0) * fan_in**-0.5)
        elif name.endswith(("alpha", "beta")):
            nn.init.normal_(parameter, std=0.3)
        elif name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    make_tiny_codec(args.folder, args.seed)
    print(f"{args.folder}: codec and vocoder with random weights")


if __name__ == "__main__":
    main()
