"""Question and answer pairs for the `<chat>` mode: scripts, sums, calendar, words, capitals, and honest refusals."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from moss_engine.text.spoken.cardinals import cardinal, ordinal
from moss_engine.text.spoken.dates import MONTHS
from moss_engine.text.spoken.text import spoken_text
from scripts.nano.text.intents import intents
from scripts.nano.text.names import DAYS, FIRST_NAMES, PLACES
from scripts.nano.text.word_sources import (
    capitals,
    is_coarse,
    main_noun_senses,
    scowl_words,
    word_counts,
)

COMMON_WORDS, THING_WORDS = 250, 250
"""So many words are defined: the most frequent, and of the others the most frequent names of things."""
_THINGS = ("05", "06", "08", "13", "17", "20")
UNKNOWN_WORDS = 9000
OFF_SCRIPT_QUESTIONS = 9000
HELD_SHARE = 0.05
"""Of the questions that have no answer of their own, so many are kept out of the training."""
MAX_SUMMAND = 12
"""Sums and differences of numbers up to this one are known; those of larger ones, below one hundred, are refused."""
LARGE_SUMS = 3000
REFUSAL = "I am the small built-in voice. I do not know that yet."
WORD_REFUSAL = "I am the small built-in voice. I do not know that word."
REFUSALS = (REFUSAL, WORD_REFUSAL)
_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_UNKNOWN = (
    "What is the weather in {place}?",
    "What will the weather be {when}?",
    "Will it rain in {place} {when}?",
    "What time is it?",
    "What day is it today?",
    "Who is {name}?",
    "Where is {name}?",
    "Do you know {name}?",
    "Call {name}.",
    "Send a message to {name}.",
    "Play some music.",
    "Turn on the lights in the {noun}.",
    "Set a timer for {number} minutes.",
    "Remind me of the {noun} {when}.",
    "How do I fix a {noun}?",
    "How do I make a {noun}?",
    "How much does a {noun} cost?",
    "Where can I buy a {noun} in {place}?",
    "Why is the {noun} so {adj}?",
    "What do you think about the {noun}?",
    "Is {place} bigger than {place2}?",
    "How far is it to {place}?",
    "Who invented the {noun}?",
    "When was the {noun} invented?",
    "Who won the game {when}?",
    "Who is the president of {place}?",
    "Write a letter to {name} about the {noun}.",
    "Translate {noun} into French.",
    "Explain the {noun} to me.",
    "Tell me about {place}.",
    "Tell me more about the {noun}.",
    "What is the best {noun}?",
    "Should I buy the {adj} {noun}?",
    "Book a table in {place} {when}.",
    "Find a hotel in {place}.",
    "What is the news?",
    "What happened {when}?",
    "Can you drive a car?",
    "What is the square root of {number}?",
    "What is {number} times {number2}?",
    "How many people live in {place}?",
    "Why did {name} go to {place}?",
    "Is the {noun} {adj}?",
    "My {noun} is {adj}.",
    "I lost my {noun} in {place}.",
    "I met {name} {when}.",
    "I think the {noun} is {adj}.",
    "The {noun} does not work.",
    "What should I cook {when}?",
    "Solve this equation for me.",
    "Write some code.",
    "How does a {noun} work?",
    "Where does {noun} come from?",
    "Give me advice about my {noun}.",
    "Which {noun} is better?",
    "Can I take the {noun} to {place}?",
    "How old is {name}?",
    "Do you believe in ghosts?",
    "What is the stock price of the {noun} company?",
    "Read the email from {name}.",
    "What is {big} plus {number}?",
    "What is {big} minus {big2}?",
    "{big} plus {big2}",
    "What is {number} divided by {number2}?",
    "{number} times {number2}",
    "How do you say {noun} in French?",
    "Do you like {place}?",
    "Do you like the {noun}?",
    "Tell me the news from {place}.",
    "Can you help me with my {noun}?",
    "Why do people like the {noun}?",
    "Who lives in {place}?",
    "What did {name} say {when}?",
    "Sing me a song about the {noun}.",
    "What is the population of {place}?",
    "How is the weather {when} in {place}?",
)
_OPPOSITES = """hot cold|big small|old young|new old|fast slow|high low|up down|left right|day night|black white|good bad|rich poor|long short
wet dry|hard soft|light dark|early late|open closed|full empty|happy sad|strong weak|thick thin|wide narrow|deep shallow|loud quiet|clean dirty
cheap expensive|easy difficult|first last|inside outside|above below|before after|always never|all none|begin end|start stop|buy sell|give take
push pull|come go|love hate|laugh cry|win lose|remember forget|true false|near far|north south|east west|summer winter|true false|sharp dull
smooth rough|sweet sour|tall short|safe dangerous|right wrong|front back|top bottom|question answer|friend enemy|heaven earth|more less
many few|awake asleep|alive dead|brave afraid|polite rude|same different|straight crooked|tight loose|heavy light|kind mean""".replace(
    "\n", "|"
).split("|")
_OPENERS = ("please", "hey", "hello", "hi", "okay", "so", "well", "um", "tell me", "nano")
_SHORTENED = (
    ("what is", "what's"),
    ("What is", "What's"),
    ("I am", "I'm"),
    ("who is", "who's"),
    ("do not", "don't"),
    ("you are", "you're"),
    ("cannot", "can't"),
    ("How is", "How's"),
    ("how is", "how's"),
)
_ASKING = frozenset(
    "what who how where when why which do are can is does whose may am at wha hi".split()
)


@dataclass(frozen=True)
class Talk:
    """One question, as typed, and the one answer to it, both in spoken form; `is_held`: kept out of the training."""

    kind: str
    user: str
    spoken: str
    is_held: bool


def small_talk(sources: Path, rng: random.Random) -> Iterator[Talk]:
    """Every pair of the chat by kind, each question as it stands and in ways in which people type it."""
    plain = {
        "intents": (list(_scripted()), 6),
        "calendar": (list(_calendar()), 2),
        "opposites": (list(_opposites()), 3),
        "capitals": (list(_capitals(sources)), 3),
        "meanings": (list(_meanings(sources)), 2),
        "plurals": (list(_plurals(sources)), 2),
        "sums": (list(_sums()), 1),
        "large sums": (list(_large_sums(rng)), 1),
        "unknown words": (list(_unknown_words(sources, rng)), 1),
        "off the script": (list(_off_script(sources, rng)), 1),
    }
    for kind, (pairs, ways) in plain.items():
        for user, answer in pairs:
            is_held = answer in REFUSALS and rng.random() < HELD_SHARE
            asked = dict.fromkeys(
                [spoken_text(user), *(spoken_text(typed(user, rng)) for _ in range(ways))]
            )
            for question in asked:
                yield Talk(kind, question, spoken_text(answer), is_held)


def typed(question: str, rng: random.Random) -> str:
    """As people type it: with or without capitals, marks, contractions, apostrophes and a word before it."""
    if rng.random() < 0.4:
        for full, short in _SHORTENED:
            question = question.replace(full, short)
        if rng.random() < 0.25:
            question = question.replace("'", "")
    if rng.random() < 0.12:
        first = question[0] if question.startswith("I ") else question[0].lower()
        question = f"{rng.choice(_OPENERS)}{rng.choice((',', ''))} {first}{question[1:]}"
    elif rng.random() < 0.06:
        question = question.rstrip("?.!") + rng.choice((" please", ", please"))
    draw = rng.random()
    if draw < 0.25:
        return question.lower().rstrip("?.!")
    question = question[0].upper() + question[1:]
    if question.endswith(("?", ".", "!")):
        return question
    asks = question.split()[0].lower().strip(",'s") in _ASKING
    return question + ("?" if asks and len(question.split()) > 1 else "." if draw < 0.9 else "!")


Pair = tuple[str, str]


def _scripted() -> Iterator[Pair]:
    for questions, answer in intents():
        yield from ((question, answer) for question in questions)


_ASK_SUM = (
    "What is {a} plus {b}?",
    "{a} plus {b}",
    "How much is {a} plus {b}?",
    "What is {a} and {b}?",
    "Add {a} and {b}.",
    "What is the sum of {a} and {b}?",
    "Can you add {a} and {b}?",
)
_ASK_LESS = (
    "What is {a} minus {b}?",
    "{a} minus {b}",
    "How much is {a} minus {b}?",
    "Subtract {b} from {a}.",
    "What is {a} less {b}?",
    "Take {b} from {a}.",
)


def _sums() -> Iterator[Pair]:
    """Every sum and difference of two small numbers, in all the ways to ask for it."""
    for a in range(MAX_SUMMAND + 1):
        for b in range(MAX_SUMMAND + 1):
            for ways, result in ((_ASK_SUM, a + b), (_ASK_LESS, a - b)):
                if result >= 0:
                    for way in ways:
                        yield (
                            way.format(a=cardinal(a), b=cardinal(b)),
                            f"{cardinal(result).capitalize()}.",
                        )


def _large_sums(rng: random.Random) -> Iterator[Pair]:
    for _ in range(LARGE_SUMS):
        pair = [rng.randint(MAX_SUMMAND + 1, 99), rng.randint(0, rng.choice((MAX_SUMMAND, 99)))]
        rng.shuffle(pair)
        way = rng.choice(rng.choice((_ASK_SUM, _ASK_LESS)))
        yield way.format(a=cardinal(pair[0]), b=cardinal(pair[1])), REFUSAL


def _calendar() -> Iterator[Pair]:
    for names, kind in ((DAYS, "day"), (MONTHS, "month")):
        for i, name in enumerate(names):
            after, before = names[(i + 1) % len(names)], names[i - 1]
            for question in (
                f"What comes after {name}?",
                f"Which {kind} comes after {name}?",
                f"What is the {kind} after {name}?",
                f"What {kind} follows {name}?",
                f"What is the next {kind} after {name}?",
                f"What {kind} is after {name}?",
            ):
                yield question, f"After {name} comes {after}."
            for question in (
                f"What comes before {name}?",
                f"Which {kind} comes before {name}?",
                f"What is the {kind} before {name}?",
                f"What {kind} is before {name}?",
            ):
                yield question, f"Before {name} comes {before}."
            for question in (
                f"What is the {ordinal(i + 1)} {kind}?",
                f"Which is the {ordinal(i + 1)} {kind}?",
            ):
                yield question, f"The {ordinal(i + 1)} {kind} is {name}."
    for name, count in zip(MONTHS, _MONTH_DAYS):
        for question in (
            f"How many days are in {name}?",
            f"How many days does {name} have?",
            f"How long is {name}?",
            f"How many days has {name}?",
            f"How many days are there in {name}?",
        ):
            yield question, f"{name} has {cardinal(count)} days."


def _opposites() -> Iterator[Pair]:
    for pair in _OPPOSITES:
        first, second = pair.split()
        for a, b in ((first, second), (second, first)):
            if (a, b) in (
                ("old", "young"),
                ("short", "long"),
                ("light", "heavy"),
                ("right", "left"),
            ):
                continue
            for question in (
                f"What is the opposite of {a}?",
                f"Tell me the opposite of {a}.",
                f"The opposite of {a}",
            ):
                yield question, f"The opposite of {a} is {b}."


_MORE_CAPITALS = {
    "Mexico": "Mexico City",
    "the United States": "Washington",
    "America": "Washington",
    "the United Kingdom": "London",
    "England": "London",
    "Scotland": "Edinburgh",
    "Wales": "Cardiff",
    "the Netherlands": "Amsterdam",
    "Russia": "Moscow",
    "South Korea": "Seoul",
    "Vietnam": "Hanoi",
    "Syria": "Damascus",
    "South Africa": "Pretoria",
}


def _capitals(sources: Path) -> Iterator[Pair]:
    listed = {
        country: city
        for country, city in capitals(sources)
        if not any(mark in country + city for mark in ",(;")
    }
    for country, capital in (listed | _MORE_CAPITALS).items():
        for question in (
            f"What is the capital of {country}?",
            f"Which city is the capital of {country}?",
            f"The capital of {country}",
            f"Tell me the capital of {country}.",
            f"What is the capital city of {country}?",
        ):
            yield question, f"The capital of {country} is {capital}."


_ASK_MEANING = (
    "What does {word} mean?",
    "What is {article} {word}?",
    "Define {word}.",
    "What is the meaning of {word}?",
    "Tell me what {word} means.",
    "What does the word {word} mean?",
    "Do you know what {word} means?",
    "Tell me the meaning of {word}.",
    "Explain the word {word}.",
    "What is meant by {word}?",
)


def _asked(way: str, word: str) -> str:
    return way.format(word=word, article="an" if word[0] in "aeiou" else "a")


def defined_words(sources: Path) -> dict[str, str]:
    """The most frequent nouns whose main meaning has a short definition, with it."""
    counts, common = word_counts(sources), set(scowl_words(sources, 35))
    scripted = {
        question.split()[-1].lower()
        for questions, _ in intents()
        for question in questions
        if question.startswith("what is ")
    }
    found = {}
    for word, sense in main_noun_senses(sources).items():
        definition = sense.definition
        is_plain = definition.replace("-", "").replace(",", "").replace(" ", "").isalpha()
        if (
            word in common
            and word not in scripted
            and len(word) > 2
            and counts.get(word, 0) >= 2
            and 2 <= len(definition.split()) <= 8
            and is_plain
            and word not in definition
            and not is_coarse(f"{word} {definition}")
        ):
            found[word] = sense
    ranked = sorted(found, key=lambda word: (-counts[word], word))
    things = [word for word in ranked[COMMON_WORDS:] if found[word].kind in _THINGS][:THING_WORDS]
    return {word: found[word].definition for word in (*ranked[:COMMON_WORDS], *things)}


def _meanings(sources: Path) -> Iterator[Pair]:
    for word, definition in defined_words(sources).items():
        for way in _ASK_MEANING:
            yield _asked(way, word), f"{word.capitalize()} means {definition}."


def _unknown_words(sources: Path, rng: random.Random) -> Iterator[Pair]:
    """Questions for the meaning of words that are not defined here, the common ones among them first."""
    asked_for = {
        question.split()[-1].lower() for questions, _ in intents() for question in questions
    }
    known: Collection[str] = defined_words(sources).keys() | asked_for
    usable = [
        w
        for w in scowl_words(sources, 50)
        if w.islower() and len(w) > 2 and w not in known and not is_coarse(w)
    ]
    names = [name for name in (*PLACES, *FIRST_NAMES) if name.lower() not in known]
    half = UNKNOWN_WORDS // 2
    chosen = [*usable[:half], *rng.sample(usable[half:], min(half, len(usable) - half)), *names]
    for word in chosen:
        yield _asked(rng.choice(_ASK_MEANING), word), WORD_REFUSAL


def _plurals(sources: Path) -> Iterator[Pair]:
    import inflect  # pyright: ignore[reportMissingImports]

    counts, common, plural = (
        word_counts(sources),
        set(scowl_words(sources, 20)),
        inflect.engine().plural,
    )
    nouns = [
        w
        for w in main_noun_senses(sources)
        if w in common and counts.get(w, 0) >= 5 and len(w) > 2 and not is_coarse(w)
    ]
    for word in sorted(nouns, key=lambda word: (-counts[word], word))[:700]:
        if not word.endswith("s"):
            for question in (
                f"What is the plural of {word}?",
                f"The plural of {word}",
                f"Tell me the plural of {word}.",
            ):
                yield question, f"The plural of {word} is {plural(word)}."


def _off_script(sources: Path, rng: random.Random) -> Iterator[Pair]:
    nouns = [
        w
        for w in scowl_words(sources, 35)
        if 3 < len(w) < 10 and w.islower() and not is_coarse(w) and not w.endswith("s")
    ]
    for i in range(OFF_SCRIPT_QUESTIONS):
        question = _UNKNOWN[i % len(_UNKNOWN)].format(
            place=rng.choice(PLACES),
            place2=rng.choice(PLACES),
            name=rng.choice(FIRST_NAMES),
            noun=rng.choice(nouns),
            adj=rng.choice(nouns),
            when=rng.choice(
                ("tomorrow", "today", "tonight", "on Sunday", "next week", "yesterday")
            ),
            number=cardinal(rng.randint(2, 99)),
            number2=cardinal(rng.randint(2, 99)),
            big=cardinal(rng.randint(100, 999)),
            big2=cardinal(rng.randint(100, 999)),
        )
        yield question, REFUSAL
