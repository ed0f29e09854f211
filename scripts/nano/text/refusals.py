"""Questions off the script of the small talk, and the two refusals."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from moss_engine.text.spoken.cardinals import cardinal
from scripts.nano.text.names import FIRST_NAMES, PLACES
from scripts.nano.text.word_sources import is_coarse, scowl_words

Pair = tuple[str, str]
"""A question and its answer."""
OFF_SCRIPT_QUESTIONS = 9000

REFUSAL = "I am the small built-in voice. I do not know that yet."

WORD_REFUSAL = "I am the small built-in voice. I do not know that word."

REFUSALS = (REFUSAL, WORD_REFUSAL)

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


def off_script(sources: Path, rng: random.Random) -> Iterator[Pair]:
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
