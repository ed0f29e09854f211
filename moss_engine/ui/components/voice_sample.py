"""VoiceSample: a Gradio component that takes the recording an own voice is made of, through the
page's Recorder."""

from __future__ import annotations

from typing import Any

import gradio as gr

from moss_engine.ui.modules import component

TEMPLATE = """
<button type="button" class="vs-record" disabled>Record 5 seconds</button>
<button type="button" class="vs-file" disabled>Choose a file</button>
<input type="file" class="vs-input" hidden accept="audio/*,.wav,.flac,.ogg,.opus,.mp3,.aiff">
<span class="vs-state" role="status"></span>
"""


def voice_sample(**kwargs: Any) -> gr.HTML:
    """Its value names the recording."""
    return component("voice_sample", TEMPLATE, "sampled", value="", **kwargs)
