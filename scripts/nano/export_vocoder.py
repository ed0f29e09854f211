"""A trained vocoder -> its folder in a checkpoint.

    python -m scripts.nano.export_vocoder PRESET --work DIR [--dtype int8]

Reads DIR/PRESET.pt and writes DIR/vocoder/source_filter or DIR/vocoder/bigvgan. The gain makes
replies about as loud as -20 LUFS: the teacher speaks at -26.6.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from moss_engine.codec.vocoder.make import SOURCE_TYPES, save_source_vocoder
from moss_engine.codec.vocoder.source_filter import SourceFilter
from scripts.nano.vocoder.trainer import PRESETS

GAIN = 2.0
DTYPES = {"source_filter": "int8", "bigvgan": "float16"}


def export(preset: str, work: Path, gain: float, dtype: str | None) -> Path:
    """-> the folder that was written"""
    chosen = PRESETS[preset]
    network = chosen.network(**chosen.sizes)
    network.load_state_dict(torch.load(work / f"{preset}.pt", map_location="cpu"))
    name = "source_filter" if chosen.network is SourceFilter else "bigvgan"
    kind = next(
        kind for kind, network_type in SOURCE_TYPES.items() if network_type is chosen.network
    )
    folder = work / "vocoder" / name
    save_source_vocoder(folder, kind, chosen.sizes, gain, network, dtype or DTYPES[name])
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.nano.export_vocoder",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("preset", choices=tuple(PRESETS))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--gain", type=float, default=GAIN)
    parser.add_argument(
        "--dtype", choices=("int8", "float16", "float32"), help=f"default: {DTYPES}"
    )
    args = parser.parse_args()
    folder = export(args.preset, args.work, args.gain, args.dtype)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
