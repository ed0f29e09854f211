"""Say a recording again in an installed voice: `python -m scripts.revoice`.

It uses the MOSS-Speech codec alone: sound to codes to sound, without a language model.

    python -m scripts.revoice sample.wav again.wav --voice Anna

The sound is made chunk by chunk, like that of answers. It is the best that the codec can do, so it
tells whether codec or model is to blame when an answer sounds bad.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from moss_engine.audio.file import read_audio
from moss_engine.audio.pcm import save_wav, to_pcm16
from moss_engine.codec.base import MOSS_MEL, Push
from scripts.command import make_parser, run_command
from scripts.disk import require_place, require_recording
from scripts.download import CODEC_FOLDER


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("revoice", __doc__)
    add = parser.add_argument
    add("sample", type=Path, help="recording, a minute at most")
    add("out", type=Path, help="WAV file to write")
    add("--voice", metavar="NAME", help="an installed voice (default: the first one)")
    add("--codec", type=Path, default=CODEC_FOLDER, metavar="DIR",
        help=f"codec folder (default: {CODEC_FOLDER})")  # fmt: skip
    add("--voices", type=Path, metavar="DIR",
        help="folder of voices, where it is not the codec's voices/")  # fmt: skip
    add("--device", default="auto", help="cpu, cuda or cuda:N (default: auto)")
    add("--codec-dtype", default="auto", choices=("auto", "float32", "float16", "bfloat16"),
        help="number format of the codec; auto is float16 on a GPU (default: auto)")  # fmt: skip
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    require_recording(args.sample)
    require_place(args.out, "name another file")
    from moss_engine.codec.moss.load import load_moss_codec
    from moss_engine.runtime.make import resolve_device

    wave, rate_hz = read_audio(args.sample)
    device = resolve_device(args.device)
    codec = load_moss_codec(
        args.codec, device, dtype=args.codec_dtype, voices=args.voices, max_together=1
    )
    codes = codec.encode(wave, rate_hz)
    (again,) = codec.push_together([Push(codec.open_stream(args.voice), codes, is_last=True)])
    save_wav(args.out, to_pcm16(again), MOSS_MEL.sample_rate_hz)
    print(f"{args.out}: {len(codes)} codes, {len(again) / MOSS_MEL.sample_rate_hz:.2f} s")


if __name__ == "__main__":
    run_command(main)
