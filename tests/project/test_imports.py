"""Imports point one way, packages stay at home, and importing does nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What the modules of a folder may import besides each other: modules of this program and packages
# of others. "x" stands for the module or the package x, or the modules directly in the folder x,
# "x.*" for everything below it. A module is held by its own line if it has one, else by that of the
# nearest folder that has one.
ALLOWED = {
    "": "client",
    "client": "api audio build config options",
    # The two programs, which are loaded by `programs`.
    "programs": "",
    "serve": "api build cluster config heap options talk ui ui.entrance gradio",
    "say": "api audio build config options text.language",
    "api": "",
    "options": "api",
    "heap": "",
    "config": "api options",
    "audio": "api onnxruntime soundfile soxr",
    "audio.unpack": "av",
    "models": "api safetensors torch",
    "kernels": "torch triton",
    "kernels.lm": "kernels models torch triton",
    "kernels.codec": "kernels torch triton",
    "runtime": "api config models torch",
    "runtime.engine_manifest": "api runtime pydantic",
    "runtime.make": "api config models runtime.* torch",
    "runtime.eager": "api models runtime torch",
    "runtime.cuda": "api models runtime kernels kernels.lm torch",
    "runtime.tensorrt": "api config models runtime safetensors torch",
    "runtime.tensorrt_llm": "api config models runtime runtime.tensorrt torch",
    "engine": "api config runtime",
    "text": "api models text.spoken tokenizers",
    "text.spoken": "anyascii",
    "codec": "api models soxr torch yaml",
    "codec.load": "api config models codec.* torch",
    "codec.nano": "api models codec codec.vocoder torch",
    "codec.moss": "api models codec codec.vocoder codec.vocoder.hift codec.moss.flow "
    "onnxruntime torch",
    "codec.moss.flow": "api codec kernels kernels.codec torch",
    "codec.vocoder": "api models codec codec.vocoder.hift kernels.codec torch",
    "codec.vocoder.hift": "api codec kernels.codec torch",
    "service": "api audio config codec engine recogniser torch",
    # Several services as one. What carries the calls is imported once a cluster is asked for.
    "cluster": "api config models service",
    "cluster.build": "api build cluster cluster.serve config talk",
    "cluster.serve": "api build cluster config heap options ray",
    # Who listens knows nothing of who answers.
    "recogniser": "api onnxruntime",
    # Answers are text, said by the service below; how a text is spoken is known to `text`.
    "talk": "api service text text.spoken httpx",
    "checkup": "api models codec.* text",
    "build": "api audio config checkup models text runtime codec engine service recogniser talk",
    # Programs are a second kind of page: they know the service's values, sound, and nothing of ui.
    "endpoints": "api audio text.beside text.language endpoints.* "
    "aiortc anyio av mcp prometheus_client pydantic soundfile starlette",
    "ui": "api audio endpoints options text.language ui.* gradio starlette",
    # What becomes of a question: it knows the page's handlers, not its layout.
    "ui.audio_in": "api audio",
    "ui.entrance": "api ui.audio_in brotli gradio h11 starlette uvicorn",
    "ui.components": "",
    "ui.parts": "api ui ui.components",
    "export": "api models runtime runtime.tensorrt runtime.tensorrt_llm "
    "tensorrt tensorrt_llm torch",
}

EVERYWHERE = {"", "numpy"}
OPTIONAL = (
    "aiortc av triton tensorrt tensorrt_rtx tensorrt_llm bigvgan onnxruntime scipy librosa "
    "matplotlib huggingface_hub transformers hibari moonshine_voice mcp ray pytest"
)
# Imported in functions, once they are asked for: they need a package that not every machine has, or
# start slowly.
ON_DEMAND = tuple(
    "runtime.cuda codec.moss.flow.cuda kernels runtime.tensorrt ui export cluster.serve "
    "endpoints.realtime.calls".split()
)
DECISIONS = tuple(
    "api config audio text recogniser engine.block_manager engine.scheduler engine.sequence".split()
)


def module_name(path: Path) -> str:
    """moss_engine/models/config.py -> "models.config"; a package's own name for its __init__."""
    parts = path.relative_to(ROOT / "moss_engine").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((ROOT / "moss_engine").rglob("*.py"))}


@cache
def imports(name: str) -> set[str]:
    """What a module imports at any depth, without "moss_engine."; `from a import b` is a.b."""
    names, found = set(), set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import; name the module in full"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    for first, _, inner in (full.partition(".") for full in names):
        if first == "moss_engine":
            found.add(inner if inner in MODULES else inner.rpartition(".")[0])
        elif first not in sys.stdlib_module_names:
            found.add(first)
    return found - EVERYWHERE


def folder(name: str) -> str:
    return name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]


def is_named(name: str, place: str) -> bool:
    """Whether an entry of ALLOWED stands for a module or a package."""
    if place.endswith(".*"):
        return f"{name}.".startswith(place.removesuffix("*"))
    return name == place or (name in MODULES and folder(name) == place)


def allowed(name: str) -> list[str]:
    line = name
    while line not in ALLOWED:
        assert line, f"moss_engine.{name} stands in no line of ALLOWED; give its folder one"
        line = line.rpartition(".")[0]
    return [folder(name), *ALLOWED[line].split()]


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_imports_point_one_way_and_packages_stay_at_home(name):
    places = allowed(name)
    others = {o for o in imports(name) if not any(is_named(o, place) for place in places)}
    assert not others, f"moss_engine.{name} must not import {others}"


def test_every_line_of_the_table_stands_for_something():
    known = {*MODULES}.union(*map(imports, MODULES))
    for place in {*ALLOWED, *" ".join(ALLOWED.values()).split()}:
        assert any(is_named(name, place) for name in known), f"{place} is nothing any more"


def test_no_modules_import_each_other_in_a_circle():
    graph = {name: imports(name) - {name} for name in MODULES}
    assert {*TopologicalSorter(graph).static_order()} >= {*MODULES}


LOADED = {
    "the bare package": (["", "config", "api.errors"], "torch gradio numpy tokenizers"),
    "decisions": ([n for n in MODULES if any(is_named(n, f"{d}.*") for d in DECISIONS)], "torch"),
    "all but what is asked for": ([n for n in MODULES if not n.startswith(ON_DEMAND)], OPTIONAL),
}


@pytest.mark.parametrize(("names", "absent"), LOADED.values(), ids=LOADED)
def test_modules_load_without_these_packages_and_do_nothing(names, absent):
    code = (
        "import importlib, logging, sys, threading\n"
        f"sys.modules.update(dict.fromkeys({absent.split()}))\n"
        f"for name in {names}: importlib.import_module(f'moss_engine.{{name}}'.rstrip('.'))\n"
        "print(threading.active_count(), logging.getLogger().handlers)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "1 []", done.stderr
