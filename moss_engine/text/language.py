"""Languages that a voice can read: how a text is spoken in each, and a guess of script and language
of what it cannot read. Pure.

The guess is cautious: names, code, single words and short English are never doubted, so that some
foreign texts pass.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from moss_engine.api.errors import ForeignTextError
from moss_engine.api.modes import Mode
from moss_engine.text.spoken.text import spoken_text


@dataclass(frozen=True)
class Language:
    """`name` as `foreign` gives it, `voice` as what is read is called in a sentence; `spoken_text`
    turns any text into the words that are said, "" where there are none."""

    name: str
    voice: str
    spoken_text: Callable[[str], str]


LANGUAGES = {"en": Language("English", "American English", spoken_text)}
"""By the `language` of a checkpoint's modes."""


def said(mode: Mode, text: str) -> str:
    """A text as it is read in a mode: its spoken words where the mode spells out."""
    return LANGUAGES[mode.language].spoken_text(text) if mode.spell_out else text


def check_language(mode: Mode, text: str, remedy: str) -> None:
    """Raise ForeignTextError, with the remedy, where the mode spells out what it reads and the text
    looks otherwise."""
    found = doubt(text, mode.language) if mode.spell_out else None
    if found is not None:
        raise ForeignTextError(f"{found}; {remedy}.")


def doubt(text: str, language: str = "en") -> str | None:
    """One sentence if `text` does not look like the language that is read, else None."""
    found, read = foreign(text), LANGUAGES[language]
    if found in (None, read.name):
        return None
    return f"This looks like {found}, and this voice reads {read.voice}"


MIN_FOREIGN_SHARE = 0.34
"""Of a text's letters: that much of another script is more than a name or a formula."""

_SCRIPTS = {
    "HIRAGANA": "Japanese",
    "KATAKANA": "Japanese",
    "HANGUL": "Korean",
    "CJK": "Chinese",
    "CYRILLIC": "Cyrillic script",
    "GREEK": "Greek",
    "ARABIC": "Arabic script",
    "HEBREW": "Hebrew",
    "DEVANAGARI": "Devanagari script",
    "BENGALI": "Bengali",
    "TAMIL": "Tamil",
    "TELUGU": "Telugu",
    "THAI": "Thai",
    "GEORGIAN": "Georgian",
    "ARMENIAN": "Armenian",
    "ETHIOPIC": "Ethiopic script",
    "KHMER": "Khmer",
    "LAO": "Lao",
    "MYANMAR": "Burmese",
    "GUJARATI": "Gujarati",
    "GURMUKHI": "Punjabi",
    "KANNADA": "Kannada",
    "MALAYALAM": "Malayalam",
    "SINHALA": "Sinhala",
    "TIBETAN": "Tibetan",
}
"""By how the names of their letters begin, which of them a text may be in."""
_WHOLE_WORDS = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL")  # one letter of others is mathematics
# Frequent words of each language that English has not; in capitals those that are also parts of
# names, which do not count alone.
# fmt: off
_FREQUENT = {
    "German": "der die das und ist nicht ich sie wir ein eine einen einem einer mit auf für den "
    "dem des zu zum zur wie heißt geht wo warum auch aber oder wenn noch nur sich bei aus nach "
    "über kann muss haben habe hat wird werden sind bist war mein meine dein guten danke bitte "
    "morgen heute sehr gut ja nein du hallo VON VAN",
    "French": "le les des est une un et dans pour que qui ne pas vous nous je il elle sur avec son "
    "sa ses ce cette ces mais ou où être avoir fait plus très bonjour merci comment allez oui non "
    "au aux du tout bien suis ça c'est j'ai d'un d'une qu'il n'est l'on DE LA",
    "Spanish": "una unos es está están y en que por para con no se lo como más pero su "
    "sus al muy hola gracias buenos buenas días qué cómo cuándo dónde yo tú él ella nosotros "
    "ustedes soy eres son hay fue ser tiene hace todo también señor mañana hablo español "
    "bien EL LOS LAS LA DE DEL",
    "Italian": "il gli della delle dei degli un una uno è e che di non per con sono sei siamo come "
    "ma più anche questo questa quello ciao grazie buongiorno molto bene perché dove quando cosa "
    "nel nella sul alla al mi ti ci si ho hai ha abbiamo stai LO LA DA DI",
    "Portuguese": "o os as um uma é e não que para por com em na nos nas ao à se mais mas como "
    "muito obrigado obrigada olá bom dia você eu ele ela nós são está estou tem fazer isso este "
    "esta também onde quando DO DA DOS DE",
    "Dutch": "het een en niet ik je jij wij zij dat dit van voor met op aan zijn ook maar naar om "
    "te er bij hoe gaat goed dank goedemorgen wat waar waarom heeft hebben ben bent geen nog wel "
    "zich moet kunnen DE VAN DER",
    "Swedish": "och att det som är på inte jag du vi ni han hon den ett av för med har till från "
    "om så vad hur hej tack mycket också men eller när där kan ska skulle vara blir",
    "Danish": "og at det som er på ikke jeg du vi han hun den et af for med har til fra om så hvad "
    "hvordan hej tak meget også men eller når hvor kan skal ville være bliver",
    "Norwegian": "og det som er på ikke jeg du vi han hun den et av for med har til fra om så hva "
    "hvordan hei takk veldig også men eller når hvor kan skal ville være blir",
    "Finnish": "ja on ei se että hän minä sinä olen olet ovat mutta kun niin myös kuin mitä missä "
    "hyvää kiitos päivää tämä joka oli ole voi nyt vain",
    "Polish": "i nie to się na jest że w z do jak co ale czy dla od po tak już tylko dzień dobry "
    "dziękuję proszę jestem są był była może przez gdzie",
    "Czech": "a je se na že to ne jsem jsou není jak co ale pro od po tak už jen dobrý den děkuji "
    "prosím byl byla může kde který která",
    "Hungarian": "a az és nem hogy egy van volt ez de meg is csak már még mint vagy köszönöm jó "
    "napot kérem vagyok hol mit mi",
    "Romanian": "și nu este un o la în cu pe că mai ce din pentru sunt eu tu el ea noi dar sau "
    "bună ziua mulțumesc foarte care unde când",
    "Turkish": "ve bir bu da de için ile çok ne var yok ama mi mı ben sen biz siz değil gibi daha "
    "merhaba teşekkür ederim nasıl olarak olan",
    "Vietnamese": "và là của không có một các cho được với người này tôi bạn trong đã những xin "
    "chào cảm ơn gì rất",
    "Indonesian": "dan yang di ini itu dengan untuk tidak adalah dari pada saya anda kami akan "
    "juga atau sudah ada bisa terima kasih selamat apa bagaimana ke",
    "Latin": "et est non ut ad sed cum quod qui quae dolor sit amet lorem ipsum consectetur "
    "adipiscing elit enim nec atque ergo sum in",
}
_ENGLISH = frozenset(
    "the of and to in is it you that he was for on are as with his they at be this have from or "
    "one had by but not what all were we when your can said there use an each which she do how "
    "their if will up other about out many then them these so some her would make like him into "
    "time has look two more go see no way could my than been who its now did get come may a i me "
    "did just over also back only new very after most our any because us am i'm don't it's isn't "
    "hello please thank thanks yes where why".split()
)
# fmt: on
_WORDS_OF = {
    name: (
        frozenset(word for word in words.split() if not word.isupper()),
        frozenset(word.lower() for word in words.split() if word.isupper()),
    )
    for name, words in _FREQUENT.items()
}
_CODE = re.compile(r"[\w)][_/\\.@=(){}\[\]<>:][\w(]|[_=(){}\[\]<>\\]|\d")
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


