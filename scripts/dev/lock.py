"""Lock the dependencies of pyproject.toml: `python -m scripts.dev.lock` (needs uv).

uv.lock holds every package of every extra and group with the hashes of its files; run.sh and
test.sh install from it. requirements.txt is the part of it that a page needs, for pip and for a
Hugging Face Space. torch's CUDA libraries are in requirements-cuda.txt, to be given to pip as
constraints: as requirements, machines without a GPU would download them too. Pins stay as they are
where pyproject.toml allows it, unless `--upgrade` is given.
"""

from __future__ import annotations

import re
import subprocess
import sys

from moss_engine.api.errors import MissingPackageError, MossError
from moss_engine.config import REPO_ROOT
from scripts.command import make_parser, run_command

CUDA_LIBRARY = re.compile(r"(nvidia-|cuda-|triton==)")
MADE = "made by `python -m scripts.dev.lock`"
EXPORT = (
    "export --frozen --no-emit-project --no-default-groups --extra talk "
    "--no-hashes --no-annotate --no-header"
)


def run_uv(*arguments: str) -> str:
    """What a command of uv prints; raises MissingPackageError without uv, MossError if it fails."""
    command = [sys.executable, "-m", "uv", *arguments]
    done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True)
    if "No module named uv" in done.stderr:
        raise MissingPackageError("uv is not installed; run `python -m pip install uv`.")
    if done.returncode:
        raise MossError(f"uv found no set of versions; change pyproject.toml.\n{done.stderr}")
    return done.stdout


def requirements() -> dict[str, str]:
    """The text of each requirements file by its name, as uv.lock has it."""
    pins = run_uv(*EXPORT.split()).splitlines()
    return {
        "requirements.txt": _text(
            f"What a page needs, listening included; {MADE}.",
            [pin for pin in pins if not CUDA_LIBRARY.match(pin)],
        ),
        "requirements-cuda.txt": _text(
            f"The libraries of torch's CUDA build; {MADE}.\n"
            "# pip install -r requirements.txt -c requirements-cuda.txt",
            [pin for pin in pins if CUDA_LIBRARY.match(pin)],
        ),
    }


def _text(head: str, pins: list[str]) -> str:
    return "\n".join([f"# {head}", *pins, ""])


def main(argv: list[str] | None = None) -> None:
    parser = make_parser("dev.lock", __doc__)
    parser.add_argument("--upgrade", action="store_true", help="take newer versions")
    run_uv("lock", *(["--upgrade"] if parser.parse_args(argv).upgrade else []))
    for name, text in requirements().items():
        (REPO_ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    run_command(main)
