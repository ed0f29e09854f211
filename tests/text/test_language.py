"""Which texts are doubted before a voice that reads English tries them."""

from __future__ import annotations

import time

import pytest

from moss_engine.text.language import doubt, foreign
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


def test_the_longest_text_takes_no_time() -> None:
    for unit in ("a.b(", "и", "der die das ", "_" * 40 + " "):
        begun_s = time.process_time()
        foreign(unit * (4000 // len(unit)))
        assert time.process_time() - begun_s < 0.5
