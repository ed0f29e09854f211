"""What the service is built with: checkpoint, codec, runtime, and how much it may hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from moss_engine.options import check_options, option

REPO_ROOT = Path(__file__).resolve().parent.parent
_PACKAGED = Path(__file__).resolve().parent / "assets" / "nano"
NANO_CHECKPOINT = _PACKAGED if _PACKAGED.is_dir() else REPO_ROOT / "assets" / "nano"
"""The built-in voice: in the package if that was installed from a wheel, else in the checkout."""

_model, _capacity, _service, _cluster, _talk = (
    partial(option, group=name) for name in ("model", "capacity", "service", "cluster", "talk")
)


@dataclass(frozen=True)
class EngineConfig:
    """The options of model, capacity and service, with their defaults; the page's are in
    `ui.config`. Durations are seconds; sizes are counts unless the name says otherwise."""

    checkpoint: Path = _model(NANO_CHECKPOINT, "checkpoint folder", metavar="DIR")
    codec: Path | None = _model(
        None,
        "codec folder, where it is not inside the checkpoint: the published "
        "MOSS-Speech-Codec, or one of codec/ and vocoder/",
        metavar="DIR",
    )
    codec_dtype: str = _model(
        "auto",
        "number format of the MOSS-Speech codec; auto is float16 on a GPU",
        choices=("auto", "float32", "float16", "bfloat16"),
    )
    vocoder: str = _model(
        "auto",
        "what turns mel into sound; auto is the codec's own: HiFT, or with the built-in voice "
        "source_filter on a CPU and bigvgan on a GPU",
        choices=("auto", "hift", "source_filter", "bigvgan"),
    )
    vocoder_folder: Path | None = _model(
        None, "folder of a vocoder on the codec's mel", metavar="DIR"
    )
    voices: Path | None = _model(
        None,
        "folder of voices made by scripts.voice, where it is not the codec's voices/",
        metavar="DIR",
    )
    runtime: str = _model(
        "auto",
        "what runs the network: torch, tensorrt, tensorrt_rtx or tensorrt_llm; auto is torch",
    )
    engine: Path | None = _model(
        None, "folder of the engine file that a TensorRT runtime runs", metavar="DIR"
    )
    plugin: Path | None = _model(
        None, "plugin library of tensorrt_llm, where that package is not installed", metavar="FILE"
    )
    device: str = _model("auto", "cpu, cuda or cuda:N; auto takes a GPU when there is one")
    dtype: str = _model(
        "auto",
        "number format of weights and KV; auto is the device's best exact one",
        choices=("auto", "float32", "bfloat16", "float8", "float8-all", "int8", "int4"),
    )
    kv_cache_dtype: str = _model(
        "auto",
        "number format of keys and values on a GPU: auto is the network's, int8 has a scale for "
        "every row and head",
        choices=("auto", "int8"),
    )
    threads: int = _model(1, "CPU threads of the language model", low=1, high=256)

    block_size: int = _capacity(16, "rows of one KV block", low=1, high=1024)
    kv_rows: int = _capacity(16_384, "rows of the whole KV pool", low=64, high=1 << 24)
    max_sessions: int = _capacity(4, "replies generated at the same time", low=1, high=1024)
    max_waiting: int = _capacity(16, "requests that may wait for a place", low=0, high=4096)
    max_step_rows: int = _capacity(
        512,
        "uncached rows of one step; longer prompts are prefilled in chunks",
        low=1,
        high=1 << 16,
    )
    max_text_chars: int = _capacity(4096, "longest text of one message", low=1, high=100_000)
    max_speech_s: float = _capacity(60.0, "longest recording of one message", low=1.0, high=600.0)

    wait_limit_s: float = _service(60.0, "longest wait for a place", low=0.0, high=3600.0)
    run_ahead_s: float = _service(
        10.0, "audio produced ahead of the listener before the reply pauses", low=0.5, high=600.0
    )
    lease_s: float = _service(
        10.0, "a listener that takes nothing for so long is dropped", low=1.0, high=600.0
    )
    drain_s: float = _service(
        10.0, "time that running replies get at shutdown", low=0.0, high=600.0
    )

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class ClusterConfig:
    """The options of replicas, with their defaults."""

    replicas: int = _cluster(
        0,
        "replicas on this machine, one a GPU or several on a CPU; 0 is one service in this process",
        low=0,
        high=256,
    )
    ray_address: str | None = _cluster(
        None,
        "serve by the replicas of a running Ray cluster: auto, or host:port",
        metavar="ADDRESS",
    )

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def is_wanted(self) -> bool:
        return bool(self.replicas or self.ray_address)


@dataclass(frozen=True)
class TalkConfig:
    """The options of recogniser and chat server, with their defaults."""

    recogniser: str = _talk(
        "auto",
        "what turns speech into text for a checkpoint that understands none: moonshine or none; "
        "auto is moonshine, if it is installed",
    )
    transcribe: bool = _talk(
        False,
        "let the recogniser listen too where the checkpoint understands speech by itself, so that "
        "the page shows what was said",
    )
    brain: str | None = _talk(
        None,
        "address of a chat server that thinks of the answers, such as http://localhost:11434: any "
        "that speaks OpenAI's chat completions; a key is taken from MOSS_BRAIN_KEY. auto looks for "
        "one on this machine: Ollama, llama.cpp, LM Studio or vLLM at its usual port",
        metavar="URL",
    )
    brain_model: str | None = _talk(
        None,
        "the model that the brain is asked for; with --brain auto its first one, unless given",
        metavar="NAME",
    )

    def __post_init__(self) -> None:
        check_options(self)
