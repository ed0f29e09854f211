"""The part of the page that asks: what to do, the text box, the microphone and the one button."""

from __future__ import annotations

import html

from moss_engine.api.controls import BY_NAME, Control
from moss_engine.api.info import ServiceInfo
from moss_engine.api.modes import Mode
from moss_engine.ui.components.recorder import RECORDER
from moss_engine.ui.parts.words import ask_words, examples_of, invitation

AXES = (
    ("does", "What to do", {"read": "Read", "chat": "Chat"}),
    ("input", "You", {"text": "type", "speech": "talk"}),
    ("output", "Answer", {"speech": "spoken", "text": "written"}),
)
KEYS = (
    '<p class="keys">'
    '<span class="counter" hidden></span>'
    '<span class="k-type"><kbd>Enter</kbd> sends</span>'
    '<span class="k-next"><kbd translate="no">Ctrl</kbd> <kbd>Enter</kbd> asks next</span>'
    '<span class="k-talk"><kbd>Space</kbd> talks</span> <span><kbd>Esc</kbd> stops</span></p>'
)

NEXT = '<div class="next-asked" role="status" hidden>Asked next: <span translate="no"></span></div>'
PROBLEM = (
    '<p role="alert"></p>'
    '<div class="unasked chips" role="group" aria-label="Questions that were not asked"></div>'
)


def composer(facts: ServiceInfo) -> str:
    """The controls of a question, and the buttons that send and stop: one place, one at a time."""
    verb, wish = ask_words(facts.default_mode)
    return f"""
<div id="composer"><h2 class="heard-only">Ask</h2><p class="heard-only" id="hint" role="status"></p>
{modes(facts)}
<div id="mode-notes">{switches(facts)}{mode_notes(facts)}</div>
<div id="text">
<textarea rows="1" aria-label="Your text" placeholder="{wish}" autofocus></textarea></div>
{RECORDER if facts.hears else ""}
<div id="send-row">{KEYS}<button type="button" id="stop">Stop</button>
<button type="button" id="send">{verb}</button></div>
<div id="problem">{NEXT}{PROBLEM}</div>
{voices(facts)}</div>
<div id="examples">{examples(facts)}</div>"""


def modes(facts: ServiceInfo) -> str:
    """All modes; where the switches tell them apart, these are pressed instead."""
    kind = ' class="by-switches"' if switched(facts) else ""
    choices = "".join(
        f"<label>{choice('mode', mode.name, mode is facts.default_mode)}"
        f"<span>{html.escape(mode.label)}</span></label>"
        for mode in facts.modes
    )
    return f'<fieldset id="mode"{kind}><legend>Mode</legend>{choices}</fieldset>'


def choice(group: str, value: str, chosen: bool) -> str:
    """One of a group."""
    checked = " checked" if chosen else ""
    value = html.escape(value)
    return f'<input type="radio" name="{group}" value="{value}" autocomplete="off"{checked}>'


def voices(facts: ServiceInfo) -> str:
    """Who speaks, as cards that can be heard where a text is read as it stands, and how fast."""
    hear = '<button type="button" class="voice-hear" aria-label="Hear this voice"></button>'
    hear = hear if any(mode.split_sentences for mode in facts.modes) else ""
    cards = "".join(
        f"<label>{choice('voice', name, name == facts.voices[0])}"
        f'<span translate="no">{html.escape(name)}</span>{hear}</label>'
        for name in facts.voices
    )
    alone = "" if len(facts.voices) > 1 or facts.clones_voices else " hidden"
    speed = "" if facts.speeds is None else number(BY_NAME["speed"], 1.0)
    return (
        f'<div id="voices"><fieldset id="voice"{alone}><legend>Voice</legend>{cards}</fieldset>'
        f"{speed}</div>"
    )


