"""Modules and functions stay small enough to be read at once."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAX_MODULE_LINES = 300
MAX_FUNCTION_LINES = 50
MAX_MEDIAN_LINES = 120
# A kernel is one program of the GPU: what it shares with others is in functions of its own already.
LONG_KERNELS = {
    ("moss_engine/kernels/codec/conformer.py", "_attend_kernel"),
    ("moss_engine/kernels/lm/attend_decode.py", "attend_decode_kernel"),
}


def modules(*folders: str) -> dict[Path, str]:
    paths = [ROOT / "app.py", *(path for name in folders for path in (ROOT / name).rglob("*.py"))]
    return {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in paths}


def lines(text: str) -> int:
    return len(text.splitlines())


def test_no_module_is_long():
    found = {str(path): lines(text) for path, text in modules("moss_engine", "scripts").items()}
    assert not {path: count for path, count in found.items() if count > MAX_MODULE_LINES}


def test_the_median_module_is_short():
    assert statistics.median(map(lines, modules("moss_engine").values())) <= MAX_MEDIAN_LINES


def test_no_function_is_long():
    long = {
        (path.as_posix(), node.name): node.end_lineno - node.lineno + 1
        for path, text in modules("moss_engine", "scripts").items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
    }
    assert set(long) <= LONG_KERNELS, long
    assert set(long) == LONG_KERNELS, f"no longer long: {LONG_KERNELS - set(long)}"
