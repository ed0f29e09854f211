"""Layout and wiring of the page."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from moss_engine.api.controls import BY_NAME
from moss_engine.ui.asking.again import Again
from moss_engine.ui.asking.own_voices import OwnVoices
from moss_engine.ui.asking.replay import MAX_FILE_BYTES
from moss_engine.ui.components.live_audio import LiveAudio
from moss_engine.ui.components.panel import make_panel
from moss_engine.ui.components.transcript import Transcript
from moss_engine.ui.entrance.gradio_queue import WakingQueue
from moss_engine.ui.handlers import Handlers
from moss_engine.ui.parts.composer import composer
from moss_engine.ui.parts.masthead import masthead, running
from moss_engine.ui.parts.programs import OPEN_PROGRAMS
from moss_engine.ui.parts.settings import Own, settings
from moss_engine.ui.parts.words import (
    CACHE_AGE_S,
    CACHE_CHECK_S,
    NOTICE,
    STATE_S,
    TO_ASK,
    TO_ASK_CHINESE,
    TO_READ,
    WHAT,
    invitation,
)
from moss_engine.ui.programs import whole_reply

HERE = Path(__file__).resolve().parent
TITLE = "MOSS-Speech Live"
SCRIPTS = (
    "components/storage.js",
    "components/write.js",
    "page_language.js",
    "page.js",
    "page_problem.js",
    "page_forecast.js",
    "page_modes.js",
    "page_programs.js",
)
MAX_QUEUE = 16
ENGINE = "engine"  # replies, however they are asked for

PLACE = {name: place for place, name in enumerate(BY_NAME)}
ASK = f"(...values) => window.liveAudio.submit(values, {PLACE['heard']})"
ASK_TYPED = (
    f"(...values) => window.liveAudio.submit(values, {PLACE['heard']}, {{text: {PLACE['text']}}})"
)
KEEP_SEED = "(fresh, seed) => fresh ? seed : window.liveAudio.state.seed ?? seed"
SAY_AGAIN = "(...values) => window.liveAudio.submitAgain(values)"
FILE = "(file) => [window.liveAudio.file]"
FORESEE = "(mode, text) => [mode, text, document.body.classList.contains('busy') ? 'own' : '']"
CONSIDERED = "(sentence) => window.liveAudio.considered(sentence)"
TOLD = "(...values) => window.liveAudio.told(values)"
HALT = "(...values) => window.liveAudio.halt(values, 0)"
# The name of this tab's conversation, as soon as the browser's storage is there.
KEY = """async () => {
  while (!window.conversation) await new Promise((resolve) => setTimeout(resolve, 10));
  return [window.conversation.key()];
}"""
QUIETLY: dict[str, Any] = {"queue": False, "show_progress": "hidden", "trigger_mode": "multiple"}


@dataclass(frozen=True)
class Parts:
    """The parts of the page that something happens to. Gradio gives the controls their events'
    methods at run time."""

    controls: dict[str, Any]
    send: gr.Button
    stop: gr.Button
    clear: gr.Button
    chat: Transcript
    live: LiveAudio
    own: Own | None
    conversation: gr.State


def build_page(
    handlers: Handlers, *, max_sessions: int, max_waiting: int, programs: str = ""
) -> gr.Blocks:
    """The page, ready to launch. The engine admits and queues; Gradio lets through as many as that
    can ever hold. `programs` is the panel for those who write programs, as HTML."""
    with gr.Blocks(
        title=TITLE,
        analytics_enabled=False,
        delete_cache=(CACHE_CHECK_S, CACHE_AGE_S),
        fill_width=True,
    ) as page:
        parts = lay_out(handlers, programs)
        wire_reply(handlers, parts, max_sessions + max_waiting)
        wire_forecast(handlers, parts)
        wire_replay(handlers, parts, max_sessions + max_waiting)
        wire_stop(handlers, parts)
        wire_settings(handlers, parts)
        gr.api(
            whole_reply(handlers),
            api_name="reply",
            concurrency_id=ENGINE,
            concurrency_limit=max_sessions + max_waiting,
        )
        page.load(
            handlers.come_back,
            parts.controls["heard"],
            [parts.chat, parts.conversation],
            js=KEY,
            api_visibility="private",
            **QUIETLY,
        ).then(None, js="() => window.conversation.returned()")
        if handlers.facts.hears:
            gr.api(handlers.listen, api_name="listen", queue=False)
        page.unload(handlers.leave)
    places = max_sessions + max_waiting + MAX_QUEUE
    page.queue(api_open=False)
    page._queue = WakingQueue(page, max_size=places)
    return page


def lay_out(handlers: Handlers, programs: str) -> Parts:
    """Everything in the order in which it is read; the style sheet finds the places."""
    facts = handlers.facts
    conversation = gr.State(None, time_to_live=STATE_S, delete_callback=handlers.forget)
    head = masthead(facts) + programs
    gr.HTML(head, js_on_load=scripts(), elem_id="masthead", apply_default_css=False)
    with gr.Row(elem_id="desk", equal_height=False):
        with gr.Column(elem_id="left"):
            with gr.Column(elem_id="talk"):
                asking, send, stop = composer(facts)
                inner, own = settings(facts)
            with gr.Column(elem_id="said"):
                with gr.Row(elem_id="said-head"):
                    gr.HTML('<h2 class="said-name">Conversation</h2>', apply_default_css=False)
                    clear = gr.Button(
                        "Clear all", size="sm", elem_id="clear", min_width=60, scale=0
                    )
                chat = Transcript(elem_id="chat", label="Conversation", empty="Nothing said yet")
        with gr.Column(elem_id="right"):
            live = LiveAudio(
                sample_rate=facts.sample_rate_hz,
                elem_id="live",
                label="Live",
                hint=invitation(facts.default_mode),
                what=WHAT,
                example=TO_READ[0] if facts.default_mode.split_sentences else TO_ASK[0],
                replay_bytes=MAX_FILE_BYTES,
                chinese="" if facts.default_mode.spell_out else TO_ASK_CHINESE[0],
            )
            make_panel(running(facts), elem_id="panel")
    foot = f"<p>{html.escape(NOTICE)}</p>{OPEN_PROGRAMS if programs else ''}"
    gr.HTML(foot, elem_id="notice", apply_default_css=False)
    controls = {name: {**asking, **inner}[name] for name in BY_NAME}
    return Parts(controls, send, stop, clear, chat, live, own, conversation)


def scripts() -> str:
    """The page's own scripts, with the table of its Chinese."""
    table = json.dumps(json.loads((HERE / "chinese.json").read_text("utf-8")), ensure_ascii=False)
    parts = [(HERE / name).read_text(encoding="utf-8") for name in SCRIPTS]
    return "\n".join([f"const CHINESE = {table};", *parts])