def number(control: Control, value: float, *, slides: bool = True, **other: object) -> str:
    """The input of a number, with what it does in one sentence, and a slider unless it is one of
    very many. `other` are what it has instead of the control's own label, help, low and high."""
    told = {"label": control.label, "help": control.help, "low": control.low, "high": control.high}
    told |= other
    name, label = control.name.replace("_", "-"), html.escape(str(told["label"]))
    limits = f'min="{told["low"]:.12g}" max="{told["high"]:.12g}" step="{control.step:.12g}" '
    limits += f'value="{value:.12g}" autocomplete="off"'
    slider = f'<input type="range" {limits} aria-label="{label}">' if slides else ""
    entry = f'<label><span>{label}</span><input type="number" {limits}></label>'
    words = html.escape(str(told["help"]))
    return f'<div class="control" id="{name}">{entry}<p>{words}</p>{slider}</div>'


def axes_of(mode: Mode) -> dict[str, str]:
    """Where a mode stands on each axis; what is read aloud has one way in and one way out."""
    return {
        "does": "read" if mode.split_sentences else "chat",
        "input": mode.input,
        "output": mode.output,
    }


def switched(facts: ServiceInfo) -> bool:
    """Whether the axes are enough to tell the modes apart: at most one that reads, and answers of
    different kinds."""
    answers = [(mode.input, mode.output) for mode in facts.modes if not mode.split_sentences]
    return len(facts.modes) - len(answers) <= 1 < len(facts.modes) and len(set(answers)) == len(
        answers
    )


def talks_first(facts: ServiceInfo) -> bool:
    """Whether the page opens to be talked to, where nothing was chosen: not by who cannot think."""
    return switched(facts) and not facts.scripted


def switches(facts: ServiceInfo) -> str:
    """Small choices instead of one among all their combinations."""
    if not switched(facts):
        return ""
    parts = ""
    for axis, name, words in AXES:
        among = [
            axes_of(mode)[axis]
            for mode in facts.modes
            if axis == "does" or not mode.split_sentences
        ]
        offered = [value for value in words if value in among]
        called = {**words, "chat": "Small talk"} if facts.scripted else words
        choices = "".join(
            f"<label>{choice(axis, value, axes_of(facts.default_mode)[axis] == value)}"
            f"<span>{called[value]}</span></label>"
            for value in offered
        )
        one = " hidden" if len(offered) == 1 else ""
        parts += (
            f'<fieldset data-axis="{axis}" title="{name}"{one}><legend>{name}</legend>'
            f"{choices}</fieldset>"
        )
    return f'<div class="switches">{parts}</div>'


def mode_notes(facts: ServiceInfo) -> str:
    """A sentence for each mode, with what the page has to know of it."""
    return "".join(
        f'<p data-mode="{html.escape(mode.name)}" data-input="{mode.input}" '
        f'data-output="{mode.output}" data-does="{axes_of(mode)["does"]}" '
        f'data-hint="{html.escape(invitation(mode))}" '
        f'data-system="{html.escape(mode.system)}" data-verb="{ask_words(mode)[0]}" '
        f'data-wish="{ask_words(mode)[1]}"{_unless(mode, facts)}>{html.escape(mode.note or "")}</p>'
        for mode in facts.modes
    )


def _unless(mode: Mode, facts: ServiceInfo) -> str:
    """Hidden unless it is the mode that the page opens with."""
    return "" if mode is facts.default_mode else " hidden"


def examples(facts: ServiceInfo) -> str:
    """Texts to begin with, for each mode."""
    groups = ""
    for mode in facts.modes:
        chips = "".join(
            f'<button type="button" class="chip" lang="{language}" translate="no">'
            f"{html.escape(text)}</button>"
            for language, text in examples_of(mode)
        )
        groups += (
            f'<div class="chips" data-mode="{html.escape(mode.name)}" role="group" '
            f'aria-label="Examples: each is sent at once"{_unless(mode, facts)}>{chips}</div>'
        )
    return groups
