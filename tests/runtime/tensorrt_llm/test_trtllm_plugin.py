"""The plugin's library: found by its package's folder, loaded by ctypes; the package itself is
never imported."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from moss_engine.api.errors import ConfigError, MissingPackageError
from moss_engine.runtime.tensorrt_llm import plugin as trtllm_plugin


def test_a_named_file(tmp_path: Path) -> None:
    (tmp_path / "plugin.so").touch()
    assert trtllm_plugin.find_plugin(tmp_path / "plugin.so") == tmp_path / "plugin.so"
    with pytest.raises(
        ConfigError, match=r"--plugin .* is no file; name libnvinfer_plugin_tensorrt_llm\.so"
    ):
        trtllm_plugin.find_plugin(tmp_path / "missing.so")


def test_in_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(trtllm_plugin, "find_spec", lambda name: spec)
    with pytest.raises(MissingPackageError, match=r"pip install --no-deps tensorrt_llm==1\.2\.1"):
        trtllm_plugin.find_plugin(None)
    (tmp_path / "libs").mkdir()
    (tmp_path / trtllm_plugin.LIBRARY).touch()
    assert trtllm_plugin.find_plugin(None) == tmp_path / trtllm_plugin.LIBRARY


def test_without_the_package() -> None:
    with pytest.raises(MissingPackageError, match="--plugin"):
        trtllm_plugin.find_plugin(None)


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "plugin.so").write_bytes(b"no library")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        trtllm_plugin.load_plugin(tmp_path / "plugin.so")


CODE = """
#include <stdbool.h>
#include <string.h>
bool %s(void* logger, char const* space) { return %d && !logger && !strcmp(space, "tensorrt_llm"); }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("name", "registers", "words"),
    [
        ("initTrtLlmPlugins", 1, ""),
        (
            "initTrtLlmPlugins",
            0,
            r"registered no plugins; use the library of tensorrt_llm 1\.0\.0 or 1\.2\.1",
        ),
        ("initOtherPlugins", 1, r"cannot be loaded .*initTrtLlmPlugins"),
    ],
)
def test_registration_is_checked(name: str, registers: int, words: str, tmp_path: Path) -> None:
    """A library of its own, called as the real one is."""
    (tmp_path / "plugin.c").write_text(CODE % (name, registers), encoding="utf-8")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", tmp_path / "plugin.so", tmp_path / "plugin.c"], check=True
    )
    with pytest.raises(ConfigError, match=words) if words else contextlib.nullcontext():
        trtllm_plugin.load_plugin(tmp_path / "plugin.so")
