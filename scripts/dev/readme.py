"""Rewrite what the documents derive from the program: `python -m scripts.dev.readme --write`.

Each derived part stands between two comments with its name; PLACES says in which document. Without
--write the command only says whether the documents are up to date.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from moss_engine.api.errors import MossError
from moss_engine.api.metrics import RequestMetrics
from moss_engine.config import REPO_ROOT, ClusterConfig, EngineConfig, TalkConfig
from moss_engine.ui.config import PageConfig
from scripts.bench.report import drawn
from scripts.command import make_parser, run_command

README = REPO_ROOT / "README.md"
DOCS = REPO_ROOT / "docs"
BESIDE = (
    ("scripts/", "Commands over moss_engine"),
    ("  bench/", "Measurements: the model, the codec, the service, and their reports"),
    ("  dev/", "Commands for those who change the program"),
    ("  judges/", "How intelligible and how good speech is"),
    ("  nano/", "How the built-in voice was made"),
    ("  turns/", "When is somebody's turn over: what is learned from spoken turns"),
    ("docs/", "Architecture, networks, full size, engine files"),
    ("assets/nano/", "The built-in voice"),
    ("assets/bench/", "Measurements"),
    ("tests/", "What must hold; those of the page drive a browser"),
)
"""What lies beside the program."""


def tree() -> str:
    """Every package with the first sentence of its docstring, and what lies beside them."""
    lines = [("app.py", _first_sentence(REPO_ROOT / "app.py"))]
    for path in sorted(path.parent for path in (REPO_ROOT / "moss_engine").rglob("__init__.py")):
        indent = "  " * (len(path.relative_to(REPO_ROOT).parts) - 1)
        lines.append((f"{indent}{path.name}/", _first_sentence(path / "__init__.py")))
    shown = [f"{name:<26} {purpose}" for name, purpose in (*lines, *BESIDE)]
    return "\n".join(["```", *shown, "```"])


def _first_sentence(path: Path) -> str:
    """Of a file's docstring, which may go over several lines."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.split(r"\.(?:\s|$)", " ".join(docstring.split()))[0]


def options() -> str:
    """The table of all options of all config classes."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for config in (EngineConfig, TalkConfig, ClusterConfig, PageConfig):
        lines += [_option(field) for field in dataclasses.fields(config)]
    return "\n".join(lines)


def _option(field: dataclasses.Field[object]) -> str:
    flag = "--" + field.name.replace("_", "-")
    choices = field.metadata["choices"]
    meaning = field.metadata["help"] + (f" ({', '.join(choices)})" if choices else "")
    return f"| `{flag}` | {_shown(field.default)} | {meaning} |"


def _shown(default: object) -> str:
    if isinstance(default, Path):
        return default.relative_to(REPO_ROOT).as_posix()
    if isinstance(default, bool):
        return "on" if default else "off"
    return "" if default is None else f"{default:g}" if isinstance(default, float) else str(default)


def figures() -> str:
    """What every figure means, from RequestMetrics."""
    lines = ["| figure | unit | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(RequestMetrics):
        lines.append(f"| `{field.name}` | {field.metadata['unit']} | {field.metadata['meaning']} |")
    return "\n".join(lines)


SECTIONS: dict[str, Callable[[], str]] = {
    "summary": partial(drawn, "summary"),
    "tree": tree,
    "options": options,
    "figures": figures,
    "benchmarks": partial(drawn, "headlines"),
}
PLACES = {
    README: ("summary",),
    DOCS / "architecture.md": ("tree",),
    DOCS / "options.md": ("options", "figures"),
    DOCS / "speed.md": ("benchmarks",),
}


def render(text: str, names: tuple[str, ...]) -> str:
    """The text with its derived parts made anew; raises MossError for a missing place."""
    for name in names:
        begin, end = (
            f"<!-- {name}: python -m scripts.dev.readme --write -->",
            f"<!-- end of {name} -->",
        )
        if text.count(begin) != 1 or text.count(end) != 1:
            raise MossError(f"There is no place for {name}; add these two lines: {begin} {end}")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{SECTIONS[name]().strip()}\n{end}{rest.partition(end)[2]}"
    return text


def documents() -> dict[Path, str]:
    """What every derived document should hold; raises MossError for a missing place."""
    return {path: render(path.read_text(encoding="utf-8"), names) for path, names in PLACES.items()}


def main() -> None:
    parser = make_parser("dev.readme", __doc__)
    parser.add_argument(
        "--write", action="store_true", help="rewrite them instead of only comparing"
    )
    args = parser.parse_args()
    for path, text in documents().items():
        if args.write:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            raise MossError(
                f"{path.relative_to(REPO_ROOT)} is out of date; run: "
                "python -m scripts.dev.readme --write"
            )


if __name__ == "__main__":
    run_command(main)
