"""Every option of the program, declared once: `EngineConfig` is frozen and complete; the command-line parser, the page
and the README's table follow from it.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moss_engine.errors import ConfigError

REPO_ROOT = Path(__file__).resolve().parent.parent
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
NANO_CHECKPOINT = REPO_ROOT / "assets" / "nano"


def _option(default: Any, help: str, *, group: str, choices: tuple[str, ...] | None = None, low: float | None = None,
            high: float | None = None, metavar: str | None = None) -> Any:
    return field(default=default, metadata={"help": help, "group": group, "choices": choices, "low": low, "high": high,
                                            "metavar": metavar})


@dataclass(frozen=True)
class EngineConfig:
    """All options with their defaults. Durations are seconds, sizes are counts unless the name says otherwise."""

    checkpoint: Path = _option(NANO_CHECKPOINT, "checkpoint folder", group="model", metavar="DIR")
    codec: Path | None = _option(None, "codec folder, where it is not inside the checkpoint: the published "
                                 "MOSS-Speech-Codec, or one of codec/ and vocoder/", group="model", metavar="DIR")
    codec_dtype: str = _option("auto", "number format of the MOSS-Speech codec; auto is float16 on a GPU",
                               group="model", choices=("auto", "float32", "float16", "bfloat16"))
    vocoder: str = _option("auto", "what turns mel into sound; auto is the codec's own", group="model",
                           choices=("auto", "hift", "bigvgan"))
    vocoder_folder: Path | None = _option(None, "folder of a BigVGAN on the codec's mel", group="model", metavar="DIR")
    voices: Path | None = _option(None, "folder of voices made by scripts.voice, where it is not the codec's voices/",
                                  group="model", metavar="DIR")
    runtime: str = _option("auto", "what runs the network; auto is torch", group="model",
                           choices=("auto", "torch", "tensorrt", "tensorrt_rtx", "tensorrt_llm"))
    engine: Path | None = _option(None, "folder of the engine file that a TensorRT runtime runs", group="model",
                                  metavar="DIR")
    plugin: Path | None = _option(None, "plugin library of tensorrt_llm, where that package is not installed",
                                  group="model", metavar="FILE")
    device: str = _option("auto", "cpu, cuda or cuda:N; auto takes a GPU when there is one", group="model")
    dtype: str = _option("auto", "number format of weights and KV; auto is the device's best exact one", group="model",
                         choices=("auto", "float32", "bfloat16", "float8", "float8-all", "int8"))
    skip_unused: bool = _option(True, "leave out the text head while a reply speaks, as its sample is never used; the "
                                "reply is the same", group="model")
    deferred_text: bool = _option(False, "leave out the text branch while a reply speaks and make up for it in one "
                                  "pass before text is sampled again; the same mathematics, rounded otherwise",
                                  group="model")
    threads: int = _option(1, "CPU threads of the language model", group="model", low=1, high=256)

    block_size: int = _option(16, "rows of one KV block", group="capacity", low=1, high=1024)
    kv_rows: int = _option(16_384, "rows of the whole KV pool", group="capacity", low=64, high=1 << 24)
    max_sessions: int = _option(4, "replies generated at the same time", group="capacity", low=1, high=1024)
    max_waiting: int = _option(16, "requests that may wait for a place", group="capacity", low=0, high=4096)
    max_step_rows: int = _option(512, "uncached rows of one step; longer prompts are prefilled in chunks",
                                 group="capacity", low=1, high=1 << 16)
    max_text_chars: int = _option(4000, "longest text of one message", group="capacity", low=1, high=100_000)
    max_speech_s: float = _option(60.0, "longest recording of one message", group="capacity", low=1.0, high=600.0)

    wait_limit_s: float = _option(60.0, "longest wait for a place", group="service", low=0.0, high=3600.0)
    run_ahead_s: float = _option(10.0, "audio produced ahead of the listener before the reply pauses", group="service",
                                 low=0.5, high=600.0)
    lease_s: float = _option(10.0, "a listener that takes nothing for so long is dropped", group="service", low=1.0,
                             high=600.0)
    drain_s: float = _option(10.0, "time that running replies get at shutdown", group="service", low=0.0, high=600.0)

    host: str = _option("127.0.0.1", "address to listen on", group="page")
    port: int = _option(7860, "port to listen on", group="page", low=1, high=65535)
    share: bool = _option(False, "make a public link through Gradio's relay", group="page")
    own_voice: bool = _option(False, "visitors may be answered in a voice made of their own recording, if they agree; "
                              "never on public addresses", group="page")
    auth: str | None = _option(None, "USER:PASSWORD asked of every visitor", group="page", metavar="USER:PASSWORD")

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value, low, high = getattr(self, f.name), f.metadata["low"], f.metadata["high"]
            if low is not None and not low <= value <= high:  # also refuses NaN
                raise ConfigError(f"--{_flag(f.name)} is {value}; give a value from {low} to {high}.")
            choices = f.metadata["choices"]
            if choices and value not in choices:
                raise ConfigError(f"--{_flag(f.name)} is {value!r}; choose one of {', '.join(choices)}.")
        if self.own_voice and (self.share or self.host not in LOOPBACK):
            raise ConfigError("--own-voice is for this machine alone, since nobody could say whose voices strangers "
                              "bring; leave --share and --host away.")
        if self.auth is not None and not all(self.auth.partition(":")):
            raise ConfigError("--auth needs the form USER:PASSWORD.")


def _flag(name: str) -> str:
    return name.replace("_", "-")


def add_options(parser: argparse.ArgumentParser, groups: tuple[str, ...] | None = None) -> None:
    """Add every option of EngineConfig (or of the named groups) to a parser."""
    sections: dict[str, Any] = {}
    for f in dataclasses.fields(EngineConfig):
        group = f.metadata["group"]
        if groups is not None and group not in groups:
            continue
        section = sections.setdefault(group, parser.add_argument_group(group) if group not in sections else None)
        default = "" if f.default is None else f" (default: {f.default})"
        help_text = f"{f.metadata['help']}{default}".replace("%", "%%")
        if isinstance(f.default, bool):
            section.add_argument(f"--{_flag(f.name)}", action=argparse.BooleanOptionalAction, default=f.default,
                                 help=f.metadata["help"])
            continue
        kind = Path if "Path" in str(f.type) else type(f.default) if f.default is not None else str
        section.add_argument(f"--{_flag(f.name)}", type=kind, default=f.default, choices=f.metadata["choices"],
                             metavar=f.metadata["metavar"], help=help_text)


def config_from_args(args: argparse.Namespace) -> EngineConfig:
    """The config that parsed arguments describe; options the parser does not have keep their defaults."""
    names = {f.name for f in dataclasses.fields(EngineConfig)}
    return EngineConfig(**{name: value for name, value in vars(args).items() if name in names})
