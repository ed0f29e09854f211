"""Speak a text into a WAV file: `python -m scripts.say "Hello there." --out hello.wav`.

The file grows while the reply is being made. `-` as the text reads standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import secrets
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from moss_engine.config import EngineConfig, add_options, config_from_args
from moss_engine.errors import MossError
from moss_engine.events import AudioChunk, Failed, Finished, FinishReason, TextDelta
from moss_engine.metrics import RequestMetrics, Timeline, fold, measure
from moss_engine.request import Message, Request, Text

if TYPE_CHECKING:
    from moss_engine.processor import Processor
    from moss_engine.service import Service


def make_request(service: Service, text: str, *, mode: str | None, voice: str | None, seed: int) -> Request:
    """A request for one message, with the checkpoint's own mode and sampling unless others are named."""
    processor = cast("Processor", service.engine.processor)
    return Request(
        request_id=secrets.token_hex(16),
        session_id="say",
        messages=(Message("user", Text(text)),),
        mode=processor.default_mode.name if mode is None else mode,
        sampling=dataclasses.replace(processor.default_sampling, seed=seed),
        voice=voice,
    )


async def speak(service: Service, request: Request, out: Path) -> tuple[RequestMetrics, FinishReason]:
    """Write the reply's sound to `out` and its text to standard output, both as they come.

    Raises a MossError if the request is refused or fails; what was spoken until then stays in the file.
    """
    timeline = Timeline()
    async with contextlib.aclosing(service.submit(request).events()) as events:
        with _open_wav(out, service.codec.sample_rate_hz) as file:
            async for event in events:
                timeline = fold(timeline, event)
                if isinstance(event, TextDelta):
                    print(event.text, end="", flush=True)
                elif isinstance(event, AudioChunk):
                    file.writeframes(to_bytes(event))
                elif isinstance(event, Failed):
                    raise MossError(event.message)
                elif isinstance(event, Finished):
                    print(flush=True)
                    return measure(timeline), event.reason
    raise AssertionError("the stream ended without a last word")


def to_bytes(chunk: AudioChunk) -> bytes:
    """Little-endian 16-bit PCM of a chunk."""
    from moss_engine.audio import to_pcm16

    return to_pcm16(chunk.samples).astype("<i2").tobytes()


@contextlib.contextmanager
def _open_wav(path: Path, sample_rate_hz: int) -> Iterator[wave.Wave_write]:
    try:
        raw = path.open("wb")
    except OSError as error:
        raise MossError(f"{path} cannot be written ({error.strerror}); name another file with --out.") from None
    with raw, wave.open(raw, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate_hz)
        yield file


def table(metrics: RequestMetrics) -> str:
    """One line for each figure that is known: name, value, unit."""
    lines = []
    for field in dataclasses.fields(metrics):
        value = getattr(metrics, field.name)
        if value is not None:
            shown = f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
            lines.append(f"{field.name:<18}{shown:>14} {field.metadata['unit']}".rstrip())
    return "\n".join(lines)


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, EngineConfig]:
    parser = argparse.ArgumentParser(prog="python -m scripts.say", description="Speak a text into a WAV file.")
    parser.add_argument("text", help="what to say, or - to read it from standard input")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="WAV file to write")
    parser.add_argument("--mode", help="one of the checkpoint's modes (default: its own)")
    parser.add_argument("--voice", help="one of the codec's voices (default: its own)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same reply (default: 0)")
    parser.add_argument("--play-metrics", action="store_true", help="print what a listener would have met, as a table")
    parser.add_argument("--json", action="store_true", help="print the figures as one line of JSON")
    add_options(parser, groups=("model", "capacity"))
    args = parser.parse_args(argv)
    return args, config_from_args(args)


def main(argv: list[str] | None = None) -> None:
    args, config = parse(argv)
    from moss_engine.build import build_service

    text = sys.stdin.read() if args.text == "-" else args.text
    service = build_service(config)
    service.start()
    try:
        request = make_request(service, text, mode=args.mode, voice=args.voice, seed=args.seed)
        metrics, reason = asyncio.run(speak(service, request, args.out))
    finally:
        service.close()
    if reason is FinishReason.LENGTH:
        print("The reply was longer than allowed and was cut.", file=sys.stderr)
    if args.play_metrics:
        print(table(metrics))
    if args.json:
        print(json.dumps(dataclasses.asdict(metrics)))


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
