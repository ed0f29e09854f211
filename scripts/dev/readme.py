"""Rewrite what the documents derive from the program: `python -m scripts.dev.readme --write`.

Derived parts stand each between two comments that name them; PLACES says in which document. All
measurements have a document that is derived as a whole. Without --write the
command only says whether the documents are up to date.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import re
import sys
from collections.abc import Callable
from pathlib import Path

from moss_engine.api.errors import MossError
from moss_engine.config import REPO_ROOT, ClusterConfig, EngineConfig, TalkConfig
from moss_engine.ui.config import PageConfig
from scripts.bench.report import headlines, measurements, summary

README = REPO_ROOT / "README.md"
DOCS = REPO_ROOT / "docs"
MEASUREMENTS = REPO_ROOT / "assets" / "bench" / "README.md"
SCREENSHOT = "assets/screenshot.png"
SAMPLES = "assets/samples"
NAME_WIDTH = 26
MAX_CHARS = 92


def tree() -> str:
    """Every folder and package with the first sentence of its docstring."""
    lines = [_line("app.py", REPO_ROOT / "app.py"), _folder("moss_engine", "")]
    lines += [
        _folder(
            path.relative_to(REPO_ROOT).as_posix(),
            "  " * (len(path.relative_to(REPO_ROOT).parts) - 1),
        )
        for path in sorted(
            path.parent for path in (REPO_ROOT / "moss_engine").rglob("*/__init__.py")
        )
    ]
    lines += [_folder("scripts", "")]
    lines += [_folder(f"scripts/{name}", "  ") for name in ("bench", "dev", "judges", "nano")]
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
    """The first sentence of a file's docstring or leading comment, cut where it is long."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        first = ast.get_docstring(ast.parse(text)) or ""
    else:
        comments = re.match(r"(?:#!.*\n)?((?:(?:#|//|/?\*+/?).*\n)+)", text)
        first = (
            re.sub(r"^\s*(?:#|//|/\*+|\*+/?)\s?", "", comments[1], flags=re.M) if comments else ""
        )
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


def screenshot() -> str:
    """The picture of the page, where there is one."""
    return (
        f"![The page while a reply is playing]({SCREENSHOT})"
        if (REPO_ROOT / SCREENSHOT).is_file()
        else ""
    )


def samples() -> str:
    """Section with the built-in voice's sound files and pictures of assets/samples."""
    files = sorted(
        path for path in (REPO_ROOT / SAMPLES).glob("*") if path.suffix in (".flac", ".wav", ".png")
    )
    links = [f"[{path.stem.replace('_', ' ')}]({SAMPLES}/{path.name})" for path in files]
    marks = [f"!{link}" if link.endswith(".png)") else link for link in links]
    return "\n\n".join(["### The built-in voice", *marks]) if files else ""


SECTIONS: dict[str, Callable[[], str]] = {
    "screenshot": screenshot,
    "samples": samples,
    "summary": summary,
    "tree": tree,
    "options": options,
    "figures": figures,
    "benchmarks": headlines,
}
PLACES = {
    README: ("screenshot", "samples", "summary"),
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
    found = {
        path: render(path.read_text(encoding="utf-8"), names) for path, names in PLACES.items()
    }
    return found | {MEASUREMENTS: measurements()}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.dev.readme", description="Rewrite the derived documents."
    )
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
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
