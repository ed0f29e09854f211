"""The status panel: figures, waterfall and sampled tokens of the reply that is playing.

Constant HTML: panel.js fills it from the messages that LiveAudio receives, so it costs no update of its own.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from moss_engine.metrics import meanings

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Tile:
    """A figure: `key` names its source in panel.js, `where` who measured it."""

    key: str
    name: str
    unit: str
    where: str
    meaning: str


def tiles() -> list[Tile]:
    server = meanings()
    return [
        Tile("heard_after", "Heard after", "ms", "browser",
             "From your click or key press, or hands-free from the moment at which your turn was found to be over, to "
             "the first sample leaving the audio graph, plus the output latency that the browser reports."),
        Tile("ttfa_ms", "First audio", "ms", "server", server["ttfa_ms"]),
        Tile("prefill_ms", "Prefill", "ms", "server", server["prefill_ms"]),
        Tile("queue_wait_ms", "Queue", "ms", "server", server["queue_wait_ms"]),
        Tile("rtf", "RTF", "", "server", server["rtf"]),
        Tile("audio_rows_per_s", "Speech head", "rows/s", "server", server["audio_rows_per_s"]),
        Tile("text_rows_per_s", "Text head", "rows/s", "server", server["text_rows_per_s"]),
        Tile("buffered", "Buffered", "s", "browser", "Sound that has arrived in the browser and was not played yet."),
        Tile("underruns", "Underruns", "", "browser",
             "How often the browser ran out of sound before the reply was over, with the silence that this put in."),
        Tile("prompt", "Prompt", "rows", "server",
             "Rows of the prompt, and how many of them were found in the prefix cache and not computed again."),
        Tile("blocks", "KV used / cached / free", "", "server",
             "Blocks of the key and value pool: used by running replies, cached for later turns, and free."),
        Tile("seed", "Seed", "", "server",
             "The same seed and settings give the same rows again, whoever else is served."),
    ]


STAGES = [
    ("sent", "To the server", "From your click, or from the moment at which your turn was over, to the page's server. "
                              "Both clocks are joined by the narrowest bounds that the messages give; hover the value "
                              "for their uncertainty."),
    ("prepare", "Prepare", "The request checked and accepted; of a recording, what was left to do of turning it into "
                           "codes."),
    ("queue", "Queue", "Waiting for a place among the running replies."),
    ("prefill", "Prefill", "The prompt through the network, up to the first sampled row."),
    ("codes", "First sound", "Rows up to the first codes, and the vocoder that turns them into samples."),
    ("way", "To the browser", "From the first samples being made to their arrival in this tab."),
    ("buffer", "To the ear", "The browser's own buffer, and the output latency that it reports."),
]


def panel_html() -> str:
    cells = "".join(
        f'<div class="tile" tabindex="0" data-key="{tile.key}" aria-describedby="tip-{tile.key}">'
        f'<span class="tile-name">{tile.name}</span>'
        f'<span class="tile-value"><b>–</b><small>{tile.unit}</small></span>'
        f'<span class="tile-where">{tile.where}</span>'
        f'<span class="tip" role="tooltip" id="tip-{tile.key}">{html.escape(tile.meaning)}</span></div>'
        for tile in tiles()
    )
    rows = "".join(
        f'<div class="fall-row" tabindex="0" data-stage="{key}" aria-describedby="tip-{key}"><span>{name}</span>'
        f'<span class="fall-track"><i></i></span><b>–</b>'
        f'<span class="tip" role="tooltip" id="tip-{key}">{html.escape(meaning)}</span></div>'
        for key, name, meaning in STAGES
    )
    return f"""
<section class="tiles" aria-label="Figures of this reply">{cells}</section>
<div class="panel-pair">
  <section class="fall" aria-label="Waterfall of this request">
    <h3>One request, one clock <em class="fall-total"></em></h3>{rows}</section>
  <section class="ids" aria-label="Sampled tokens">
    <h3>Sampled tokens <em><i class="key-text"></i>text <i class="key-code"></i>speech</em></h3>
    <div class="ids-roll" tabindex="0" role="group" aria-label="Text pieces and speech codes in order"></div></section>
</div>"""


def make_panel(**kwargs: Any) -> gr.HTML:
    return gr.HTML(
        html_template=panel_html(),
        css_template=(HERE / "panel.css").read_text(encoding="utf-8"),
        js_on_load=(HERE / "panel.js").read_text(encoding="utf-8"),
        apply_default_css=False,
        **kwargs,
    )
