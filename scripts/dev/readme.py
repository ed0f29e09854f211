"""Rewrite what the documents derive from the program: `python -m scripts.dev.readme --write`.

Derived parts stand each between two comments that name them; PLACES says in which document. Without
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
from moss_engine.config import REPO_ROOT, ClusterConfig, EngineConfig, TalkConfig
from moss_engine.ui.config import PageConfig
from scripts.bench.report import drawn
from scripts.command import make_parser, run_command

README = REPO_ROOT / "README.md"
DOCS = REPO_ROOT / "docs"
NAME_WIDTH = 26
MAX_CHARS = 92


def tree() -> str:
    """Every folder and package with the first sentence of its docstring."""
    lines = [_line("app.py", REPO_ROOT / "app.py"), _folder("moss_engine", "")]
    for path in sorted(path.parent for path in (REPO_ROOT / "moss_engine").rglob("*/__init__.py")):
        name = path.relative_to(REPO_ROOT).as_posix()
        lines.append(_folder(name, "  " * name.count("/")))
    lines += [_folder("scripts", "")]
    lines += [
        _folder(f"scripts/{name}", "  ") for name in ("bench", "dev", "judges", "nano", "turns")
    ]
    lines += [_folder("docs", "")]
    lines += [_folder(f"assets/{name}", "") for name in ("nano", "bench")]
    return _block([*lines, _folder("tests", "")])


def _block(lines: list[str]) -> str:
    return "\n".join(["```", *(line.rstrip() for line in lines), "```"])


def _folder(name: str, indent: str) -> str:
    shown = name if not indent else name.rpartition("/")[2]
    return _line(f"{indent}{shown}/", REPO_ROOT / name / "__init__.py")


FOLDERS = {
    "assets/nano": "The built-in voice",
    "assets/bench": "Measurements",
    "docs": "Architecture, networks, full size, engine files",
    "scripts": "Commands over moss_engine",
    "scripts/bench": "Measurements: the model, the codec, the service, and their reports",
    "scripts/dev": "Commands for those who change the program",
    "scripts/judges": "How intelligible and how good speech is, for benches and tests",
    "scripts/nano": "How the built-in voice was made",
    "tests": "What must hold; those of the page drive a browser",
}


def _line(name: str, path: Path) -> str:
    folder = path.parent.relative_to(REPO_ROOT).as_posix()
    own = FOLDERS.get(folder) if path.name == "__init__.py" and not path.exists() else purpose(path)
    return f"{name:<{NAME_WIDTH}} {own or ''}"


def purpose(path: Path) -> str:
    """The first sentence of a file's docstring, cut where it is long."""
    first = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = re.sub(r"\s+", " ", first.strip().split("\n\n")[0]).replace("`", "")
    sentence = re.split(r"(?<=[^.])\.(?:\s|$)", paragraph)[0].strip().rstrip(":")
    return (
        sentence
        if len(sentence) <= MAX_CHARS
        else re.split(r"[,;:](?=[^,;:]*$)", sentence[:MAX_CHARS])[0]
    )


def options() -> str:
    """The table of all options, of all configs."""
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
    from moss_engine.api.metrics import RequestMetrics

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
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            raise MossError(
                f"{path.relative_to(REPO_ROOT)} is out of date; run: python -m scripts.dev.readme "
                f"--write"
            )


if __name__ == "__main__":
    run_command(main)
