"""Example sound files of a checkpoint and their log-mel picture: python -m scripts.nano.samples
[--out assets/samples]

Speaks two sentences through the real service, with default settings and a fixed seed. Needs
matplotlib for the picture.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import numpy as np
import soundfile
import torch

from moss_engine.build import build_service
from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.mel import log_mel
from moss_engine.config import REPO_ROOT, EngineConfig
from moss_engine.options import add_options, from_args
from scripts.nano.judges.replies import Spoken, speak_all

SENTENCES = {
    "good_morning": "Good morning! It is 9:20, and the sun is finally out.",
    "letter": "Dr. Smith paid $25 for two old letters, which nobody had read since May 3rd, 1912.",
}


async def speak(config: EngineConfig) -> tuple[list[Spoken], int]:
    """The sentences' replies, and their sample rate."""
    service = build_service(config)
    service.start()
    try:
        info = await service.describe()
        return await speak_all(service, list(SENTENCES.values()), 1), info.sample_rate_hz
    finally:
        service.close()


def draw(replies: list[Spoken], path: Path) -> None:
    """Log-mel of every reply, one above the other, on one time scale and one colour scale."""
    import matplotlib  # pyright: ignore[reportMissingImports]

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # pyright: ignore[reportMissingImports]

    mels = [log_mel(torch.from_numpy(reply.wave), MOSS_MEL).numpy() for reply in replies]
    seconds = [mel.shape[1] / float(MOSS_MEL.frame_rate_hz) for mel in mels]
    figure, axes = plt.subplots(
        len(mels), 1, figsize=(10, 2.2 * len(mels)), sharex=True, constrained_layout=True
    )
    for reply, mel, duration_s, axis in zip(
        replies, mels, seconds, np.atleast_1d(axes), strict=True
    ):
        axis.imshow(
            mel,
            origin="lower",
            aspect="auto",
            extent=(0, duration_s, 0, len(mel)),
            vmin=-10,
            vmax=1.5,
        )
        axis.set_title(reply.caption.strip(), fontsize=9, loc="left")
        axis.set_ylabel("mel band")
        axis.set_xlim(0, max(seconds))
    np.atleast_1d(axes)[-1].set_xlabel("seconds")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.nano.samples",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=REPO_ROOT / "assets" / "samples")
    add_options(parser, EngineConfig, ("model",))
    args = parser.parse_args()
    replies, rate_hz = asyncio.run(speak(from_args(EngineConfig, args)))
    args.out.mkdir(parents=True, exist_ok=True)
    for name, reply in zip(SENTENCES, replies, strict=True):
        soundfile.write(args.out / f"{name}.flac", reply.wave, rate_hz, subtype="PCM_16")
        print(
            f"{name}.flac: {len(reply.wave) / rate_hz:.2f} s, peak "
            f"{np.abs(reply.wave).max():.3f}: {reply.caption}"
        )
    draw(replies, args.out / "mel.png")


if __name__ == "__main__":
    main()