def foreign(text: str) -> str | None:
    """The script or the language that a text seems to be in, if it is not English."""
    return _script(text) or _language(text)


def _script(text: str) -> str | None:
    if text.isascii():
        return None
    found: Counter[str] = Counter()
    for word in _WORD.findall(text):
        if len(word) > 1 or _script_of(word).startswith(_WHOLE_WORDS):
            found.update(map(_script_of, word))
    del found[""]
    if found.total() < 2 or found.total() < MIN_FOREIGN_SHARE * sum(map(str.isalpha, text)):
        return None
    languages = Counter[str]()
    for prefix, count in found.items():
        languages[_SCRIPTS[prefix]] += count
    if languages["Japanese"] and languages["Chinese"]:
        return "Japanese"
    return languages.most_common(1)[0][0]


@lru_cache(maxsize=4096)
def _script_of(letter: str) -> str:
    """How the names of a script's letters begin; "" where it is Latin, or unknown."""
    name = unicodedata.name(letter, "").removeprefix("HALFWIDTH ")
    return next((prefix for prefix in _SCRIPTS if name.startswith(prefix)), "")


def _language(text: str) -> str | None:
    prose = " ".join(part for part in text.split() if not _CODE.search(part))
    words = Counter(word.lower().replace("’", "'") for word in _WORD.findall(prose))
    num_words = words.total()
    if num_words < 2:
        return None
    english = _count(words, _ENGLISH)
    best = max(_WORDS_OF, key=lambda name: _hits(words, name))
    hits = _hits(words, best)
    distinct = len(words.keys() & _WORDS_OF[best][0])
    accented = not all(map(str.isascii, words))
    enough = distinct >= (2 if num_words < 8 or accented else 3)
    return best if enough and hits >= 0.25 * num_words and hits > 2 * english else None


def _hits(words: Counter[str], language: str) -> float:
    frequent, in_names = _WORDS_OF[language]
    plain = _count(words, frequent)
    return plain + 0.5 * _count(words, in_names) if plain else 0


def _count(words: Counter[str], known: frozenset[str]) -> int:
    return sum(words[word] for word in words.keys() & known)
