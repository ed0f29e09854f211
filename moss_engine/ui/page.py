"""Layout and wiring of the page."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from moss_engine.ui.components.live_audio import live_audio
from moss_engine.ui.components.panel import make_panel
from moss_engine.ui.components.transcript import transcript
from moss_engine.ui.document import TITLE
from moss_engine.ui.handlers import Handlers
from moss_engine.ui.modules import mounts
from moss_engine.ui.own_voices import take_sample
from moss_engine.ui.parts.composer import composer
from moss_engine.ui.parts.masthead import masthead, running
from moss_engine.ui.parts.programs import OPEN_PROGRAMS
from moss_engine.ui.parts.settings import Own, settings
from moss_engine.ui.parts.words import (
    CACHE_AGE_S,
    CACHE_CHECK_S,
    NOTICE,
    TO_ASK,
    TO_ASK_CHINESE,
    TO_READ,
    WHAT,
    invitation,
)
from moss_engine.ui.programs import Outboxes, offer, slow_down
from moss_engine.ui.replay import MAX_FILE_BYTES

HERE = Path(__file__).resolve().parent
MAX_QUEUE = 256  # calls that Gradio has not begun yet

KEEP_SEED = "(fresh, seed) => fresh ? seed : window.liveAudio.state.seed ?? seed"


@dataclass(frozen=True)
class Parts:
    """The parts of the page that something happens to. Gradio gives the controls their events'
    methods at run time."""

    controls: dict[str, Any]
    send: gr.Button
    stop: gr.Button
    clear: gr.Button
    own: Own | None


def build_page(handlers: Handlers, programs: str = "") -> gr.Blocks:
    """The page, ready to launch. `programs` is the panel for those who write programs, as HTML."""
    with gr.Blocks(
        title=TITLE,
        analytics_enabled=False,
        delete_cache=(CACHE_CHECK_S, CACHE_AGE_S),
        fill_width=True,
    ) as page:
        parts = lay_out(handlers, programs)
        wire_asking(parts)
        wire_settings(handlers, parts)
        offer(handlers, Outboxes(page))
    page.queue(api_open=False, max_size=MAX_QUEUE)
    slow_down(page)
    return page


def lay_out(handlers: Handlers, programs: str) -> Parts:
    """Everything in the order in which it is read; the style sheet finds the places."""
    facts = handlers.facts
    head = masthead(facts) + programs
    mode = facts.default_mode
    example = TO_READ[0] if mode.split_sentences else TO_ASK[0]
    gr.HTML(head, js_on_load=mounts("page.js"), elem_id="masthead", apply_default_css=False)
    with gr.Row(elem_id="desk", equal_height=False):
        with gr.Column(elem_id="left"):
            with gr.Column(elem_id="talk"):
                ingest = handlers.ingest
                asking, send, stop = composer(facts, ingest and ingest.no_hands_free)
                inner, own = settings(facts)
            with gr.Column(elem_id="said"):
                with gr.Row(elem_id="said-head"):
                    gr.HTML('<h2 id="said-name">Conversation</h2>', apply_default_css=False)
                    clear = gr.Button(
                        "Clear all", size="sm", elem_id="clear", min_width=60, scale=0
                    )
                transcript(elem_id="chat", label="Conversation", empty="Nothing said yet")
        with gr.Column(elem_id="right"):
            live_audio(
                sample_rate=facts.sample_rate_hz,
                elem_id="live",
                label="Live",
                hint=invitation(mode),
                what=WHAT,
                example=example,
                chinese=example if mode.spell_out else TO_ASK_CHINESE[0],
                replay_bytes=MAX_FILE_BYTES,
            )
            make_panel(running(facts), elem_id="panel")
    foot = f"<p>{html.escape(NOTICE)}</p>{OPEN_PROGRAMS if programs else ''}"
    gr.HTML(foot, elem_id="notice", apply_default_css=False)
    return Parts({**asking, **inner}, send, stop, clear, own)


def wire_asking(parts: Parts) -> None:
    """A question, however it is asked: the page's player takes the values of the controls to the
    server by its own WebSocket (`door.py`). It takes two presses for one."""
    names, controls = json.dumps([*parts.controls]), [*parts.controls.values()]
    ask = f"(...values) => window.liveAudio.submit(values, {names})"
    ask_typed = f"(...values) => window.liveAudio.submitTyped(values, {names})"
    gr.on([parts.send.click, parts.controls["text"].submit], None, controls, js=ask_typed)
    parts.controls["utterance"].spoken(None, controls, js=ask)
    parts.stop.click(None, js="() => window.liveAudio.stop()")
    parts.clear.click(None, js="() => window.liveAudio.clear()")


def wire_settings(handlers: Handlers, parts: Parts) -> None:
    """The seed that is kept, and the visitor's own voice."""
    controls = parts.controls
    controls["new_seed"].input(
        None, [controls["new_seed"], controls["seed"]], controls["seed"], js=KEEP_SEED
    )
    if parts.own is None:
        return
    consent, sample = parts.own
    key = gr.Textbox("", show_label=False, label="Tab", visible=False)
    made = sample.sampled(
        take_sample(handlers),
        [consent, sample, key],
        [controls["voice"], sample],
        js="(consent, sample) => [consent, sample, window.liveAudio.tab]",
        api_visibility="private",
        queue=False,
        show_progress="hidden",
        trigger_mode="multiple",
    )
    made.then(None, js="() => document.dispatchEvent(new Event('voicemade'))")
