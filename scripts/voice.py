"""Make voices for MOSS-Speech, each of a short recording.

    python -m scripts.voice make sample.wav Anna
    python -m scripts.voice list
    python -m scripts.voice remove Anna

The first stores codes, mel and speaker vector of the sample as a voice called Anna. 3 to 6 s of one
person speaking evenly, without music or echo, are best. Only use recordings of people who have
agreed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from moss_engine.api.errors import MossError
from moss_engine.audio.file import read_audio
from moss_engine.codec.moss.load import VOICES_FOLDER
from moss_engine.codec.moss.speaker import CAMPPLUS_NAME, SpeakerEncoder
from moss_engine.codec.moss.voice import (
    CODE_S,
    GROUP_CODES,
    LONGEST_S,
    advice,
    check_name,
    list_voices,
    load_voice,
    make_voice,
    remove_voice,
    save_voice,
)
from moss_engine.codec.moss.whisper import codec_digest, load_whisper_vq
from moss_engine.runtime.make import resolve_device
from scripts.command import make_parser, run_command
from scripts.disk import require_folder, require_recording, writing_to
from scripts.download import CODEC_FOLDER

ELSEWHERE = "make it writable, or name another folder with --voices"


def make(sample: Path, name: str, codec: Path, voices: Path, device: str) -> None:
    """Read the sample, encode it with the codec, write the voice, and say what came of it."""
    check_name(name)
    require_recording(sample)
    require_folder(voices / name, ELSEWHERE)
    wave, rate_hz = read_audio(sample, max_s=LONGEST_S)
    speaker = SpeakerEncoder(codec / CAMPPLUS_NAME)
    codes = load_whisper_vq(codec, resolve_device(device)).encode(wave, rate_hz)
    voice = make_voice(name, wave, rate_hz, codes, speaker)
    digest = codec_digest(codec)
    with writing_to(voices / name, ELSEWHERE):
        target = save_voice(voices, voice, digest)
    if (sentence := advice(len(wave) / rate_hz)) is not None:
        print(sentence)
    print(
        f"{target}: {len(voice.codes)} codes, {len(voice.codes) * CODE_S:g} s "
        f"(trimmed to a multiple of {GROUP_CODES} codes)."
    )


def show(codec: Path, voices: Path) -> None:
    """One line for each voice: its name and length, or what is wrong with it."""
    digest = codec_digest(codec)
    names = list_voices(voices)
    for name in names:
        try:
            voice = load_voice(voices / name, digest)
            print(f"{name:<24}{len(voice.codes) * CODE_S:5.1f} s")
        except MossError as error:
            print(f"{name:<24}unusable: {error}")
    if not names:
        print(
            f"{voices} holds no voice; make one with: python -m scripts.voice make sample.wav NAME"
        )


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("voice", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="make a voice of a recording")
    making.add_argument("sample", type=Path, help="WAV, FLAC, OGG, MP3 or AIFF of 1 to 30 s")
    making.add_argument("name", help="what to call the voice")
    making.add_argument("--device", default="auto", help="cpu, cuda or auto (default)")
    commands.add_parser("list", help="show the voices that are installed")
    removing = commands.add_parser("remove", help="delete a voice")
    removing.add_argument("name", help="the voice to delete")
    for command in commands.choices.values():
        add = command.add_argument
        add("--codec", type=Path, default=CODEC_FOLDER, metavar="DIR",
            help=f"folder of the MOSS-Speech codec (default: {CODEC_FOLDER})")  # fmt: skip
        add("--voices", type=Path, metavar="DIR",
            help=f"folder of the voices (default: {VOICES_FOLDER} in the codec's)")  # fmt: skip
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    voices = args.voices or args.codec / VOICES_FOLDER
    if args.command == "make":
        make(args.sample, args.name, args.codec, voices, args.device)
    elif args.command == "list":
        show(args.codec, voices)
    else:
        remove_voice(voices, args.name)
        print(f"{voices / args.name} is removed.")


if __name__ == "__main__":
    run_command(main)
