"""Layout and wiring of the page."""

from __future__ import annotations

import html
from pathlib import Path

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
from moss_engine.ui.parts.settings import Settings, settings
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

HERE = Path(__file__).resolve().parent
MAX_QUEUE = 256  # calls that Gradio has not begun yet

KEEP_SEED = "(fresh, seed) => fresh ? seed : window.liveAudio.state.seed ?? seed"


def build_page(handlers: Handlers, programs: str = "") -> gr.Blocks:
    """The page, ready to launch. `programs` is the panel for those who write programs, as HTML."""
    with gr.Blocks(
        title=TITLE,
        analytics_enabled=False,
        delete_cache=(CACHE_CHECK_S, CACHE_AGE_S),
        fill_width=True,
    ) as page:
        wire_settings(handlers, *lay_out(handlers, programs))
        offer(handlers, Outboxes(page))
    page.queue(api_open=False, max_size=MAX_QUEUE)
    slow_down(page)
    return page


def lay_out(handlers: Handlers, programs: str) -> tuple[gr.Radio, Settings]:
    """Everything in the order in which it is read; the style sheet finds the places. Gives those
    controls that something happens to in Gradio: a question, however it is asked, goes to the
    server by the page's own WebSocket (`door.py`), with what the browser reads of the controls."""
    facts = handlers.facts
    head = masthead(facts) + programs
    mode = facts.default_mode
    example = TO_READ[0] if mode.split_sentences else TO_ASK[0]
    gr.HTML(head, js_on_load=mounts("page.js"), elem_id="masthead", apply_default_css=False)
    with gr.Row(elem_id="desk", equal_height=False):
        with gr.Column(elem_id="left"):
            with gr.Column(elem_id="talk"):
                ingest = handlers.ingest
                voice = composer(facts, ingest and ingest.no_hands_free)
                inner = settings(facts)
            with gr.Column(elem_id="said"):
                with gr.Row(elem_id="said-head"):
                    gr.HTML('<h2 id="said-name">Conversation</h2>', apply_default_css=False)
                    gr.Button("Clear all", size="sm", elem_id="clear", min_width=60, scale=0)
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
            )
            make_panel(running(facts), elem_id="panel")
    foot = f"<p>{html.escape(NOTICE)}</p>{OPEN_PROGRAMS if programs else ''}"
    gr.HTML(foot, elem_id="notice", apply_default_css=False)
    return voice, inner


def wire_settings(handlers: Handlers, voice: gr.Radio, parts: Settings) -> None:
    """The seed that is kept, and the visitor's own voice. Gradio gives the controls their events'
    methods at run time."""
    seed, new_seed, own = parts
    new_seed.input(None, [new_seed, seed], seed, js=KEEP_SEED)  # type: ignore[attr-defined]
    if own is None:
        return
    consent, sample = own
    key = gr.Textbox("", show_label=False, label="Tab", visible=False)
    made = sample.sampled(
        take_sample(handlers),
        [consent, sample, key],
        [voice, sample],
        js="(consent, sample) => [consent, sample, window.liveAudio.tab]",
        api_visibility="private",
        queue=False,
        show_progress="hidden",
        trigger_mode="multiple",
    )
    made.then(None, js="() => document.dispatchEvent(new Event('voicemade'))")
