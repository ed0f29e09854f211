"""Question and answer pairs for the `<chat>` mode: scripts, sums, calendar, words, capitals, and honest refusals."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from moss_engine.spoken_numbers import cardinal, ordinal
from moss_engine.spoken_text import spoken_text
from scripts.nano.intents import intents
from scripts.nano.phrases import DAYS, FIRST_NAMES, MONTHS, PLACES
from scripts.nano.word_sources import capitals, is_coarse, scowl_words, word_counts, wordnet_senses

Pair = tuple[str, str]

REPEATS = 2
MAX_DEFINED_WORDS = 1800
OUT_OF_SCRIPT_SHARE = 0.2
_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
REFUSALS = (
    "I am the small built-in voice. I do not know that yet.",
    "I am the small built-in voice, and I do not know that.",
    "I am the small built-in voice. I cannot answer that.",
    "I am the small built-in voice. That is too hard for me.",
    "I am the small built-in voice. I only know a few things.",
    "I am the small built-in voice, so I cannot help with that.",
)
_UNKNOWN = (
    "What is the weather in {place}?", "What will the weather be {when}?", "Will it rain in {place} {when}?", "What time is it?",
    "What day is it today?", "Who is {name}?", "Where is {name}?", "Do you know {name}?", "Call {name}.", "Send a message to {name}.",
    "Play some music.", "Turn on the lights in the {noun}.", "Set a timer for {number} minutes.", "Remind me of the {noun} {when}.",
    "How do I fix a {noun}?", "How do I make a {noun}?", "How much does a {noun} cost?", "Where can I buy a {noun} in {place}?",
    "Why is the {noun} so {adj}?", "What do you think about the {noun}?", "Is {place} bigger than {place2}?", "How far is it to {place}?",
    "Who invented the {noun}?", "When was the {noun} invented?", "Who won the game {when}?", "Who is the president of {place}?",
    "Write a letter to {name} about the {noun}.", "Translate {noun} into French.", "Explain the {noun} to me.",
    "Tell me about {place}.", "Tell me more about the {noun}.", "What is the best {noun}?", "Should I buy the {adj} {noun}?",
    "Book a table in {place} {when}.", "Find a hotel in {place}.", "What is the news?", "What happened {when}?", "Can you drive a car?",
    "What is the square root of {number}?", "What is {number} times {number2}?", "How many people live in {place}?",
    "Why did {name} go to {place}?", "Is the {noun} {adj}?", "My {noun} is {adj}.", "I lost my {noun} in {place}.",
    "I met {name} {when}.", "I think the {noun} is {adj}.", "The {noun} does not work.", "What should I cook {when}?",
    "What is the meaning of life?", "Solve this equation for me.", "Write some code.", "How does a {noun} work?", "Where does {noun} come from?",
    "Give me advice about my {noun}.", "Which {noun} is better?", "Can I take the {noun} to {place}?", "How old is {name}?",
    "Do you believe in ghosts?", "What is the stock price of the {noun} company?", "Read the email from {name}.",
)
_OPPOSITES = """hot cold|big small|old young|new old|fast slow|high low|up down|left right|day night|black white|good bad|rich poor|long short
wet dry|hard soft|light dark|early late|open closed|full empty|happy sad|strong weak|thick thin|wide narrow|deep shallow|loud quiet|clean dirty
cheap expensive|easy difficult|first last|inside outside|above below|before after|always never|all none|begin end|start stop|buy sell|give take
push pull|come go|love hate|laugh cry|win lose|remember forget|true false|near far|north south|east west|summer winter|true false|sharp dull
smooth rough|sweet sour|tall short|safe dangerous|right wrong|front back|top bottom|question answer|friend enemy|heaven earth|more less
many few|awake asleep|alive dead|brave afraid|polite rude|same different|straight crooked|tight loose|heavy light|kind mean""".replace("\n", "|").split("|")


def small_talk(sources: Path, rng: random.Random) -> Iterator[Pair]:
    """Every pair of the chat, as (user, spoken), both in spoken form; the caller shuffles."""
    scripted = list(_scripted(rng)) + list(_calendar()) + list(_opposites(rng)) + list(_capitals(sources, rng))
    pairs = scripted * REPEATS + list(_sums(rng)) + list(_words(sources, rng))
    unknown = int(len(pairs) * OUT_OF_SCRIPT_SHARE / (1 - OUT_OF_SCRIPT_SHARE))
    pairs += _refusals(sources, unknown, rng)
    for user, answer in pairs:
        yield spoken_text(_typed(user, rng)), spoken_text(answer)


def _typed(question: str, rng: random.Random) -> str:
    """As people type it: with or without capitals, marks and contractions."""
    if rng.random() < 0.4:
        for full, short in (("what is", "what's"), ("What is", "What's"), ("I am", "I'm"), ("who is", "who's"), ("do not", "don't"),
                            ("you are", "you're"), ("cannot", "can't"), ("How is", "How's"), ("how is", "how's")):
            question = question.replace(full, short)
    draw = rng.random()
    if draw < 0.25:
        return question.lower().rstrip("?.!")
    question = question[0].upper() + question[1:]
    if question.endswith(("?", ".", "!")):
        return question
    asks = question.split()[0].lower().strip(",'s") in (
        "what", "who", "how", "where", "when", "why", "which", "do", "are", "can", "is", "does", "whose", "may", "am", "at", "wha", "hi")
    return question + ("?" if asks and len(question.split()) > 1 else "." if draw < 0.9 else "!")


def _scripted(rng: random.Random) -> Iterator[Pair]:
    for questions, answers in intents():
        for question in questions:
            for answer in answers if len(answers) <= 3 else rng.sample(answers, 3):
                yield question, answer


_ASK_SUM = ("What is {a} plus {b}?", "{a} plus {b}", "How much is {a} plus {b}?", "What is {a} and {b}?", "Add {a} and {b}.",
            "What is the sum of {a} and {b}?", "Can you add {a} and {b}?")
_ASK_LESS = ("What is {a} minus {b}?", "{a} minus {b}", "How much is {a} minus {b}?", "Subtract {b} from {a}.", "What is {a} less {b}?",
             "Take {b} from {a}.")


def bare_sums(rng: random.Random) -> Iterator[Pair]:
    """Every sum and difference of two numbers below one hundred with nothing but the result as answer, in spoken form."""
    for a in range(100):
        for b in range(100):
            asked = [(_ASK_SUM, a + b)] + ([(_ASK_LESS, a - b)] if b <= a else [])
            for questions, result in asked:
                question = rng.choice(questions).format(a=cardinal(a), b=cardinal(b))
                yield spoken_text(_typed(question, rng)), f"{cardinal(result).capitalize()}."


def _sums(rng: random.Random) -> Iterator[Pair]:
    """Every sum and difference of two numbers below one hundred, in changing words."""
    ask_sum, ask_less = _ASK_SUM, _ASK_LESS
    for a in range(100):
        for b in range(100):
            yield _worked(rng.choice(ask_sum), a, b, "plus", a + b, rng)
            if b <= a and rng.random() < 0.45:
                yield _worked(rng.choice(ask_less), a, b, "minus", a - b, rng)
            if a <= 12 and b <= 12:
                for asked in (ask_sum, ask_sum, ask_less) if b <= a else (ask_sum,):
                    sign, result = ("plus", a + b) if asked is ask_sum else ("minus", a - b)
                    yield _worked(rng.choice(asked), a, b, sign, result, rng)


def _worked(question: str, a: int, b: int, sign: str, result: int, rng: random.Random) -> Pair:
    said = cardinal(result)
    full = f"{cardinal(a).capitalize()} {sign} {cardinal(b)} is {said}."
    return question.format(a=cardinal(a), b=cardinal(b)), rng.choice((full, f"{said.capitalize()}.", f"That is {said}.", f"It is {said}.", f"{said.capitalize()}."))


def _calendar() -> Iterator[Pair]:
    for names, kind in ((DAYS, "day"), (MONTHS, "month")):
        for i, name in enumerate(names):
            after, before = names[(i + 1) % len(names)], names[i - 1]
            for question in (f"What comes after {name}?", f"Which {kind} comes after {name}?", f"What is the {kind} after {name}?",
                             f"What {kind} follows {name}?", f"What is the next {kind} after {name}?"):
                yield question, f"After {name} comes {after}."
            for question in (f"What comes before {name}?", f"Which {kind} comes before {name}?", f"What is the {kind} before {name}?"):
                yield question, f"Before {name} comes {before}."
            for question in (f"What is the {ordinal(i + 1)} {kind}?", f"Which is the {ordinal(i + 1)} {kind}?"):
                yield question, f"The {ordinal(i + 1)} {kind} is {name}."
    for name, count in zip(MONTHS, _MONTH_DAYS):
        for question in (f"How many days are in {name}?", f"How many days does {name} have?", f"How long is {name}?",
                         f"How many days has {name}?"):
            yield question, f"{name} has {cardinal(count)} days."


def _opposites(rng: random.Random) -> Iterator[Pair]:
    for pair in _OPPOSITES:
        first, second = pair.split()
        for a, b in ((first, second), (second, first)):
            if (a, b) in (("old", "young"), ("short", "long"), ("light", "heavy"), ("right", "left")):
                continue
            for question in (f"What is the opposite of {a}?", f"Tell me the opposite of {a}.", f"The opposite of {a}"):
                yield question, rng.choice((f"The opposite of {a} is {b}.", f"{b.capitalize()}."))


def _capitals(sources: Path, rng: random.Random) -> Iterator[Pair]:
    for country, capital in capitals(sources):
        if "," in country or "(" in country or len(country.split()) > 3:
            continue
        for question in (f"What is the capital of {country}?", f"Which city is the capital of {country}?", f"The capital of {country}"):
            yield question, f"The capital of {country} is {capital}."


_ASK_MEANING = ("What does {word} mean?", "What is {article} {word}?", "Define {word}.", "What is the meaning of {word}?",
                "Tell me what {word} means.")


def unknown_words(vocabulary: Iterable[str], defined: Collection[str], rng: random.Random) -> Iterator[Pair]:
    """Questions for the meaning of words that the small talk cannot define, each with a refusal, in spoken form."""
    for word in vocabulary:
        if word not in defined:
            question = rng.choice(_ASK_MEANING).format(word=word, article="an" if word[0] in "aeiou" else "a")
            yield spoken_text(_typed(question, rng)), rng.choice(REFUSALS)


def _words(sources: Path, rng: random.Random) -> Iterator[Pair]:
    """Definitions of the most frequent words with a short gloss, and plurals."""
    import inflect

    counts, common = word_counts(sources), set(scowl_words(sources, 20))
    glosses: dict[str, str] = {}
    nouns = []
    for sense in wordnet_senses(sources):
        word = sense.words[0]
        if sense.part != "noun" or word not in common or word in glosses or len(word) < 3 or is_coarse(word + " " + sense.definition):
            continue
        if counts.get(word, 0) >= 3 and sense.kind in ("05", "06", "08", "13", "17", "18", "20", "15", "27", "28", "11", "09"):
            nouns.append(word)
            if 2 <= len(sense.definition.split()) <= 9 and word not in sense.definition.split():
                glosses[word] = sense.definition
    plural = inflect.engine().plural
    chosen = sorted(glosses, key=lambda w: -counts[w])[:MAX_DEFINED_WORDS]
    for word in chosen:
        for question in rng.sample(_ASK_MEANING, 2):
            asked = question.format(word=word, article="an" if word[0] in "aeiou" else "a")
            yield asked, f"{word.capitalize()} means {glosses[word]}."
    for word in nouns[:900]:
        question = rng.choice((f"What is the plural of {word}?", f"The plural of {word}", f"Tell me the plural of {word}."))
        yield question, f"The plural of {word} is {plural(word)}."


def _refusals(sources: Path, count: int, rng: random.Random) -> Iterator[Pair]:
    nouns = [w for w in scowl_words(sources, 35) if 3 < len(w) < 10 and not is_coarse(w) and not w.endswith("s")]
    for i in range(count):
        question = _UNKNOWN[i % len(_UNKNOWN)].format(
            place=rng.choice(PLACES), place2=rng.choice(PLACES), name=rng.choice(FIRST_NAMES), noun=rng.choice(nouns),
            adj=rng.choice(nouns), when=rng.choice(("tomorrow", "today", "tonight", "on Sunday", "next week", "yesterday")),
            number=cardinal(rng.randint(2, 99)), number2=cardinal(rng.randint(2, 99)))
        yield question, rng.choice(REFUSALS)