def wire_reply(handlers: Handlers, parts: Parts, limit: int) -> None:
    """A question, however it is asked, and what the page does when it is accepted and over."""
    controls, live, conversation = parts.controls, parts.live, parts.conversation
    # A component that is skipped costs Gradio more than all the rest of a message, so a reply has
    # but one output.
    reply = {
        "fn": handlers.reply,
        "inputs": [*controls.values(), conversation],
        "outputs": [live, conversation],
        "js": ASK,
        "validator": handlers.refusals.validate,
        "concurrency_id": ENGINE,
        "concurrency_limit": limit,
        "show_progress": "hidden",
        "trigger_mode": "multiple",
    }
    # A question replaces the one before it; page.js takes two presses for one. Replies are stopped
    # at the service, never by Gradio's `cancels`, which would leave the reply's last message out.
    gr.on(
        [parts.send.click, controls["text"].submit], **{**reply, "js": ASK_TYPED}, api_name="stream"
    )
    controls["utterance"].spoken(**reply, api_name="spoken", api_visibility="private")
    live.accepted(handlers.chat, conversation, parts.chat, api_visibility="private", **QUIETLY)
    live.over(handlers.chat, conversation, parts.chat, api_visibility="private", **QUIETLY)


def wire_replay(handlers: Handlers, parts: Parts, limit: int) -> None:
    """A replay file that was dropped on the page: looked at first, then spoken."""
    again, controls, live = Again(handlers), parts.controls, parts.live
    file = gr.Textbox("", show_label=False, label="Replay file", visible=False)
    told = gr.Textbox("", show_label=False, label="Considered", visible=False)
    live.consider(again.consider, file, told, js=FILE, api_visibility="private", **QUIETLY).then(
        None, told, js=CONSIDERED
    )
    live.again(
        again.replay,
        [controls["heard"], controls["run"], controls["sound"], file, parts.conversation],
        [live, parts.conversation],
        js=SAY_AGAIN,
        concurrency_id=ENGINE,
        concurrency_limit=limit,
        show_progress="hidden",
        trigger_mode="multiple",
        api_visibility="private",
    )


def wire_forecast(handlers: Handlers, parts: Parts) -> None:
    """While something is typed, how its reply would sound."""
    told = gr.Textbox("", show_label=False, label="Forecast", visible=False)
    parts.live.foresee(
        handlers.forecasts.foresee,
        [parts.controls["mode"], parts.controls["text"], told],
        told,
        js=FORESEE,
        api_visibility="private",
        **QUIETLY,
    ).then(None, told, js="(told) => window.foreseen(told)")


def wire_stop(handlers: Handlers, parts: Parts) -> None:
    """Everything that ends a reply, or the conversation."""
    heard, live = parts.controls["heard"], parts.live
    halt = {
        "fn": handlers.stop,
        "inputs": [heard, parts.conversation],
        "outputs": parts.chat,
        "js": HALT,
        **QUIETLY,
    }
    parts.stop.click(**halt, api_name="stop")
    parts.controls["utterance"].interrupted(**halt, api_visibility="private")
    live.unwanted(**halt, api_visibility="private")
    live.replaced(**{**halt, "js": TOLD}, api_visibility="private")
    parts.clear.click(
        handlers.clear,
        [heard, parts.conversation],
        [parts.chat, parts.conversation],
        js=HALT,
        api_visibility="private",
        **QUIETLY,
    )


def wire_settings(handlers: Handlers, parts: Parts) -> None:
    """The seed that is kept, and the visitor's own voice."""
    controls = parts.controls
    controls["new_seed"].input(
        None, [controls["new_seed"], controls["seed"]], controls["seed"], js=KEEP_SEED
    )
    if parts.own is None:
        return
    consent, sample = parts.own
    made = sample.sampled(
        OwnVoices(handlers).take,
        [consent, sample, parts.conversation],
        [controls["voice"], parts.conversation, sample],
        api_visibility="private",
        **QUIETLY,
    )
    made.then(None, js="() => document.dispatchEvent(new Event('voicemade'))")
