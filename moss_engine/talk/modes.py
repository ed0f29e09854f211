"""Modes of conversation for a checkpoint that reads texts but understands no speech."""

from __future__ import annotations

from moss_engine.api.info import ServiceInfo
from moss_engine.api.modes import Medium, Mode
from moss_engine.talk.llm import SYSTEM

CHAT = "chat"
TALK, TALK_WRITTEN, CHAT_WRITTEN = "talk", "talk-written", "chat-written"


def talking_modes(info: ServiceInfo) -> tuple[Mode, ...]:
    """The modes of `info` and those that talking adds: by voice where a recogniser listens, by
    keyboard in any case; the answer spoken or written. A checkpoint that reads nothing, or one
    that understands speech by itself, gets none."""
    if info.reading_mode is None or info.encodes:
        return info.modes
    note, chat = thinks(info), "Small talk" if info.brain is None else "Chat"
    added = [_mode(info, CHAT, chat, "text", "speech", f"Type, and hear {note}")]
    added += [_mode(info, CHAT_WRITTEN, f"{chat}, written", "text", "text", f"Read {note}")]
    if info.recogniser is not None:
        heard = f"{info.recogniser} listens; you"
        added += [_mode(info, TALK, "Speak to it", "speech", "speech", f"{heard} hear {note}")]
        written = "Speak, read the answer"
        added += [_mode(info, TALK_WRITTEN, written, "speech", "text", f"{heard} read {note}")]
    names = {mode.name for mode in added}
    return (*(mode for mode in info.modes if mode.name not in names), *added)


def thinks(info: ServiceInfo) -> str:
    """Who makes the answers, as the end of a sentence."""
    if info.brain is not None:
        return f"what {info.brain} thinks of."
    return "what is known by heart, and what a clock and a calculator know. It does not reason."


def _mode(
    info: ServiceInfo, name: str, label: str, given: Medium, output: Medium, note: str
) -> Mode:
    return Mode(
        name,
        label,
        given,
        output,
        SYSTEM if info.brain else "",
        split_sentences=False,
        default=False,
        note=note,
        history=True,
        own_system=info.brain is not None,
        through_text=True,
    )
