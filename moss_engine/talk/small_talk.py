"""Small talk without an LLM: tools, then canned answers, then saying that it does not know."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime

from moss_engine.talk import by_heart, calculator, tools
from moss_engine.talk.answer import Answerer, Part, Question, Say
from moss_engine.talk.wording import TABLES, bare, words
from moss_engine.text.beside import beside

MAX_SESSIONS = 256
MAX_CHARS = 400
"""A longer question is searched for a text to repeat and for a sum alone."""
MOST_SENTENCES = 4
_END = re.compile(r"(?<=[.!?])\s+|,? and (?=(?:what|which|how|who|when|where|tell me)\b)", re.I)


@dataclass
class _Session:
    """What is remembered of a visitor: the speaking rate that was asked for and the page's own at
    that time, how often each canned answer was given, and how many questions had none."""

    speed: float | None = None
    page_speed: float = 1.0
    given: Counter[by_heart.Answers] = field(default_factory=Counter)
    last: by_heart.Answers = ()
    admitted: int = 0
    suggested: bool = False  # the last answer was an admission with a suggestion


class SmallTalk:
    """An `Answerer`. `speeds` are the slowest and the fastest rate, None where there is only one.
    An `llm` answers everything except the wish for another rate."""

    def __init__(
        self,
        speeds: tuple[float, float] | None = None,
        now: Callable[[], datetime] = datetime.now,
        llm: Answerer | None = None,
    ):
        self._speeds = speeds
        self._now = now
        self._llm = llm
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    async def answer(self, question: Question) -> AsyncGenerator[Part, None]:
        """One part, or those of the LLM."""
        session = self._session(question.session_id)
        rate = self._rate(session, question)
        changed = self._changed(session, question, rate)
        if changed is not None or self._llm is None:
            yield changed or Say(await beside(self._known, session, question), rate)
            return
        async with aclosing(self._llm.answer(replace(question, speed=rate))) as parts:
            async for part in parts:
                yield part

    def _rate(self, session: _Session, question: Question) -> float:
        """The visitor's rate: what was asked for last, in words or by the page's control."""
        if session.speed is not None and session.page_speed == question.speed:
            return session.speed
        return question.speed

    def _changed(self, session: _Session, question: Question, rate: float) -> Say | None:
        """The answer to a wish for another rate."""
        if self._speeds is None or len(question.text) > MAX_CHARS:
            return None
        found = tools.other_rate(question.text, rate, *self._speeds)
        if found is None:
            return None
        session.speed, session.page_speed = found[0], question.speed
        return Say(found[1], found[0])

    def _known(self, session: _Session, question: Question) -> str:
        suggested, session.suggested = session.suggested, False
        asked = question.text[:MAX_CHARS]
        text = (
            tools.said_again(question.text, question.before)
            or self._by_sentences(session, question)
            or self._by_tools(question)
            or self._by_heart(session, asked)
        )
        if text is not None:
            return text
        if is_sad(asked):
            return "I am sorry to hear that. I am only a small voice, but I listen."
        session.admitted += 1
        session.suggested = not suggested
        return admit(asked, session.admitted - 1, suggests=session.suggested)

    def _by_sentences(self, session: _Session, question: Question) -> str | None:
        """The answers to several sentences or questions of which the last one is known ("Thanks.
        How are you?"). Something sad gets no other answer beside it."""
        sentences = _END.split(question.text[:MAX_CHARS].strip())
        if not 1 < len(sentences) <= MOST_SENTENCES:
            return None
        sentences, told = [*filter(is_sad, sentences)] or sentences, []
        for sentence in sentences:
            found = self._by_tools(replace(question, text=sentence))
            told.append(found or self._by_heart(session, sentence))
        return " ".join(dict.fromkeys(filter(None, told))) if told[-1] else None

    def _by_heart(self, session: _Session, asked: str) -> str | None:
        last = session.last if _MORE.fullmatch(bare(asked)) else ()
        if not (answers := last or by_heart.find(asked)):
            return None
        session.last = answers
        session.given[answers] += 1
        return answers[(session.given[answers] - 1) % len(answers)]

    def _by_tools(self, question: Question) -> str | None:
        text = question.text
        if len(text) > MAX_CHARS:
            return calculator.answered(text)
        return (
            tools.clock(text, self._now())
            or tools.said_again(text, question.before)
            or tools.spelled(text)
            or tools.counted(text)
            or calculator.answered(text)
        )

    def _session(self, session_id: str) -> _Session:
        session = self._sessions.pop(session_id, None) or _Session()
        self._sessions[session_id] = session
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session


_MORE = re.compile(r"(?:give me |tell me )?(?:another(?: one)?|one more|more)")
_SAD = re.compile(
    r"\b(?:sad|unhappy|lonely|depressed|miserable|heartbroken|hopeless|crying|grieving|mourning"
    r"|died|passed away|kill myself|want to die|suicid\w+)\b"
)


def is_sad(question: str) -> bool:
    """Whether somebody tells of their own sadness, and does not ask about it."""
    text = bare(question)
    own = re.search(r"\b(?:i|my|me)\b", text)
    return bool(own and _SAD.search(text)) and not re.match(
        r"(?:what|who|how|why|when|where|which|is|are|do|does|did|can)\b", text
    )


_ABOUT_OUTSIDE = re.compile(
    r"\b(?:weather|rain(?:ing)?|snow(?:ing)?|sunny|forecast|temperature|news|stock|score|traffic|headlines)\b"
)
_TO_DO = re.compile(
    r"^(?:call|send|play|turn (?:on|off)|set|remind|book|order|buy|open|close|start|write|email"
    r"|text|navigate|search|google|find|show|draw|switch)\b"
)


def admit(question: str, count: int, *, suggests: bool = True) -> str:
    """A sentence that it does not know, with a suggestion of what works; `count` of them were said
    before."""
    text = bare(question)
    if not any(map(_is_word, words(question))):
        kind = "not understood"
    elif _ABOUT_OUTSIDE.search(text):
        kind = "lies outside"
    elif _TO_DO.match(text):
        kind = "needs hands"
    else:
        kind = "not known"
    told = (kind, "what works") if suggests else (kind,)
    return " ".join(TABLES[name][count % len(TABLES[name])] for name in told)


def _is_word(word: str) -> bool:
    """Whether letters may be an English word, by how vowels are spread among them."""
    if word.isdigit():
        return True
    return bool(re.search("[aeiouy]", word)) and not re.search(
        r"[^aeiouy']{5}|[aeiou]{4}|sdf|dfg|qw|jk", word
    )
