"""Ask by text or by voice, and get the answer as sound or as text:

    moss-say "Hello there." --out hello.wav
    moss-say --speech question.wav --out answer.wav
    moss-say "How are you?" --mode chat-written
    moss-say --speech question.wav --mode talk-written

The first two are answered by speech (or the text is read aloud, if that is what the checkpoint
does), the last two in writing; for that, name the modes text-to-text and speech-to-text with
MOSS-Speech. The sound goes to --out, by default reply.wav, while the reply is made, and its text to
standard output. `-` as text reads standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

from moss_engine.api.errors import (
    ConfigError,
    MossError,
    ParameterError,
    UnsupportedModeError,
    error_of,
)
from moss_engine.api.events import AudioChunk, Failed, Finished, FinishReason, TextDelta
from moss_engine.api.info import ServiceInfo
from moss_engine.api.metrics import RequestMetrics, Timeline, fold, measure
from moss_engine.api.modes import Mode
from moss_engine.api.request import Request, Speech, Text
from moss_engine.api.service import SpeechService, hear, request_of, stream
from moss_engine.audio.file import read_audio
from moss_engine.audio.pcm import check_name, to_pcm16
from moss_engine.config import EngineConfig, TalkConfig
from moss_engine.options import add_options, from_args
from moss_engine.text.language import check_language

OUT = Path("reply.wav")


def choose_mode(info: ServiceInfo, name: str | None, *, hears: bool, speaks: bool) -> Mode:
    """The mode of that name; without a name, one that takes what is given (a recording, if
    `hears`): the checkpoint's default if that does, else preferably one that answers by speech.

    Raises UnsupportedModeError if there is none, ConfigError if the named one does not take what is
    given, or gives no sound for the file that was asked for (`speaks`).
    """
    known = ", ".join(mode.name for mode in info.modes)
    given = "speech" if hears else "text"
    if name is not None:
        found = [mode for mode in info.modes if mode.name == name]
        if not found:
            raise UnsupportedModeError(
                f"This checkpoint has no mode {name[:40]!r}; choose one of {known}."
            )
        if found[0].input != given:
            remedy = "a recording with --speech" if given == "text" else "a text, not --speech"
            raise ConfigError(f"The mode {name!r} takes {found[0].input}; give {remedy}.")
    else:
        found = sorted(
            (mode for mode in info.modes if mode.input == given),
            key=lambda mode: (mode.output != "speech", not mode.default),
        )
    if not found:
        raise UnsupportedModeError(
            info.no_recogniser
            or f"This checkpoint cannot understand recordings (its modes: {known}); get "
            "MOSS-Speech with python -m scripts.download."
        )
    if found[0].output == "text" and speaks:
        raise ConfigError(f"The mode {found[0].name!r} answers by text; omit --out.")
    return found[0]


async def speak(
    service: SpeechService, request: Request, out: Path | None
) -> tuple[RequestMetrics, FinishReason]:
    """Write the reply's sound to `out`, if that is given, and its text to standard output, both as
    they come.

    Raises a MossError if the request is refused, without touching the file, or if the reply fails;
    then the file keeps what was spoken before.
    """
    timeline, rate_hz = Timeline(), (await service.describe()).sample_rate_hz
    file: wave.Wave_write | None = None
    async with contextlib.aclosing(stream(service, request)) as events:
        with contextlib.ExitStack() as opened:
            async for event in events:
                timeline = fold(timeline, event)
                if isinstance(event, Failed):
                    raise error_of(event.code, event.message)
                if out is not None and file is None:
                    file = opened.enter_context(_open_wav(out, rate_hz))
                if isinstance(event, TextDelta):
                    _show(event.text)
                elif isinstance(event, AudioChunk):
                    assert file is not None, "a mode that answers by text made sound"
                    file.writeframes(to_bytes(event))
                elif isinstance(event, Finished):
                    _show("\n")
                    return measure(timeline), event.reason
    raise AssertionError("the stream ended without a last word")


def _show(text: str) -> None:
    """Print a part of the text; raises ConfigError if standard output was closed, as by `head`."""
    try:
        print(text, end="", flush=True)
    except OSError as error:
        raise ConfigError(
            f"Standard output takes no text ({error.strerror}); send it elsewhere, as to /dev/null."
        ) from None


def to_bytes(chunk: AudioChunk) -> bytes:
    """A chunk as little-endian 16-bit PCM."""
    return to_pcm16(chunk.samples).astype("<i2").tobytes()


@contextlib.contextmanager
def _open_wav(path: Path, sample_rate_hz: int) -> Iterator[wave.Wave_write]:
    """Open a WAV file for writing; raises ConfigError if it cannot be opened or, as on a full disk,
    cannot be written any further."""
    try:
        with path.open("wb") as raw, wave.open(raw, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(sample_rate_hz)
            yield file
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}); name another file with --out."
        ) from None


def table(metrics: RequestMetrics) -> str:
    """One line for each figure that is known: name, value, unit."""
    lines = []
    for field in dataclasses.fields(metrics):
        value = getattr(metrics, field.name)
        if value is not None:
            shown = f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
            lines.append(f"{field.name:<18}{shown:>14} {field.metadata['unit']}".rstrip())
    return "\n".join(lines)


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, EngineConfig, TalkConfig]:
    parser = argparse.ArgumentParser(
        prog="moss-say", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("text", nargs="?", help="what to say or to answer, or - to read it from standard input")
    add("--speech", type=Path, metavar="FILE", help="recording to answer, instead of a text")
    add("--out", type=Path, metavar="FILE", help=f"WAV file for a spoken answer (default: {OUT})")
    add("--mode", help="one of the checkpoint's modes (default: what is given and asked for)")
    add("--system", metavar="TEXT", help="system prompt, instead of the mode's own")
    add("--voice", help="one of the checkpoint's voices (default: its own)")
    add("--speed", type=float, default=1.0,
        help="speaking rate, 0.7 to 1.5, where the checkpoint has one (default: 1)")  # fmt: skip
    add("--anyway", action="store_true",
        help="read a text even if it looks like a language that the voice cannot read")  # fmt: skip
    add("--seed", type=int, default=0, help="the same seed gives the same reply (default: 0)")
    add("--play-metrics", action="store_true",
        help="print what a listener would have met, as a table")  # fmt: skip
    add_options(parser, EngineConfig, groups=("model", "capacity"))
    add_options(parser, TalkConfig)
    args = parser.parse_args(argv)
    if (args.text is None) == (args.speech is None):
        raise ConfigError("Give either a text or a recording with --speech.")
    if args.out is not None:
        check_name(args.out)
    if args.out == Path("-"):
        raise ConfigError(
            "Sound goes into a file, since the text is on standard output; name one with --out."
        )
    return args, from_args(EngineConfig, args), from_args(TalkConfig, args)


async def answer(
    service: SpeechService, args: argparse.Namespace
) -> tuple[RequestMetrics, FinishReason]:
    """Ask what the command line says, and show the answer."""
    info = await service.describe()
    mode = choose_mode(info, args.mode, hears=args.speech is not None, speaks=args.out is not None)
    if args.system is not None and not mode.own_system:
        raise ParameterError(f"The mode {mode.name!r} has a fixed system turn; omit --system.")
    content: Text | Speech
    if args.speech is not None:
        content = await hear(service, *read_audio(args.speech, info.max_speech_s))
        if heard := content.transcript:
            print(f"{heard.recogniser} heard: {heard.text}", file=sys.stderr)
    else:
        content = Text(sys.stdin.read() if args.text == "-" else args.text)
        if not args.anyway:
            check_language(mode, content.text, "give --anyway to hear it nevertheless")
    options = {name: getattr(args, name) for name in ("system", "voice", "speed", "seed")}
    request = request_of(info, content, "say", mode=mode.name, **options)
    out = (args.out or OUT) if mode.output == "speech" else None
    metrics, reason = await speak(service, request, out)
    if out is not args.out:
        print(f"The sound is in {out}.", file=sys.stderr)
    return metrics, reason


def main(argv: list[str] | None = None) -> None:
    args, config, talk = parse(argv)
    if args.speech is not None and not args.speech.exists():
        raise ConfigError(f"There is no file {args.speech}; name a recording.")
    from moss_engine.build import build_talking_service

    service = build_talking_service(config, talk)
    service.start()
    try:
        metrics, reason = asyncio.run(answer(service, args))
    finally:
        service.close()
    if reason is FinishReason.LENGTH:
        print("The reply was longer than allowed and was cut.", file=sys.stderr)
    if args.play_metrics:
        print(table(metrics))


def run() -> None:
    """The program `moss-say`; an error ends it in a sentence."""
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    from moss_engine.programs import say

    say()
