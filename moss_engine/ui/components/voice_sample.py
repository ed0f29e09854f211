"""VoiceSample: a Gradio component that takes the recording an own voice is made of, through the
page's Recorder."""

from __future__ import annotations

from typing import Any

import gradio as gr

from moss_engine.ui.modules import mounts

TEMPLATE = """
<button type="button" class="vs-record" disabled>Record 5 seconds</button>
<button type="button" class="vs-file" disabled>Choose a file</button>
<input type="file" class="vs-input" hidden accept="audio/*,.wav,.flac,.ogg,.opus,.mp3,.aiff">
<span class="vs-state" role="status"></span>
"""
CSS = """
display: flex; flex-wrap: wrap; align-items: center; gap: 8px 12px;
button { font: inherit; font-size: 13px; color: var(--ink); background: none; border: 1px solid var(--line);
  border-radius: 999px; padding: 5px 14px; cursor: pointer; }
button:hover:not(:disabled) { color: var(--moss); border-color: var(--moss); }
button:disabled { color: var(--quiet); cursor: default; }
.vs-state { font-size: 12.5px; color: var(--quiet); }
"""


def voice_sample(**kwargs: Any) -> gr.HTML:
    """Its value names the recording."""
    return gr.HTML(
        "",
        html_template=TEMPLATE,
        css_template=CSS,
        apply_default_css=False,
        js_on_load=mounts("components/voice_sample.js", "sampled"),
        **kwargs,
    )
