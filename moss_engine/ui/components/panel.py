"""The status panel: figures, waterfall and sampled tokens of the reply that is playing; panel.js
fills it from the messages that the live reply receives."""

from __future__ import annotations

import html
from collections.abc import Sequence

TOKENS = (
    "The model takes one step for each of these: a text piece as it is written, or a number that "
    "names a short sound."
)

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


def panel(running: Sequence[tuple[str, str]]) -> str:
    """`running`: names and values of what runs."""
    facts = "".join(
        f'<div><dt>{html.escape(name)}</dt><dd translate="no">{html.escape(value)}</dd></div>'
        for name, value in running
    )
    return f"""
<div id="panel"><div class="details-head">
  <h2>Engine details</h2>
  <button type="button" class="explain" aria-expanded="false">Explain the figures</button>
</div>
<div class="details">
<dl class="facts" aria-label="What is running">{facts}</dl>
<p class="none-yet">Figures, the way of a request and the sampled tokens appear here with the first reply.</p>
<section class="tiles" aria-label="Figures of this reply"></section>
<div class="panel-pair">
  <section class="fall" aria-label="Waterfall of this request">
    <h3>From your press to your ear <em class="fall-total"></em></h3>{fall_rows()}</section>
  <section class="ids" aria-label="Sampled tokens">
    <h3>Sampled tokens <em><i class="key-text"></i>text <i class="key-code"></i>speech</em></h3>
    <p class="tip">{TOKENS}</p>
    <div class="ids-roll" translate="no" tabindex="0" role="group" aria-label="Text pieces and speech codes in order"></div></section>
</div></div></div>"""


def fall_rows() -> str:
    return "".join(
        f'<div class="fall-row" data-stage="{key}" title="{html.escape(meaning)}"><span>{name}</span>'
        f'<span class="fall-track"><i></i></span><b>–</b>'
        f'<span class="tip">{html.escape(meaning)}</span></div>'
        for key, name, meaning in STAGES
    )
