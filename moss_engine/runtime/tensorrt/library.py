"""TensorRT and TensorRT-RTX, whichever was asked for: the module, its version and what differs
between releases."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from moss_engine.api.errors import ConfigError, MissingPackageError

_MODULES = {
    "tensorrt": ("tensorrt",),
    "tensorrt_rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings"),
    "tensorrt_llm": ("tensorrt",),
}
"""Where each library may be found, the package of all parts before the bindings alone."""
_OLDEST = {"tensorrt": (8, 6), "tensorrt_rtx": (1, 4), "tensorrt_llm": (10, 4)}
_RTX_UNSERVED = {(9, 0): "H100 and H200"}


@dataclass(frozen=True)
class Library:
    """`module` is the package's own; `release` its version's first two numbers."""

    backend: str
    module: Any
    version: str
    release: tuple[int, int]

    @property
    def strongly_typed(self) -> bool:
        """Whether a tensor's type is the one that the network gives it. Before release 10 it is a
        wish, made binding layer by layer.
        """
        return self.backend == "tensorrt_rtx" or self.release >= (10, 0)

    @property
    def wide_io(self) -> bool:
        """Whether floating-point inputs of fused layers are float32, whatever the network says:
        release 8.6 turns float16 ones into that, and back, in every step, which takes longer than
        the step itself.
        """
        return not self.strongly_typed

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Number formats in which a network can be built."""
        return (
            ("float32", "float16", "bfloat16", "float8")
            if self.strongly_typed
            else ("float32", "float16")
        )

    def logger(self) -> Any:
        """Warnings and errors go to the program's standard error."""
        return self.module.Logger(self.module.Logger.WARNING)


def load_library(backend: str) -> Library:
    """Import the package that a backend ("tensorrt", "tensorrt_rtx" or "tensorrt_llm") runs on;
    raises MissingPackageError with the command that installs it, and ConfigError as `describe`
    does."""
    for name in _MODULES[backend]:
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise _missing(backend, str(error)) from None
        except (ImportError, OSError, RuntimeError) as error:
            raise _missing(backend, str(error)) from None
        else:
            return describe(backend, module)
    raise _missing(backend, "the package is not installed")


def describe(backend: str, module: Any) -> Library:
    """What this module is; raises ConfigError for a release older than the oldest that is
    served."""
    version = str(module.__version__)
    release = tuple(int(number) for number in version.split(".")[:2])
    assert len(release) == 2, f"{backend} calls its version {version!r}"
    if release < _OLDEST[backend]:
        oldest = ".".join(map(str, _OLDEST[backend]))
        raise ConfigError(
            f"{backend} {version} is installed and {oldest} is the oldest that can be used; "
            f"install one "
            f"with {_install(backend)}."
        )
    return Library(backend, module, version, release)


def compute_capability(library: Library, device: torch.device) -> str:
    """That of the GPU, as "8.9"; raises ConfigError where the library refuses it."""
    capability = torch.cuda.get_device_capability(device)
    if library.backend == "tensorrt_rtx" and capability in _RTX_UNSERVED:
        raise ConfigError(
            f"TensorRT-RTX does not run on compute capability {capability[0]}.{capability[1]} "
            f"({_RTX_UNSERVED[capability]}); use --runtime tensorrt or torch."
        )
    return f"{capability[0]}.{capability[1]}"


def _install(backend: str) -> str:
    command = f'`pip install ".[{backend}]"` in this program\'s folder'
    return (
        command
        if backend == "tensorrt_rtx"
        else command + " (give pip NVIDIA's own package index with --extra-index-url)"
    )


def _missing(backend: str, reason: str) -> MissingPackageError:
    return MissingPackageError(
        f"{backend} needs the package {_MODULES[backend][0]} ({reason}); install it with "
        f"{_install(backend)}, or do without engine files: --runtime torch."
    )
