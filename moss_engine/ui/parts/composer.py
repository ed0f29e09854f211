"""The part of the page that asks: what to do, the text box, the microphone and the one button."""

from __future__ import annotations

import html

import gradio as gr

from moss_engine.api.controls import BY_NAME, Control
from moss_engine.api.info import ServiceInfo
from moss_engine.api.modes import Mode
from moss_engine.ui.components.recorder import recorder
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


def composer(facts: ServiceInfo, no_hands_free: str | None) -> gr.Radio:
    """The controls of a question, and the buttons that send and stop: one place, one at a time.
    `no_hands_free` is as for a `recorder`. Gives the voices to choose from."""
    with gr.Column(elem_id="composer"):
        hint = '<p class="heard-only" id="hint" role="status"></p>'
        gr.HTML(f'<h2 class="heard-only">Ask</h2>{hint}', apply_default_css=False)
        gr.Radio(
            [(mode.label, mode.name) for mode in facts.modes],
            value=facts.default_mode.name,
            label="Mode",
            show_label=False,
            container=False,
            interactive=True,
            elem_id="mode",
            elem_classes=["by-switches"] if switched(facts) else [],
        )
        gr.HTML(switches(facts) + mode_notes(facts), elem_id="mode-notes", apply_default_css=False)
        verb, wish = ask_words(facts.default_mode)
        # One line, so that Enter sends; the style sheet makes it taller. Of any length: a browser
        # would cut what is too long without a word.
        gr.Textbox(
            "",
            show_label=False,
            label="Your text",
            placeholder=wish,
            lines=1,
            max_lines=7,
            container=False,
            interactive=True,
            autofocus=True,
            elem_id="text",
        )
        recorder(
            max_s=facts.max_speech_s,
            no_hands_free=no_hands_free,
            elem_id="recorder",
            label="Recording",
            visible=facts.hears,
        )
        with gr.Row(elem_id="send-row"):
            gr.HTML(KEYS, apply_default_css=False)
            gr.Button("Stop", elem_id="stop", min_width=110, scale=0)
            gr.Button(verb, variant="primary", elem_id="send", min_width=110, scale=0)
        gr.HTML(NEXT + PROBLEM, elem_id="problem", apply_default_css=False)
        voice = voices(facts)
    gr.HTML(examples(facts), elem_id="examples", apply_default_css=False)
    return voice


def voices(facts: ServiceInfo) -> gr.Radio:
    """Who speaks, as cards that can be heard, and how fast."""
    with gr.Row(elem_id="voices"):
        voice = gr.Radio(
            list(facts.voices),
            value=facts.voices[0],
            label="Voice",
            container=False,
            interactive=True,
            elem_id="voice",
            min_width=120,
            visible=len(facts.voices) > 1 or facts.clones_voices,
        )
        slider(BY_NAME["speed"], 1.0, visible=facts.speeds is not None)
    return voice


def slider(control: Control, value: float, *, visible: bool = True) -> None:
    """The input of a number, with what it does in one sentence."""
    gr.Slider(
        control.low,
        control.high,
        value=value,
        step=control.step,
        label=control.label,
        info=control.help,
        interactive=True,
        elem_id=control.name.replace("_", "-"),
        min_width=150,
        visible=visible,
    )


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


def switches(facts: ServiceInfo) -> str:
    """Small choices instead of one among all their combinations; with what the page opens where
    nothing was chosen: who cannot think is not talked to first."""
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
            f'<label><input type="radio" name="{axis}" value="{value}">'
            f"<span>{called[value]}</span></label>"
            for value in offered
        )
        one = " hidden" if len(offered) == 1 else ""
        parts += (
            f'<fieldset data-axis="{axis}" title="{name}"{one}><legend>{name}</legend>'
            f"{choices}</fieldset>"
        )
    opens = "read" if facts.scripted else "talk"
    return f'<div class="switches" data-opens="{opens}">{parts}</div>'


def mode_notes(facts: ServiceInfo) -> str:
    """A sentence for each mode, with what the page has to know of it."""
    return "".join(
        f'<p data-mode="{html.escape(mode.name)}" data-input="{mode.input}" '
        f'data-output="{mode.output}" data-does="{axes_of(mode)["does"]}" '
        f'data-hint="{html.escape(invitation(mode))}" '
        f'data-system="{html.escape(mode.system)}" data-verb="{ask_words(mode)[0]}" '
        f'data-wish="{ask_words(mode)[1]}">{html.escape(mode.note or "")}</p>'
        for mode in facts.modes
    )


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
            f'aria-label="Examples: each is sent at once">{chips}</div>'
        )
    return groups
