"""Which texts are doubted before a voice that reads English tries them."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from moss_engine.text.language import LANGUAGES, Language, doubt, said
from moss_engine.text.modes import PUBLISHED_MODES
from moss_engine.text.spoken.text import spoken_text
from tests.text.test_spoken_text import TABLE

TEXTS = json.loads(Path(__file__).with_name("language.json").read_text(encoding="utf-8"))
FOREIGN: dict[str, str] = TEXTS["foreign"]
"""Texts, and what they look like."""


@pytest.mark.parametrize("text", FOREIGN, ids=FOREIGN.values())
def test_foreign_texts_are_named(text: str) -> None:
    assert doubt(text) == f"This looks like {FOREIGN[text]}, and this voice reads American English"


def test_english_names_code_and_what_the_normalisation_is_tested_with_are_not_doubted() -> None:
    assert [text for text in (*TEXTS["readable"], *TABLE) if doubt(text)] == ["日本"]


def test_another_language_is_an_entry(monkeypatch):
    """A Spanish that is shouted: what it says is read, and its own texts are not doubted."""
    loud = Language("Spanish", "Spanish", str.upper)
    monkeypatch.setitem(LANGUAGES, "es", loud)
    mode = replace(PUBLISHED_MODES.default, language="es", spell_out=True)
    assert said(mode, "hola") == "HOLA"
    assert said(replace(mode, spell_out=False), "hola") == "hola"
    spanish = "No hablo español muy bien."
    assert doubt(spanish, "es") is None and doubt(spanish)
    assert doubt("Guten Morgen, wie geht es dir?", "es") == (
        "This looks like German, and this voice reads Spanish"
    )


LONG = (
    "\u200d", "½", "?!", "a-", "9^", "1,", "~ ", "Jan-", "-1", "...", "[", "a.b(", "и", "der die ",
    "_" * 40 + " ", " ", "i<10 ",
    "The cat sat on 3 mats. ", "a@", "5%-", "😀", "(", "a\n", "1-a-", "β",
)  # fmt: skip
"""Units of texts without sense: of each, 4,096 characters once took up to a second and more."""


@pytest.mark.parametrize("unit", LONG, ids=ascii)
def test_no_text_takes_long(unit):
    """Processor time, the least of three: what else the machine does hardly counts."""
    text, took_s = (unit * 4096)[:4096], []
    for _ in range(3):
        begun_s = time.thread_time()
        doubt(text)
        spoken_text(text)
        took_s.append(time.thread_time() - begun_s)
    assert min(took_s) < 0.5
