"""Imports point one way, every optional package has one home, and importing does nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A module imports from its own layer or from one before it. A folder's name stands for everything inside it.
LAYERS = (
    ("errors", "tokens", "request", "events", "config", "validation", "turn_taking"),
    ("sequence", "metrics", "models", "modes", "tokenizer", "spoken", "audio", "audio_file",
     "voice_activity"),
    ("sampler", "processor", "block_manager", "scheduler", "runtime", "codec"),
    ("engine", "handle", "checkup", "speaker"),
    ("service",),
    ("build",),
    ("ui",),
)
OFFLINE = "export"  # reads the models; read by scripts only

# Third-party packages and the only modules that name them.
HOMES = {
    "torch": ("models", "sampler", "runtime", "codec", "service", "speaker", "build", "export"),
    "safetensors": ("models",),
    "tokenizers": ("tokenizer",),
    "anyascii": ("spoken",),
    "soundfile": ("audio", "audio_file", "codec"),
    "bigvgan": ("codec.bigvgan",),
    "yaml": ("codec.yaml_file",),
    "onnxruntime": ("codec.campplus", "voice_activity"),
    "gradio": ("ui",),
    "starlette": ("ui",),
    "triton": ("runtime.kernels",),
    "tensorrt": ("runtime", "export"),
    "tensorrt_rtx": ("runtime", "export"),
    "tensorrt_llm": ("runtime", "export"),
}
EVERYWHERE = {"numpy"}
OPTIONAL = ("triton", "tensorrt", "tensorrt_rtx", "tensorrt_llm", "bigvgan", "onnxruntime", "scipy", "librosa",
            "matplotlib", "huggingface_hub", "transformers", "hibari", "moonshine_voice", "pytest")
# Imported in functions, once they are asked for: they need a package that not every machine has, or start slowly.
ON_DEMAND = ("runtime.cuda", "runtime.kernels", "runtime.trt", "ui", "export")
WITHOUT_TORCH = ("errors", "tokens", "request", "events", "config", "validation", "sequence", "metrics", "modes",
                 "tokenizer", "spoken.sentences", "spoken.text", "processor", "block_manager", "scheduler",
                 "turn_taking", "voice_activity")


def module_name(path: Path) -> str:
    """moss_engine/models/config.py -> "models.config"; a package's own name for its __init__."""
    parts = path.relative_to(ROOT / "moss_engine").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((ROOT / "moss_engine").rglob("*.py"))}


def imported_names(path: Path) -> set[str]:
    """Every absolute name that a file imports, at any depth; `from a import b` counts as a.b."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import; name the module in full"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own_imports(path: Path) -> set[str]:
    """The modules of moss_engine that a file imports, without the prefix."""
    found = set()
    for name in imported_names(path):
        if name.startswith("moss_engine."):
            inner = name.removeprefix("moss_engine.")
            found.add(inner if inner in MODULES else inner.rpartition(".")[0])
    return found - {""}


def layer(name: str) -> int:
    for number, members in enumerate(LAYERS):
        if any(is_inside(name, member) for member in members):
            return number
    raise AssertionError(f"moss_engine.{name} stands in no layer; give it a place in LAYERS")


def is_inside(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place}.")


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", [name for name in MODULES if name and not is_inside(name, OFFLINE)])
def test_imports_point_one_way(name):
    later = {other for other in own_imports(MODULES[name]) if is_inside(other, OFFLINE) or layer(other) > layer(name)}
    assert not later, f"moss_engine.{name} must not import {later}"


def test_no_import_cycle():
    left = {name: own_imports(path) - {name} for name, path in MODULES.items()}
    while free := [name for name, needs in left.items() if not needs & set(left)]:
        for name in free:
            del left[name]
    assert not left, f"these modules import each other in a circle: {sorted(left)}"


def test_the_package_imports_neither_scripts_nor_the_app():
    for name, path in MODULES.items():
        outside = {other.partition(".")[0] for other in imported_names(path)} & {"scripts", "app", "tests"}
        assert not outside, f"moss_engine.{name} imports {outside}"


@pytest.mark.parametrize("name", MODULES)
def test_every_package_stays_at_home(name):
    for other in {other.partition(".")[0] for other in imported_names(MODULES[name])}:
        if other in sys.stdlib_module_names or other in EVERYWHERE or other == "moss_engine":
            continue
        assert other in HOMES, f"moss_engine.{name} imports {other}, which has no home in this table"
        assert any(is_inside(name, home) for home in HOMES[other]), f"moss_engine.{name} must not import {other}"


def test_the_bare_package_is_light():
    heavy = run_python(
        "import sys, moss_engine, moss_engine.config, moss_engine.errors\n"
        "print(sorted({'torch', 'gradio', 'numpy', 'tokenizers'} & set(sys.modules)))"
    )
    assert heavy == "[]"


def test_decisions_are_made_without_torch():
    names = [f"moss_engine.{name}" for name in WITHOUT_TORCH]
    assert run_python(
        "import importlib, sys\nsys.modules['torch'] = None\n"
        f"for name in {names}: importlib.import_module(name)\nprint('imported')"
    ) == "imported"


def test_every_module_imports_without_optional_packages_and_does_nothing():
    names = [f"moss_engine.{name}" for name in MODULES if name and not name.startswith(ON_DEMAND)]
    assert run_python(
        "import importlib, logging, sys, threading\n"
        f"sys.modules.update(dict.fromkeys({OPTIONAL}))\n"
        f"for name in {names}: importlib.import_module(name)\n"
        "print(threading.active_count(), logging.getLogger().handlers)"
    ) == "1 []"
