"""The part of the page that asks: what to do, the text box, the microphone and the one button."""

from __future__ import annotations

import html

from moss_engine.api.controls import BY_NAME, Control
from moss_engine.api.info import ServiceInfo
from moss_engine.api.modes import Mode
from moss_engine.ui.components.markup import RECORDER
from moss_engine.ui.parts.words import ask_words, examples_of, invitation

KEYS = (
    '<p class="keys">'
    '<span class="counter" hidden></span>'
    '<span class="k-type"><kbd>Enter</kbd> sends</span>'
    '<span class="k-talk"><kbd>Space</kbd> talks</span> <span><kbd>Esc</kbd> stops</span>'
    '<span class="k-next"><kbd translate="no">Ctrl</kbd> <kbd>Enter</kbd> asks next</span></p>'
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
<div id="mode-notes">{mode_notes(facts)}</div>
<div id="text">
<textarea rows="1" dir="auto" aria-label="Your text" placeholder="{wish}" autofocus></textarea>
</div>{RECORDER if facts.hears else ""}
<div id="send-row">{KEYS}<button type="button" id="stop">Stop</button>
<button type="button" id="send">{verb}</button></div>
<div id="problem">{NEXT}{PROBLEM}</div>
{voices(facts)}</div>
<div id="examples">{examples(facts)}</div>"""


def modes(facts: ServiceInfo) -> str:
    choices = "".join(
        f'<label data-output="{mode.output}">'
        f"{choice('mode', mode.name, mode is facts.default_mode)}"
        f"<span>{html.escape(mode.label)}</span></label>"
        for mode in facts.modes
    )
    return f'<fieldset id="mode"><legend>Mode</legend>{choices}</fieldset>'


def choice(group: str, value: str, chosen: bool, *, named: bool = False) -> str:
    """One of a group, called as its label is, or by its value."""
    checked = " checked" if chosen else ""
    value = html.escape(value)
    name = f' aria-label="{value}" translate="no"' if named else ""
    return f'<input type="radio" name="{group}" value="{value}" autocomplete="off"{name}{checked}>'


def voices(facts: ServiceInfo) -> str:
    """Who speaks, as cards that can be heard where a text is read as it stands, and how fast."""
    hear = '<button type="button" class="voice-hear" aria-label="Hear {}"></button>'
    hear = hear if any(mode.split_sentences for mode in facts.modes) else ""
    cards = "".join(
        f"<label>{choice('voice', name, name == facts.voices[0], named=True)}"
        f'<span translate="no">{html.escape(name)}</span>{hear.format(html.escape(name))}</label>'
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


def talks_first(facts: ServiceInfo) -> bool:
    """Whether the page opens to be talked to, where nothing was chosen: not by who cannot think."""
    return facts.brain is not None or not facts.default_mode.split_sentences


def mode_notes(facts: ServiceInfo) -> str:
    """A sentence for each mode, with what the page has to know of it."""
    return "".join(
        f'<p data-mode="{html.escape(mode.name)}" data-input="{mode.input}" '
        f'data-output="{mode.output}" data-does="{"read" if mode.split_sentences else "chat"}" '
        f'data-hint="{html.escape(invitation(mode))}" '
        f'data-system="{html.escape(mode.system)}" data-verb="{ask_words(mode)[0]}" '
        f'data-wish="{ask_words(mode)[1]}"{_hidden(mode, facts)}>{html.escape(mode.note or "")}</p>'
        for mode in facts.modes
    )


def _hidden(mode: Mode, facts: ServiceInfo) -> str:
    """Hidden unless it is the mode that the page opens with."""
    return "" if mode is facts.default_mode else " hidden"


def examples(facts: ServiceInfo) -> str:
    """Texts to begin with, for each mode."""
    groups = ""
    for mode in facts.modes:
        chips = "".join(
            f'<button type="button" class="chip" lang="{language}" translate="no">'
            f"{html.escape(text)}</button>"
            for language, text in examples_of(mode, scripted=facts.scripted)
        )
        groups += (
            f'<div class="chips" data-mode="{html.escape(mode.name)}" role="group" '
            f'aria-label="Examples: each is sent at once"{_hidden(mode, facts)}>{chips}</div>'
        )
    return groups
