"""Where the parts are joined: options -> runtime, codec, processor, engine, service."""

from __future__ import annotations

from moss_engine.checkup import require_codec_tensors, require_network_tensors
from moss_engine.codec.base import samples_per_code
from moss_engine.codec.load import load_codec
from moss_engine.config import EngineConfig
from moss_engine.engine import Engine
from moss_engine.errors import CheckpointError
from moss_engine.models.config import ModelConfig
from moss_engine.processor import load_processor
from moss_engine.runtime.make import make_runtime, make_sampler, resolve_device
from moss_engine.service import Service


def build_service(config: EngineConfig) -> Service:
    """Everything that `config` asks for, joined but not started.

    Small files are read first and weights last, so that what is missing is said at once. Raises a MossError: a
    CheckpointError or MelSpecError for files, a ConfigError for options that this machine cannot serve, a
    MissingPackageError for a package that is not installed.
    """
    folder = config.checkpoint
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} holds no checkpoint, as config.json is missing in it; name a complete "
                              "checkpoint folder with --checkpoint.")
    model = ModelConfig.from_file(folder / "config.json")
    device = resolve_device(config.device)
    processor = load_processor(folder, model, config.max_text_chars)
    require_network_tensors(folder, model)
    codec_folder = config.codec or folder
    require_codec_tensors(codec_folder)
    codec = load_codec(codec_folder, device, dtype=config.codec_dtype, vocoder=config.vocoder,
                       vocoder_folder=config.vocoder_folder, voices=config.voices)
    if codec.num_codes != model.special.num_codes:
        raise CheckpointError(f"The codec of {codec_folder} has {codec.num_codes} codes and the network of {folder} "
                              f"{model.special.num_codes}; use parts of one checkpoint.")
    runtime = make_runtime(config)
    engine = Engine(runtime, make_sampler(runtime, model, device), processor, config,
                    samples_per_code=samples_per_code(codec))
    return Service(engine, codec, config)
