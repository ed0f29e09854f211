"""TensorRT-LLM's plugin library, found and loaded without importing that package."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

from moss_engine.api.errors import ConfigError, MissingPackageError

RELEASES = ("1.0.0", "1.2.1")
"""Of tensorrt_llm: with CUDA 12, and with CUDA 13. Later ones have no engine files."""
NAMESPACE = b"tensorrt_llm"
LIBRARY = Path("libs") / "libnvinfer_plugin_tensorrt_llm.so"


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
