"""What the page says in longer sentences: examples, promises, and what MOSS-Speech is."""

from __future__ import annotations

from moss_engine.api.modes import Mode

STATE_S = 900  # a conversation is forgotten after so long without a message
CACHE_CHECK_S, CACHE_AGE_S = 600, 1800

TO_READ = (
    "Good morning! It is twenty past nine, and the sun is finally out.",
    "The quick brown fox jumps over the lazy dog.",
    "Please call Dr. Smith at 4:30 pm about the $25 invoice.",
    "She sells sea shells by the sea shore, and the shells she sells are sea shells, I am sure.",
)
TO_ASK = (
    "Hello! Who are you?",
    "Why is the sky blue?",
    "Tell me a very short story about a fox.",
    "How do I make a good cup of tea?",
)
TO_ASK_CHINESE = (
    "你好！你是谁？",
    "天空为什么是蓝色的？",
    "给我讲一个关于狐狸的小故事。",
    "怎样泡一杯好茶？",
)
TO_ANSWER = (
    "Hello! Who are you?",
    "What is seven plus five?",
    "Tell me a joke.",
    "What can you do?",
)

WHAT = (
    "MOSS-Speech is a language model that speaks: it writes its answer as text and as sound at "
    "the same time, and you hear the sound while it is still being made."
)
CONSENT = (
    "The voice is mine, or its owner agrees to hear it here. It is kept in memory until this tab "
    "is closed, and used for nothing else."
)
NOTICE = (
    "You hear an AI voice, not a person. What you type or say is processed on the machine that "
    f"runs this page; conversations are forgotten after {STATE_S // 60} minutes without a message, "
    f"sound files within {(CACHE_CHECK_S + CACHE_AGE_S) // 60} minutes. Nothing is "
    "used for training. Not for emergencies or medical use."
)
SENT_ON = "Conversations also go to {brain}, whose operator decides what becomes of them."


def ask_words(mode: Mode) -> tuple[str, str]:
    """What the button says in a mode, and the empty text box: a mode that splits its text into
    sentences reads it."""
    if mode.split_sentences:
        return "Speak", "Type what you want to hear"
    return "Ask", "Type your question"


def invitation(mode: Mode) -> str:
    """What the page says before the first reply."""
    if mode.split_sentences:
        return "Type a sentence. You hear it while it is still being made."
    if mode.output == "text":
        return "Ask something. You read the answer while it is still being written."
    return "Ask something. You hear the answer while it is still being made."


def examples_of(mode: Mode, *, scripted: bool) -> tuple[tuple[str, str], ...]:
    """Texts to begin with, and the language of each: a mode that splits its text into sentences
    reads it, others answer, and where they are `scripted`, by heart. Only a voice that takes texts
    as they are knows Chinese."""
    if mode.input != "text":
        return ()
    english = TO_READ if mode.split_sentences else TO_ANSWER if scripted else TO_ASK
    chinese = () if mode.spell_out else TO_ASK_CHINESE
    return tuple(("en", text) for text in english) + tuple(("zh", text) for text in chinese)
