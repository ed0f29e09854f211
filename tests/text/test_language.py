"""Which texts are doubted before a voice that reads English tries them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from moss_engine.api.modes import PUBLISHED_MODES
from moss_engine.text.language import LANGUAGES, Language, doubt, foreign, said
from moss_engine.text.spoken.text import spoken_text
from tests.text.test_spoken_text import TABLE

FOREIGN = {
    "Guten Morgen, wie geht es dir?": "German",
    "Wie heißt du?": "German",
    "Das Wetter ist heute sehr schön.": "German",
    "Bonjour, comment allez-vous ?": "French",
    "Je ne sais pas où est la gare.": "French",
    "Buenos días, ¿cómo está usted?": "Spanish",
    "No hablo español muy bien.": "Spanish",
    "Non capisco cosa vuoi dire.": "Italian",
    "Eu não falo inglês.": "Portuguese",
    "Ik weet het niet.": "Dutch",
    "Hej, hur mår du?": "Swedish",
    "Jeg forstår ikke hvad du siger.": "Danish",
    "Hyvää päivää, mitä kuuluu?": "Finnish",
    "Nie wiem, co to jest.": "Polish",
    "Dobrý den, jak se máte?": "Czech",
    "Jó napot, hogy van?": "Hungarian",
    "Bună ziua, ce mai faci?": "Romanian",
    "Bu çok güzel bir gün.": "Turkish",
    "Xin chào, bạn khỏe không?": "Vietnamese",
    "Saya tidak tahu itu.": "Indonesian",
    "Lorem ipsum dolor sit amet.": "Latin",
    "你好，今天天气很好。": "Chinese",
    "今日は、元気ですか。": "Japanese",
    "안녕하세요": "Korean",
    "Привет, как дела?": "Cyrillic script",
    "Γειά σου Κόσμε": "Greek",
    "مرحبا كيف حالك": "Arabic script",
    "שלום עולם": "Hebrew",
    "नमस्ते दुनिया": "Devanagari script",
    "สวัสดีครับ": "Thai",
}
READABLE = (
    "",
    "42",
    "a",
    "OK",
    "Hello",
    "what's your name",
    "Bonjour",
    "Die, monster, die! The die is cast.",
    "Juan de la Cruz met Maria del Carmen in Los Angeles.",
    "Los Alamos, Las Vegas, El Paso, San Jose",
    "Ludwig van Beethoven, Leonardo da Vinci, Vincent van Gogh",
    "Café de la Paix",
    "The word Привет means hello in Russian.",
    "The angle α is 45 degrees, and π is a number.",
    "α β γ",
    "So is he. Do as I do. Sit on it.",
    "A la carte, et cetera, e pluribus unum",
    "Que sera, sera",
    "SELECT * FROM users WHERE id = 5;",
    "def main(self, args): return None",
    "ls -la; rm -rf /tmp; cd; man sed",
    "ha ha ha, no no no, lol",
    "A K, GDB",
    "😀👍",
)


@pytest.mark.parametrize(("text", "said"), FOREIGN.items(), ids=FOREIGN.values())
def test_foreign_texts_are_named(text: str, said: str) -> None:
    assert foreign(text) == said
    assert doubt(text) == f"This looks like {said}, and this voice reads American English"


@pytest.mark.parametrize("text", READABLE, ids=lambda text: text[:30])
def test_english_names_and_code_are_not_doubted(text: str) -> None:
    assert doubt(text) is None


def test_what_the_normalisation_is_tested_with_is_english() -> None:
    assert [text for text in TABLE if foreign(text)] == ["日本"]


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


def work_s(text: str) -> float:
    """Processor time, the least of three: what else the machine does hardly counts."""
    return min(_once_s(text) for _ in range(3))


def _once_s(text: str) -> float:
    begun_s = time.thread_time()
    doubt(text)
    spoken_text(text)
    return time.thread_time() - begun_s


@pytest.mark.parametrize("unit", LONG, ids=ascii)
def test_time_grows_with_the_length_of_a_text(unit):
    """Twice as long takes twice as long, by and large; a square would take 16 times for 4."""
    short, long = ((unit * size)[:size] for size in (1024, 4096))
    work_s(short[:100])
    short_s, long_s = work_s(short), work_s(long)
    assert long_s < 0.9
    assert long_s < 8 * short_s + 0.02
