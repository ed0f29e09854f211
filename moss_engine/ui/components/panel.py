"""The status panel: figures, waterfall and sampled tokens of the reply that is playing.

Constant HTML: panel.js fills it from the messages that LiveAudio receives, so it costs no update of
its own.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from moss_engine.api.metrics import meanings

HERE = Path(__file__).resolve().parent
PARTS = ("panel.js", "panel_compare.js")


@dataclass(frozen=True)
class Tile:
    """A figure: `key` names its source in panel.js, `where` who measured it."""

    key: str
    name: str
    unit: str
    where: str
    meaning: str


TILES = (
    (
        "heard_after",
        "Heard after",
        "ms",
        "From your click or key press, or hands-free from the moment at which your turn was found "
        "to be over, to the first sample leaving the audio graph, plus the output latency that the "
        "browser reports.",
    ),
    ("ttfa_ms", "First audio", "ms", None),
    ("prefill_ms", "Prefill", "ms", None),
    ("queue_wait_ms", "Queue", "ms", None),
    ("rtf", "RTF", "", None),
    ("audio_rows_per_s", "Speech rows", "/s", None),
    ("text_rows_per_s", "Text rows", "/s", None),
    (
        "buffered",
        "Buffered",
        "s",
        "Sound that has arrived in the browser and was not played yet; as PCM, which is every "
        "sample as it was made, or compressed as Opus where the connection is too slow for that.",
    ),
    (
        "underruns",
        "Underruns",
        "",
        "How often the browser ran out of sound before the reply was over, with the silence that "
        "this put in.",
    ),
    (
        "prompt",
        "Prompt",
        "rows",
        "Rows of the prompt, and how many of them were found in the prefix cache and not computed "
        "again.",
    ),
    (
        "blocks",
        "KV used / free",
        "",
        "Blocks of the key and value pool, the model's memory of what was said: used by running "
        "replies, and free for others; some of the free ones are kept for later turns until they "
        "are needed.",
    ),
    ("seed", "Seed", "", "The same seed and settings give the same rows again, in any batch."),
)
"""Key in panel.js, name, unit and meaning; without one it is the server's figure of that name."""

IN_BROWSER = {"heard_after", "buffered", "underruns"}
TOKENS = (
    "The model takes one step for each of these: a text piece as it is written, or a number that "
    "names a short sound."
)


def tiles() -> list[Tile]:
    server = meanings()
    return [
        Tile(key, name, unit, "browser" if key in IN_BROWSER else "server", meaning or server[key])
        for key, name, unit, meaning in TILES
    ]


STAGES = [
    (
        "sent",
        "To the server",
        "From your click, or from the moment at which your turn was over, to the page's server. "
        "Both clocks are joined by the narrowest bounds that the messages give; hover the value "
        "for their uncertainty.",
    ),
    (
        "prepare",
        "Prepare",
        "The request checked and accepted; of a recording, what was left to do of turning it into "
        "codes.",
    ),
    (
        "listened",
        "Recogniser",
        "From the end of the recording until its words were known; in a pause they are known "
        "before the turn is over.",
    ),
    ("brain", "Brain", "From the question being accepted to the first token of who thinks."),
    ("sentence", "First sentence", "Until the first sentence was thought to its end."),
    ("queue", "Queue", "Waiting for a place among the running replies."),
    ("prefill", "Prefill", "The prompt through the network, up to the first sampled row."),
    (
        "codes",
        "First sound",
        "Rows up to the first codes, and the vocoder that turns them into samples.",
    ),
    ("way", "To the browser", "From the first samples being made to their arrival in this tab."),
    ("buffer", "To the ear", "The browser's own buffer, and the output latency that it reports."),
]


def panel_html(running: Sequence[tuple[str, str]]) -> str:
    facts = "".join(
        f'<div><dt>{html.escape(name)}</dt><dd translate="no">{html.escape(value)}</dd></div>'
        for name, value in running
    )
    return f"""
<div class="details-head">
  <button type="button" class="details-open" aria-expanded="true" aria-controls="engine-details">
    <svg viewBox="0 0 16 16" aria-hidden="true"><path d="M6 3.5 10.5 8 6 12.5"/></svg>Engine details</button>
  <button type="button" class="compare" hidden>Compare with the next reply</button>
  <button type="button" class="explain" aria-expanded="false">Explain the figures</button>
</div>
<div class="details" id="engine-details">
<dl class="facts" aria-label="What is running">{facts}</dl>
<p class="none-yet">Figures, the way of a request and the sampled tokens appear here with the first reply.</p>
<div class="versus" role="group" aria-label="The reply that others are compared with" hidden>
  <button type="button" class="versus-play" aria-label="Play A" aria-pressed="false">A</button>
  <p class="versus-text" translate="no"></p><p class="versus-same" role="status"></p>
  <button type="button" class="versus-end">Stop comparing</button></div>
<section class="tiles" aria-label="Figures of this reply">{tile_cells()}</section>
<div class="panel-pair">
  <section class="fall" aria-label="Waterfall of this request">
    <h3>From your press to your ear <em class="fall-total"></em></h3>{fall_rows()}</section>
  <section class="ids" aria-label="Sampled tokens">
    <h3>Sampled tokens <em><i class="key-text"></i>text <i class="key-code"></i>speech</em></h3>
    <p class="tip" id="tip-ids">{TOKENS}</p>
    <div class="ids-roll" translate="no" tabindex="0" role="group" aria-label="Text pieces and speech codes in order"></div></section>
</div></div>"""


def tile_cells() -> str:
    return "".join(
        f'<div class="tile" data-key="{tile.key}">'
        f'<span class="tile-name">{tile.name}</span>'
        f'<span class="tile-value"><b>–</b><small>{tile.unit}</small></span>'
        f'<span class="tile-other"></span>'
        f'<span class="tile-where">{tile.where}</span>'
        f'<span class="tip" id="tip-{tile.key}">{html.escape(tile.meaning)}</span></div>'
        for tile in tiles()
    )


def fall_rows() -> str:
    return "".join(
        f'<div class="fall-row" data-stage="{key}"><span>{name}</span>'
        f'<span class="fall-track"><i></i><i class="other"></i></span><b>–</b>'
        f'<span class="tip" id="tip-{key}">{html.escape(meaning)}</span></div>'
        for key, name, meaning in STAGES
    )


def make_panel(running: Sequence[tuple[str, str]], **kwargs: Any) -> gr.HTML:
    """`running`: names and values of what runs."""
    return gr.HTML(
        html_template=panel_html(running),
        css_template=(HERE / "panel.css").read_text(encoding="utf-8"),
        js_on_load="\n".join((HERE / name).read_text(encoding="utf-8") for name in PARTS),
        apply_default_css=False,
        **kwargs,
    )
