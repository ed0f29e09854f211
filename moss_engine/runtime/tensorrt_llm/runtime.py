"""The runtime of `--runtime tensorrt_llm`: an engine file with the attention plugin, over a pool in
its layout. Only `tensorrt` and the plugin's library are loaded, never the tensorrt_llm package.
"""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.errors import ConfigError, MissingPackageError
from moss_engine.config import EngineConfig
from moss_engine.models.config import ModelConfig
from moss_engine.models.manifest import file_digest
from moss_engine.runtime.base import Limits, Logits, ScheduledBatch, check_batch
from moss_engine.runtime.tensorrt.engine import TrtEngine
from moss_engine.runtime.tensorrt.library import load_library
from moss_engine.runtime.tensorrt.runtime import (
    EngineFile,
    EngineRuntime,
    on_stream,
    open_engine_file,
)
from moss_engine.runtime.tensorrt_llm.tensors import (
    HOST_PREFIX,
    INPUTS,
    Geometry,
    Step,
    capacity,
    engine_inputs,
    engine_outputs,
    is_generation,
    make_step,
    max_blocks,
    values_of,
)

RELEASES = ("1.0.0", "1.2.1")
"""Of tensorrt_llm: with CUDA 12, and with CUDA 13. Later ones have no engine files."""
NAMESPACE = b"tensorrt_llm"
LIBRARY = Path("libs") / "libnvinfer_plugin_tensorrt_llm.so"


def load_trtllm_runtime(
    config: EngineConfig, limits: Limits, device: torch.device
) -> TrtLlmRuntime:
    """The runtime for the engine file of `--engine`; raises as `open_engine_file`."""
    load_library(config.runtime)  # that it is missing is said before that its plugin is
    plugin = find_plugin(config.plugin)
    file = open_engine_file(config, limits, device, pool_shape, file_digest(plugin))
    load_plugin(plugin)
    return TrtLlmRuntime(file)


class TrtLlmRuntime(EngineRuntime):
    """`Runtime` on one engine file. All sequences of a step run in one call."""

    _engine: TrtEngine | None

    def __init__(self, file: EngineFile):
        super().__init__(file)
        library, plan, manifest, config, limits, *_, device = file
        self._built, tensors = manifest.limits, file.tensors
        inputs = engine_inputs(tensors, is_bound=file.is_bound)
        outputs = engine_outputs(config)
        self._engine = TrtEngine(library, plan, inputs, outputs, device, self._stream_handle)
        dtype = getattr(torch, tensors.io_dtype)
        self._pool = torch.zeros(pool_shape(config, limits), dtype=dtype, device=device)
        offsets = limits.num_blocks * config.num_layers * 2
        assert offsets < 1 << 31, "the highest bit of an offset means another pool"
        self._geometry = Geometry(
            config.num_layers, max_blocks(self._built), capacity(self._built), self._pool.data_ptr()
        )
        for profile in range(self._engine.num_profiles):
            self._engine.bind(profile, self._kept)
        self._given: dict[str, Tensor] = {}
        self._constants: dict[tuple[str, int], Tensor] = {}
        self._done = torch.cuda.Event() if self._stream else None

    @torch.inference_mode()
    def forward(self, batch: ScheduledBatch) -> Logits:
        assert self._engine is not None, "the runtime was closed"
        check_batch(batch, self.limits)
        order = sorted(range(len(batch.sequences)), key=lambda i: is_generation(batch.sequences[i]))
        step = make_step([batch.sequences[i] for i in order], self._geometry.max_blocks)
        if self._done is not None:
            # the plugin reads the tensors on the host until its call has run
            self._done.synchronize()
        with on_stream(self._stream):
            self._given = {name: self._placed(name, step) for name in INPUTS}
            shapes = {name: tuple(tensor.shape) for name, tensor in self._given.items()}
            profile = 0 if len(step.ids) <= self._built.max_batch else 1
            self._engine.bind(profile, self._given, shapes)
            self._engine.run(profile, self._stream_handle)
            if self._done is not None:
                self._done.record(self._stream)
        places = [order.index(i) for i, sequence in enumerate(batch.sequences) if sequence.sample]
        select = torch.tensor(places, dtype=torch.long, device=self._device)
        return Logits(*(logits.index_select(0, select) for logits in self._logits))

    def close(self) -> None:
        super().close()
        self._given.clear()
        self._constants.clear()
        self._pool = torch.empty(0)

    def _placed(self, name: str, step: Step) -> Tensor:
        """An input's values where the engine reads them: on the host, or on the device."""
        if (name, len(step.new)) in self._constants:
            return self._constants[name, len(step.new)]
        placed = torch.from_numpy(values_of(name, step, self._geometry))
        if self._stream is not None:
            placed = placed.pin_memory()
            if not name.startswith(HOST_PREFIX):
                placed = placed.to(self._device, non_blocking=True)
        if INPUTS[name].constant:
            self._constants[name, len(step.new)] = placed
        return placed


def pool_shape(config: ModelConfig, limits: Limits) -> tuple[int, ...]:
    """[blocks, layers, keys and values, kv_heads, rows of a block, head_dim]."""
    return (
        limits.num_blocks,
        config.num_layers,
        2,
        config.num_key_value_heads,
        limits.block_size,
        config.head_dim,
    )


def find_plugin(named: Path | None) -> Path:
    """The library's file: the one that was named, or that of the installed package. Raises
    ConfigError for a named file that does not exist, MissingPackageError without the package."""
    if named is not None:
        if not named.is_file():
            raise ConfigError(
                f"--plugin {named} is no file; name {LIBRARY.name} of tensorrt_llm {RELEASES[-1]}."
            )
        return named
    spec = find_spec("tensorrt_llm")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(folder) / LIBRARY).is_file():
            return Path(folder) / LIBRARY
    raise MissingPackageError(
        f"--runtime tensorrt_llm needs {LIBRARY.name}; install it with `pip install --no-deps "
        f"tensorrt_llm=={RELEASES[-1]}` from NVIDIA's own package index, or name the file with "
        "--plugin."
    )


def load_plugin(path: Path) -> None:
    """Load the library and register its plugins; `tensorrt` must have been imported. Raises
    ConfigError."""
    try:
        library = ctypes.CDLL(str(path.resolve()), mode=ctypes.RTLD_GLOBAL)
        register = library.initTrtLlmPlugins
    except (OSError, AttributeError) as error:
        raise ConfigError(
            f"{path} cannot be loaded ({error}); install the libraries it names, of the release "
            f"that the "
            "engine was built with."
        ) from None
    register.argtypes, register.restype = [ctypes.c_void_p, ctypes.c_char_p], ctypes.c_bool
    if not register(None, NAMESPACE):
        raise ConfigError(
            f"{path} registered no plugins; use the library of tensorrt_llm "
            f"{' or '.join(RELEASES)}, and "
            "the TensorRT release that belongs to it."
        )
