"""Ask by text or by voice, and get the answer as sound or as text:

python -m scripts.say "Hello there." --out hello.wav              a text is spoken, or answered by speech
python -m scripts.say --speech question.wav --out answer.wav      a recording is answered by speech
python -m scripts.say "Why is the sky blue?" --mode text-to-text
python -m scripts.say --speech question.wav --mode speech-to-text

The file grows while the reply is being made, its text goes to standard output. `-` as the text reads standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import secrets
import sys
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from moss_engine.audio_file import read_audio
from moss_engine.config import EngineConfig, add_options, config_from_args
from moss_engine.errors import ConfigError, MossError, ParameterError, UnsupportedModeError
from moss_engine.events import AudioChunk, Failed, Finished, FinishReason, TextDelta
from moss_engine.metrics import RequestMetrics, Timeline, fold, measure
from moss_engine.modes import Mode
from moss_engine.request import Message, Request, Speech, Text

if TYPE_CHECKING:
    from moss_engine.processor import Processor
    from moss_engine.service import Service


def choose_mode(service: Service, name: str | None, *, hears: bool, speaks: bool) -> Mode:
    """The mode of that name; without one, the first that takes what is given (a recording, if `hears`) and answers as
    wanted (by sound, if `speaks`), the checkpoint's own default before others.

    Raises UnsupportedModeError if there is none, ConfigError where the answer has nowhere to go.
    """
    modes = cast("Processor", service.engine.processor).modes
    known = ", ".join(mode.name for mode in modes)
    given = "speech" if hears else "text"
    if name is not None:
        found = [mode for mode in modes if mode.name == name]
        if not found:
            raise UnsupportedModeError(f"This checkpoint has no mode {name[:40]!r}; choose one of {known}.")
        if found[0].input != given:
            raise ConfigError(f"The mode {name!r} takes {found[0].input}; " +
                              ("give a recording with --speech." if given == "text" else "give a text, not --speech."))
    else:
        found = [mode for mode in modes if mode.input == given and mode.output == ("speech" if speaks else "text")]
        found = sorted(found, key=lambda mode: not mode.default) or [mode for mode in modes if mode.input == given]
    if not found:
        raise UnsupportedModeError(f"This checkpoint cannot understand recordings (its modes: {known}); get "
                                   "MOSS-Speech with python -m scripts.download.")
    if found[0].output == "speech" and not speaks:
        raise ConfigError(f"The mode {found[0].name!r} answers by speech; name a file for it with --out.")
    if found[0].output == "text" and speaks:
        raise ConfigError(f"The mode {found[0].name!r} answers by text; leave --out away.")
    return found[0]


def make_request(service: Service, content: Text | Speech, mode: Mode, *, system: str | None = None,
                 voice: str | None = None, seed: int = 0) -> Request:
    """A request for one message, with the checkpoint's own sampling; raises ParameterError if the mode's system turn is
    fixed and another is given."""
    if system is not None and not mode.own_system:
        raise ParameterError(f"The mode {mode.name!r} has a fixed system turn; leave --system away.")
    messages = () if system is None else (Message("system", Text(system)),)
    sampling = cast("Processor", service.engine.processor).default_sampling
    return Request(secrets.token_hex(16), "say", (*messages, Message("user", content)), mode.name,
                   dataclasses.replace(sampling, seed=seed), voice)


def hear(service: Service, path: Path, max_s: float) -> tuple[Speech, float]:
    """A recording as codes, and the milliseconds that the codec's encoder took for it."""
    wave, rate_hz = read_audio(path, max_s)
    begun_s = time.perf_counter()
    codes = service.codec.encode(wave, rate_hz)
    return Speech(tuple(codes)), 1000 * (time.perf_counter() - begun_s)


async def speak(service: Service, request: Request, out: Path | None) -> tuple[RequestMetrics, FinishReason]:
    """Write the reply's sound to `out`, if there is one, and its text to standard output, both as they come.

    Raises a MossError if the request is refused or fails; what was spoken until then stays in the file.
    """
    timeline = Timeline()
    async with contextlib.aclosing(service.submit(request).events()) as events:
        with contextlib.nullcontext() if out is None else _open_wav(out, service.codec.sample_rate_hz) as file:
            async for event in events:
                timeline = fold(timeline, event)
                if isinstance(event, TextDelta):
                    print(event.text, end="", flush=True)
                elif isinstance(event, AudioChunk):
                    assert file is not None, "a mode that answers by text made sound"
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
    """A WAV file to write; raises MossError where that cannot be begun or, as on a full disk, cannot go on."""
    try:
        with path.open("wb") as raw, wave.open(raw, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(sample_rate_hz)
            yield file
    except OSError as error:
        raise MossError(f"{path} cannot be written ({error.strerror}); name another file with --out.") from None


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
    parser = argparse.ArgumentParser(prog="python -m scripts.say", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", help="what to say or to answer, or - to read it from standard input")
    parser.add_argument("--speech", type=Path, metavar="FILE", help="recording to answer, instead of a text")
    parser.add_argument("--out", type=Path, metavar="FILE", help="WAV file to write; without it, the answer is text")
    parser.add_argument("--mode", help="one of the checkpoint's modes (default: what is given and asked for)")
    parser.add_argument("--system", metavar="TEXT", help="system prompt, instead of the mode's own")
    parser.add_argument("--voice", help="one of the codec's voices (default: its own)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same reply (default: 0)")
    parser.add_argument("--play-metrics", action="store_true", help="print what a listener would have met, as a table")
    parser.add_argument("--json", action="store_true", help="print the figures as one line of JSON")
    add_options(parser, groups=("model", "capacity"))
    args = parser.parse_args(argv)
    if (args.text is None) == (args.speech is None):
        raise ConfigError("Give either a text or a recording with --speech.")
    if args.out == Path("-"):
        raise ConfigError("Sound goes into a file, since the text is on standard output; name one with --out.")
    return args, config_from_args(args)


def main(argv: list[str] | None = None) -> None:
    args, config = parse(argv)
    from moss_engine.build import build_service

    service = build_service(config)
    service.start()
    try:
        mode = choose_mode(service, args.mode, hears=args.speech is not None, speaks=args.out is not None)
        encode_ms = None
        if args.speech is not None:
            content, encode_ms = hear(service, args.speech, config.max_speech_s)
        else:
            content = Text(sys.stdin.read() if args.text == "-" else args.text)
        request = make_request(service, content, mode, system=args.system, voice=args.voice, seed=args.seed)
        metrics, reason = asyncio.run(speak(service, request, args.out))
    finally:
        service.close()
    if reason is FinishReason.LENGTH:
        print("The reply was longer than allowed and was cut.", file=sys.stderr)
    if args.play_metrics:
        if encode_ms is not None:
            print(f"{'encode_ms':<18}{encode_ms:>14,.3f} ms")
        print(table(metrics))
    if args.json:
        print(json.dumps(dataclasses.asdict(metrics) | ({} if encode_ms is None else {"encode_ms": encode_ms})))


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
