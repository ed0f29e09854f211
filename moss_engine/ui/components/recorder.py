"""Recorder: a Gradio component that records a question, by a button or hands-free, or takes a file.

The sound goes to the server while it is being said, as 16-bit PCM at 16 kHz made by an AudioWorklet, so nothing is
left to send when the last word is over, and no format of a browser has to be understood.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from moss_engine.audio.turn_taking import RATE_HZ
from moss_engine.ui.modules import component

TEMPLATE = """
<button type="button" class="rec-talk" aria-pressed="false" aria-label="Talk">
  <svg viewBox="0 0 24 24" aria-hidden="true">
    <path class="rec-i-mic" d="M12 3a3 3 0 0 1 3 3v5a3 3 0 0 1-6 0V6a3 3 0 0 1 3-3zM6 11a6 6 0 0 0 12 0M12 17v4"/>
    <path class="rec-i-send" d="M12 20V5M5.5 11.5 12 5l6.5 6.5"/></svg>
</button>
<div class="rec-words">
  <span class="rec-state" role="status"></span>
  <span class="rec-hint"></span>
</div>
<div class="rec-more">
  <label class="rec-free"><input type="checkbox" role="switch"><i aria-hidden="true"></i>Hands-free</label>
  <button type="button" class="rec-file">Choose a file</button>
  <input type="file" class="rec-input" hidden accept="audio/*,.wav,.flac,.ogg,.opus,.mp3,.aiff">
  <button type="button" class="rec-again" hidden>Send again</button>
</div>
<p class="rec-why"></p>
"""


def recorder(*, max_s: float, no_hands_free: str | None, **kwargs: Any) -> gr.HTML:
    """`no_hands_free` is the sentence that says why hands-free talking is not offered, or None."""
    return component(
        "recorder", TEMPLATE, max_s=max_s, rate_hz=RATE_HZ, no_hands_free=no_hands_free, **kwargs
    )
