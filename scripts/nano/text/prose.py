"""Prose of packages: novels (public domain) and manuals (PostgreSQL licence, SQLite public domain, Python's licence).

Packages of Debian, unpacked into one folder: r-cran-janeaustenr, postgresql-doc-15, sqlite3-doc, python3.11-doc.
"""

from __future__ import annotations

import html
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from scripts.nano.text.word_sources import package_file

_STRING = b"\x00\x04\x00\x09"
"""The header of an ASCII string in R's serialisation; its length follows in four bytes."""
_SENTENCE = re.compile(
    r"(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\be\.g\.)(?<=[.!?])\s+(?=[\"“A-Z])"
)
_PLAIN = re.compile(r"[A-Z\"][A-Za-z ,;:'\"?!\-().]+[.?!]\"?")
_BLOCKS = re.compile(r"<(?:p|dd|li)\b[^>]*>(.*?)</(?:p|dd|li)>", re.S)


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
    """Sentences of words alone from the paragraphs of HTML manuals: no code, no names with underscores."""
    for path in sorted(root.rglob("*.html")):
        text = path.read_text(encoding="utf-8", errors="replace")
        for block in _BLOCKS.findall(text):
            if "<p" in block or "<li" in block:
                continue
            plain = html.unescape(re.sub(r"<[^>]+>", "", block))
            plain = (
                re.sub(r"\s+", " ", plain)
                .replace("’", "'")
                .replace("“", '"')
                .replace("”", '"')
                .strip()
            )
            for sentence in _split(plain):
                if _PLAIN.fullmatch(sentence) and not re.search(
                    r"\w\.\w|[A-Z]{6,}|\(\)|[a-z][A-Z]", sentence
                ):
                    yield sentence


def _split(text: str) -> Iterator[str]:
    for sentence in _SENTENCE.split(text):
        quotes = sentence.count('"')
        sentence = sentence.replace('"', "") if quotes % 2 else sentence
        if 12 <= len(sentence) <= 200:
            yield sentence.strip()
