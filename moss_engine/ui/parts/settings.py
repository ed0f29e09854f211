"""The closed settings: everything that a reply's sampling depends on, and an own voice."""

from __future__ import annotations

import gradio as gr

from moss_engine.api.controls import BY_NAME, MAX_PAGE_SEED
from moss_engine.api.info import ServiceInfo
from moss_engine.ui.components.voice_sample import voice_sample
from moss_engine.ui.parts.composer import slider
from moss_engine.ui.parts.words import CONSENT

Own = tuple[gr.Checkbox, gr.HTML]
Settings = tuple[gr.Number, gr.Checkbox, Own | None]

HEADS = (
    (
        "speech",
        "Speech head",
        "The part of the model that chooses the sounds, one code after another.",
    ),
    ("text", "Text head", "The part that chooses the words."),
)


def settings(facts: ServiceInfo) -> Settings:
    """Gives the seed, whether it changes, and the parts that take an own voice."""
    told = any(mode.own_system for mode in facts.modes)
    classes = [] if told or facts.clones_voices else ["for-engine"]  # all of it is sampling
    with gr.Accordion("Settings", open=False, elem_id="settings", elem_classes=classes):
        own = own_voice(facts)
        gr.Textbox(
            "",
            label="System prompt: what the model is told before the conversation",
            lines=2,
            max_lines=5,
            interactive=True,
            elem_id="system",
            max_length=facts.max_text_chars,
            visible=told,
        )
        with gr.Column(elem_id="sampling"):
            longest(facts)
            with gr.Row():
                seed = gr.Number(
                    0,
                    label="Seed",
                    info=BY_NAME["seed"].help,
                    precision=0,
                    minimum=0,
                    maximum=MAX_PAGE_SEED,
                    min_width=120,
                    elem_id="seed",
                )
                new_seed = gr.Checkbox(
                    True, label="New seed for every reply", min_width=160, elem_id="new-seed"
                )
            for channel in HEADS:
                sampling(facts, *channel)
    return seed, new_seed, own


def longest(facts: ServiceInfo) -> None:
    rows_per_s = facts.sample_rate_hz / facts.samples_per_code
    gr.Slider(
        16,
        max(4096, facts.sampling.max_rows),
        value=facts.sampling.max_rows,
        step=1,
        interactive=True,
        elem_id="max-rows",
        min_width=160,
        label="Longest reply",
        info=f"In rows, the steps of the model: {rows_per_s:g} are a second of speech.",
    )


def sampling(facts: ServiceInfo, name: str, title: str, does: str) -> None:
    """The sliders of one head."""
    path, channel = (
        ("audio", facts.sampling.audio) if name == "speech" else ("text", facts.sampling.text)
    )
    gr.HTML(f'<h3 id="{name}-head">{title}</h3><p class="does">{does}</p>', apply_default_css=False)
    with gr.Row(elem_id=f"{name}-sampling"):
        for control in BY_NAME.values():
            if control.path[:-1] == (path,):
                slider(control, getattr(channel, control.path[1]))


def own_voice(facts: ServiceInfo) -> Own | None:
    """A visitor's own voice, behind the consent of whoever it belongs to; None where it is not
    offered."""
    if not facts.clones_voices:
        return None
    with gr.Column(elem_id="own-voice"):
        gr.HTML("<h3>Your own voice</h3>", apply_default_css=False)
        return (
            gr.Checkbox(False, label=CONSENT, elem_id="consent"),
            voice_sample(elem_id="voice-sample", label="Voice sample"),
        )
