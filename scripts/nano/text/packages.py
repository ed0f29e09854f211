"""What Debian's packages of text hold: WordNet, the Bible, word lists, novels, manuals.

All are unpacked under one root; README.md says how.
"""

from __future__ import annotations

import html
import re
import struct
import subprocess
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


def read_tables(name: str) -> dict[str, list[str]]:
    """Sections of a file of this folder -> their lines"""
    text = Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8")
    tables: dict[str, list[str]] = {}
    for line in filter(None, text.splitlines()):
        if line.startswith("== "):
            tables[line[3:]] = []
        else:
            tables[next(reversed(tables))].append(line)
    return tables


_TABLES = read_tables("packages")
KINDS = dict(line.split() for line in _TABLES["kinds"])
"""The names of WordNet's files of nouns -> the kind that these name."""
_WORDS, _ENDINGS = (
    "|".join(" ".join(_TABLES[name]).split()) for name in ("coarse", "endings of coarse words")
)
_COARSE = re.compile(rf"\b(?:{_WORDS})(?:{_ENDINGS})?\b", re.I)
_STRING = b"\x00\x04\x00\x09"
"""The header of an ASCII string in R's serialisation; its length follows in four bytes."""
_SENTENCE = re.compile(
    r"(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\be\.g\.)(?<=[.!?])\s+(?=[\"“A-Z])"
)
_PLAIN = re.compile(r"[A-Z\"][A-Za-z ,;:'\"?!\-().]+[.?!]\"?")
_CODE = re.compile(r"\w\.\w|[A-Z]{6,}|\(\)|[a-z][A-Z]")
_QUOTES = str.maketrans("’“”", '\'""')
_BLOCKS = re.compile(r"<(?:p|dd|li)\b[^>]*>(.*?)</(?:p|dd|li)>", re.S)


def is_coarse(text: str) -> bool:
    return _COARSE.search(text) is not None


def package_file(root: Path, path: str) -> Path:
    found = root / "usr" / path
    if not found.exists():
        raise SystemExit(
            f"{found} is missing; unpack the packages named in scripts/nano/README.md under {root}."
        )
    return found


@dataclass(frozen=True)
class Sense:
    """One meaning in WordNet; the definition is without brackets."""

    words: tuple[str, ...]
    part: str
    kind: str
    definition: str
    examples: tuple[str, ...]
    is_transitive: bool


def wordnet_senses(root: Path) -> Iterator[Sense]:
    for part in ("noun", "verb", "adj", "adv"):
        text = package_file(root, f"share/wordnet/data.{part}").read_text(encoding="latin-1")
        for line in text.splitlines():
            if line.startswith(" "):
                continue
            data, _, gloss = line.partition(" | ")
            fields = data.split()
            written = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
            words = tuple(re.sub(r"\(.*\)", "", w).replace("_", " ") for w in written)
            plain = re.sub(r"\s*\([^()]*\)", "", gloss.split('"')[0])
            definition = plain.split(";")[0].strip(" ;:,")
            examples = tuple(re.findall(r'"([^"]+)"', gloss))
            yield Sense(words, part, fields[1], definition, examples, " + 08 00" in data)


def word_counts(root: Path) -> dict[str, int]:
    """How often a word was tagged in WordNet's corpus, as any part of speech."""
    counts: dict[str, int] = {}
    text = package_file(root, "share/wordnet/cntlist.rev").read_text(encoding="latin-1")
    for line in text.splitlines():
        key, _, count = line.split()
        word = key.partition("%")[0].replace("_", " ")
        counts[word] = counts.get(word, 0) + int(count)
    return counts


def scowl_words(root: Path, largest: int) -> list[str]:
    """Words of the lists up to a size, most common lists first, without possessives."""
    folder = package_file(root, "share/dict/scowl")
    return _words_of(
        folder / f"{prefix}-words.{size}"
        for size in (10, 20, 35, 40, 50, 55, 60, 70)
        for prefix in ("english", "american")
        if size <= largest
    )


def scowl_names(root: Path, largest: int) -> list[str]:
    """Capitalised words: first names, surnames, places, peoples."""
    folder = package_file(root, "share/dict/scowl")
    lists = ("english-upper", "english-proper-names", "american-upper")
    paths = sorted(path for name in lists for path in folder.glob(f"{name}.*"))
    return _words_of(path for path in paths if int(path.suffix[1:]) <= largest)


def _words_of(paths: Iterable[Path]) -> list[str]:
    """The plain words of those lists that exist, each once, in their order."""
    texts = (path.read_text(encoding="latin-1") for path in paths if path.exists())
    words = (word for text in texts for word in text.split())
    return list(dict.fromkeys(word for word in words if word.isascii() and word.isalpha()))


def bible_verses(root: Path) -> list[str]:
    """All 31,102 verses, as the package's own reader gives them."""
    program, data = package_file(root, "bin/bible"), package_file(root, "lib/bible.data")
    done = subprocess.run(
        [program, "-l0", "-p", data.parent, "ge1:1-re22:21"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="latin-1",
        check=True,
    )
    verses = re.findall(r"^\s+\d+ (.+)$", done.stdout, re.M)
    return [
        re.sub(r"\b[A-Z]{3,}\b", lambda m: m[0].capitalize(), re.sub(r"\s+", " ", verse)).strip()
        for verse in verses
    ]


def novel_lines(root: Path) -> Iterator[str]:
    """Lines of the novels, straight from the package's data base of R."""
    data, at = package_file(root, "lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes(), 0
    while at < len(data):
        block = zlib.decompressobj()
        raw = block.decompress(data[at + 4 :])
        yield from _strings(raw)
        at = len(data) - len(block.unused_data)


def _strings(raw: bytes) -> Iterator[str]:
    at = raw.find(_STRING)
    while at >= 0:
        (length,) = struct.unpack(">i", raw[at + 4 : at + 8])
        yield raw[at + 8 : at + 8 + max(0, length)].decode("ascii", errors="replace")
        at = raw.find(_STRING, at + 8 + max(0, length))


def novel_sentences(root: Path) -> Iterator[str]:
    paragraph: list[str] = []
    for line in novel_lines(root):
        if line.strip():
            paragraph.append(line.strip())
            continue
        text = " ".join(paragraph).replace("_", "").replace("--", ", ").replace(" ,", ",")
        paragraph = []
        if not text.isupper() and not text.startswith(("CHAPTER", "VOLUME", "Chapter")):
            yield from _split(text)


def manual_sentences(root: Path) -> Iterator[str]:
    """Sentences of words alone from the paragraphs of HTML manuals: no code."""
    for path in sorted(root.rglob("*.html")):
        text = path.read_text(encoding="utf-8", errors="replace")
        for block in _BLOCKS.findall(text):
            if "<p" in block or "<li" in block:
                continue
            plain = html.unescape(re.sub(r"<[^>]+>", "", block)).translate(_QUOTES)
            for sentence in _split(re.sub(r"\s+", " ", plain).strip()):
                if _PLAIN.fullmatch(sentence) and not _CODE.search(sentence):
                    yield sentence


def _split(text: str) -> Iterator[str]:
    for sentence in _SENTENCE.split(text):
        quotes = sentence.count('"')
        sentence = sentence.replace('"', "") if quotes % 2 else sentence
        if 12 <= len(sentence) <= 200:
            yield sentence.strip()
