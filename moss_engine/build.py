"""Where the parts are joined: options -> runtime, codec, processor, engine, service."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Any

from moss_engine.api.errors import CheckpointError, ConfigError, MissingPackageError
from moss_engine.api.info import ServiceInfo
from moss_engine.api.modes import Mode
from moss_engine.api.request import Sampling
from moss_engine.api.service import StartableService
from moss_engine.audio.smart_turn import WITHOUT_MELODY, find_melody
from moss_engine.audio.voice_activity import Detector, load_detector
from moss_engine.checkup import require_codec_tensors, require_network_tensors
from moss_engine.codec.base import SpeechCodec, samples_per_code
from moss_engine.codec.load import load_cloner, load_codec
from moss_engine.config import EngineConfig, TalkConfig
from moss_engine.engine.engine import Engine
from moss_engine.models.config import ModelConfig
from moss_engine.recogniser.load import NONE, load_recogniser
from moss_engine.recogniser.worker import RecogniserWorker
from moss_engine.runtime.make import make_runtime, require_runtime, resolve_device, resolve_dtype
from moss_engine.service.local import LocalService
from moss_engine.service.recordings import ClonedVoices, Transcriber
from moss_engine.talk.chat_server import ChatServer, find_local
from moss_engine.talk.llm import Llm
from moss_engine.talk.modes import talking_modes
from moss_engine.talk.service import TalkingService
from moss_engine.talk.small_talk import SmallTalk
from moss_engine.text.processor import load_processor

logger = logging.getLogger(__name__)

CACHED_SHARE = 16
"""On a CPU one block in so many may keep earlier turns: each that is written takes memory."""


def build_talking_service(
    config: EngineConfig, talk: TalkConfig, *, clones_voices: bool = False
) -> TalkingService:
    """A service that answers what it is told, with answers of `talk.brain` if there is one. Raises
    as `build_service` does."""
    llm = open_brain(talk)
    below = build_service(config, talk, clones_voices=clones_voices)
    return talk_over(below, below.info, llm, config)


def find_detector() -> Detector | None:
    """Silero VAD, which finds where somebody speaks in a recording, or None if it is not
    installed."""
    try:
        return load_detector()
    except MissingPackageError:
        return None


def talk_over(
    below: StartableService, info: ServiceInfo, llm: Llm | None, config: EngineConfig
) -> TalkingService:
    """A service that answers what is said and has `below`, which `info` describes, speak the
    answers. Raises ConfigError for a brain if the checkpoint answers by itself."""
    info = replace(info, brain=llm.name if llm else None)
    modes = talking_modes(info)
    if llm and modes == info.modes:
        raise ConfigError(
            f"{config.checkpoint} answers by itself: --brain needs a checkpoint that reads texts, "
            "such as the built-in voice."
        )
    info = replace(info, modes=modes)
    answerer = SmallTalk(info.speeds, llm=llm)
    return TalkingService(below, info, answerer, drain_s=config.drain_s)


def open_brain(talk: TalkConfig) -> Llm | None:
    """The chat server that `talk` names, with `auto` one that runs on this machine, or None if it
    names none. Raises ConfigError for an address without a model or the other way round, for an
    address that cannot be used, and if `auto` finds none."""
    key = os.environ.get("MOSS_BRAIN_KEY", "")
    if talk.brain == "auto":
        return Llm(find_local(talk.brain_model, key))
    if talk.brain is None and talk.brain_model is None:
        return None
    if talk.brain is None or talk.brain_model is None:
        raise ConfigError("A brain has an address and a model; give --brain and --brain-model.")
    return Llm(ChatServer(talk.brain, talk.brain_model, key))


def build_service(
    config: EngineConfig, talk: TalkConfig | None = None, *, clones_voices: bool = False
) -> LocalService:
    """The service that `config` describes, not started; `clones_voices` lets it make voices of
    recordings. With `talk` it has a recogniser if the checkpoint understands no speech or if
    `talk.transcribe` asks for one; without `talk` it has none, and nothing mentions one.

    Small files are read first and weights last, so that missing files are reported at once. Raises
    a MossError: CheckpointError or MelSpecError for files, ConfigError for options that this
    machine cannot serve, MissingPackageError.
    """
    folder = config.checkpoint
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder} holds no checkpoint, as config.json is missing in it; name a complete "
            "checkpoint folder with --checkpoint."
        )
    require_runtime(config)
    model = ModelConfig.from_file(folder / "config.json")
    device = resolve_device(config.device)
    processor = load_processor(folder, model, config.max_text_chars)
    require_network_tensors(folder, model)
    codec_folder = config.codec or folder
    require_codec_tensors(codec_folder)
    codec = load_codec(
        codec_folder,
        device,
        dtype=config.codec_dtype,
        vocoder=config.vocoder,
        vocoder_folder=config.vocoder_folder,
        voices=config.voices,
    )
    if codec.num_codes != model.special.num_codes:
        raise CheckpointError(
            f"The codec of {codec_folder} has {codec.num_codes} codes and the network of {folder} "
            f"{model.special.num_codes}; use parts of one checkpoint."
        )
    runtime, on_cpu = make_runtime(config), device.type == "cpu"
    engine = Engine(
        runtime,
        processor,
        config,
        samples_per_code=samples_per_code(codec),
        replays=on_cpu,
        max_cached=runtime.limits.num_blocks // CACHED_SHARE if on_cpu else None,
    )
    names = processor.speakers.names
    info = describe(
        engine, codec, config, processor.modes, processor.default_sampling,
        voices=names or tuple(codec.voices), pieces=processor.pieces(),
        clones_voices=clones_voices, speeds=processor.speakers.speeds,
        lead_samples=round(processor.silent_lead_s * codec.sample_rate_hz),
    )  # fmt: skip
    transcriber, voices = None, None
    if clones_voices:
        voices = ClonedVoices(load_cloner(codec, codec_folder))
    if talk is not None:
        wanted = talk.recogniser if talk.transcribe or not info.encodes else NONE
        recogniser, why_not = load_recogniser(wanted)
        transcriber = (
            Transcriber(RecogniserWorker(recogniser), find_detector()) if recogniser else None
        )
        name = transcriber.name if transcriber else None
        if transcriber and find_melody() is None:
            logger.info(WITHOUT_MELODY)
        info = replace(info, recogniser=name, no_recogniser=None if name else why_not)
    return LocalService(
        engine, codec, config, info, voices, transcriber,
        network_voices=bool(names), one_gpu=not on_cpu,
    )  # fmt: skip


def describe(
    engine: Engine,
    codec: SpeechCodec,
    config: EngineConfig,
    modes: tuple[Mode, ...],
    sampling: Sampling,
    *,
    voices: tuple[str, ...] = (),
    pieces: tuple[str, ...] = (),
    **more: Any,
) -> ServiceInfo:
    """The `ServiceInfo` of a service of these parts; `more` are further fields of it."""
    limits = ("max_text_chars", "max_speech_s", "max_sessions", "max_waiting", "kv_rows")
    return ServiceInfo(
        runtime=engine.runtime.info,
        modes=modes,
        voices=voices,
        sampling=sampling,
        sample_rate_hz=codec.sample_rate_hz,
        samples_per_code=samples_per_code(codec),
        ids=engine.processor.ids,
        pieces=pieces,
        run_ahead_s=config.run_ahead_s,
        lease_s=config.lease_s,
        **{name: getattr(config, name) for name in limits},
        **more,
    )


def settled(config: EngineConfig) -> EngineConfig:
    """The options with `auto` replaced by the number format to use on this machine's CPU. It is
    chosen by measuring speed, so that several services that each choose might differ. On a GPU the
    choice is always the same, and `auto` stays."""
    device = resolve_device(config.device)
    if config.dtype != "auto" or device.type != "cpu" or config.runtime not in ("auto", "torch"):
        return config
    return replace(config, dtype=str(resolve_dtype(config, device)).removeprefix("torch."))
