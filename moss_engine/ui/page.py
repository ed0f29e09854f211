"""The page: its parts as HTML in the order in which they are read, and the Blocks that hold them.

A question goes to the server by the page's own WebSocket (`door.py`), with what the browser reads
of the controls, so no event of Gradio's stands between. The document (`document.py`) brings the
page along, and Gradio's component takes it in when Gradio's scripts are there.
"""

from __future__ import annotations

import html
import json

import gradio as gr

from moss_engine.api.controls import BY_NAME
from moss_engine.api.info import ServiceInfo
from moss_engine.api.metrics import meanings
from moss_engine.audio.turn_taking import RATE_HZ
from moss_engine.ui.components.markup import TRANSCRIPT, live_audio, panel
from moss_engine.ui.document import CHINESE, TITLE, own_file
from moss_engine.ui.handlers import Handlers
from moss_engine.ui.parts.composer import composer, talks_first
from moss_engine.ui.parts.masthead import masthead, running
from moss_engine.ui.parts.programs import OPEN_PROGRAMS
from moss_engine.ui.parts.settings import settings
from moss_engine.ui.parts.words import (
    NOTICE,
    SENT_ON,
    TO_ASK,
    TO_ASK_CHINESE,
    TO_READ,
    WHAT,
    invitation,
)
from moss_engine.ui.programs import Outboxes, offer, slow_down

MAX_QUEUE = 256  # calls that Gradio has not begun yet


def build_page(handlers: Handlers) -> gr.Blocks:
    """The page, ready to launch."""
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as page:
        gr.HTML("", js_on_load="window.first.arrived(element)", apply_default_css=False)
        offer(handlers, Outboxes(page))
    page.queue(api_open=False, max_size=MAX_QUEUE)
    slow_down(page)
    return page


def page_html(facts: ServiceInfo, no_hands_free: str | None, programs: str) -> str:
    """The whole page; the style sheet finds the places. `no_hands_free` is the sentence that says
    why hands-free talking is not offered, or None; `programs` is the panel for those who write
    programs, as HTML."""
    mode = facts.default_mode
    example = TO_READ[0] if mode.split_sentences else TO_ASK[0]
    chinese = example if mode.spell_out else TO_ASK_CHINESE[0]
    told = {
        "rate": facts.sample_rate_hz,
        "controls": [*BY_NAME],
        "limit": facts.max_text_chars,
        "max_s": facts.max_speech_s,
        "microphone_hz": RATE_HZ,
        "no_hands_free": no_hands_free,
        "meanings": meanings(),
        "chinese": own_file(CHINESE)[0],
        "spoken": [m.name for m in facts.modes if m.input == "speech"],
        "talks": talks_first(facts),
    }
    notices = [NOTICE, SENT_ON.format(brain=facts.brain)] if facts.brain else [NOTICE]
    notice = "".join(f"<p>{html.escape(text)}</p>" for text in notices)
    facts_of_scripts = json.dumps(told, ensure_ascii=False).replace("<", "\\u003c")
    return f"""
<div id="page">{masthead(facts)}{programs}
<div id="desk">
<div id="left">
<section id="talk">{composer(facts)}{settings(facts)}</section>
<section id="said"><div id="said-head"><h2 id="said-name">Conversation</h2>
<button type="button" id="clear">Clear all</button></div>{TRANSCRIPT}</section>
</div>
<div id="right">{live_audio(invitation(mode), WHAT, example, chinese)}{panel(running(facts))}</div>
</div>
<div id="notice">{notice}{OPEN_PROGRAMS if programs else ""}</div>
<script type="application/json" id="told">{facts_of_scripts}</script></div>"""
