"""The components as HTML; what they do and how they look stands beside this, under their names."""

from __future__ import annotations

import html
from collections.abc import Sequence

RECORDER = """
<div id="recorder">
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
  <input type="file" class="rec-input" hidden accept="audio/*,.flac,.ogg,.opus,.aiff,.m4a,.webm">
  <button type="button" class="rec-again" hidden>Send again</button>
</div>
<p class="rec-why"></p></div>"""

TRANSCRIPT = """
<div id="chat" tabindex="0" role="region" aria-labelledby="said-name">
<p class="tr-empty">Nothing said yet</p>
<ol class="tr-list"></ol>
<template>
  <div class="clip">
    <button type="button" class="clip-play" aria-label="Play">
      <svg viewBox="0 0 16 16" aria-hidden="true"><path class="clip-i-play" d="M4.5 2.8v10.4l8.2-5.2z"/>
        <path class="clip-i-hold" d="M4 2.8h2.8v10.4H4zM9.2 2.8H12v10.4H9.2z"/></svg>
    </button>
    <span class="clip-wave"><svg preserveAspectRatio="none" aria-hidden="true"><path/><path class="clip-heard"/></svg>
      <input type="range" class="clip-at" min="0" max="1" step="0.01" value="0" aria-label="Position"></span>
    <span class="clip-time"></span>
    <a class="clip-save" download="moss-speech.wav" title="Save as WAV" aria-label="Save as WAV">
      <svg viewBox="0 0 16 16" aria-hidden="true"><path d="M8 2v8M4.5 7 8 10.5 11.5 7M3 13.5h10"/></svg></a>
  </div>
</template></div>"""


def live_audio(hint: str, what: str, example: str, chinese: str) -> str:
    """Before the first reply it shows `hint`, what this is, and a button that asks `example`, or
    `chinese` on a Chinese page."""
    hint, what, example, chinese = map(html.escape, (hint, what, example, chinese))
    return f"""
<div id="live">
<section class="la-caption" aria-label="Caption"><p class="la-text" dir="auto" translate="no"></p><p class="la-hint">{hint}</p></section>
<p class="la-spoken heard-only" translate="no" aria-live="polite"></p>
<div class="la-stage">
<div class="la-sound"><svg viewBox="0 0 640 100" preserveAspectRatio="none" aria-hidden="true"><path/></svg>
  <svg class="la-heard" viewBox="0 0 640 100" preserveAspectRatio="none" aria-hidden="true"><path/></svg>
  <input type="range" class="la-place" min="0" max="0" value="0" step="0.01" disabled aria-label="Place in the answer">
</div>
<div class="la-start">
  <button type="button" class="la-example" data-en="{example}" data-zh="{chinese}">
    <svg viewBox="0 0 16 16" aria-hidden="true"><path d="M4 2.5v11l9-5.5z"/></svg>Hear an example</button>
  <p>{what}</p>
</div>
</div>
<div class="la-bar"><div class="la-controls">
  <button type="button" class="la-pause" disabled aria-label="Pause or play again">
    <svg class="la-i-play" viewBox="0 0 16 16" aria-hidden="true"><path d="M4 2.5v11l9-5.5z"/></svg>
    <svg class="la-i-hold" viewBox="0 0 16 16" aria-hidden="true"><path d="M4 2.5h3v11H4zM9 2.5h3v11H9z"/></svg>
  </button>
  <span class="la-time">0:00.0 / 0:00.0</span>
  <span class="la-status" role="status"></span>
  <label class="la-loud"><svg viewBox="0 0 16 16" aria-hidden="true"><path d="M2 6v4h2.6L8 13V3L4.6 6zM10 5.5a3.6 3.6 0 0 1 0 5z"/></svg>
    <input type="range" class="la-volume" min="0" max="100" value="100" aria-label="Volume"></label>
  <button type="button" class="la-save" disabled popovertarget="la-menu">Save
    <svg viewBox="0 0 16 16" aria-hidden="true"><path d="M4 6.5 8 10.5 12 6.5"/></svg></button>
  <span class="la-menu" id="la-menu" popover role="group" aria-label="Save">
    <button type="button" class="la-wav"><b>Sound</b> <small>A WAV file</small></button>
    <button type="button" class="la-srt"><b>Captions</b> <small>An SRT file, in step with the sound</small></button>
    <button type="button" class="la-vtt"><b>Captions for the web</b> <small>A WebVTT file</small></button>
    <button type="button" class="la-share"><b>Page to send</b> <small>Sound and captions in one HTML file</small></button></span>
</div></div>
<section class="la-headline" aria-label="This reply in two figures">
  <p data-say="heard"><b>–</b> <span></span></p><p data-say="gaps"><b>–</b> <span></span></p>
</section>
<p class="la-way">Your connection is slow, so this sound is compressed (Opus) on its way.</p>
<p class="la-note">This address is no secure context, so the browser offers no AudioWorklet: sound is scheduled piece by
piece and starts later. Open the page through https or localhost for the exact player.</p></div>"""


TOKENS = (
    "The model takes one step for each of these: a text piece as it is written, or a number that "
    "names a short sound."
)

STAGES = [
    (
        "sent",
        "To the server",
        "From your click, or from the end of your last word, to the page's server. Both clocks "
        "are joined by the narrowest bounds that the messages give; hover the value for their "
        "uncertainty.",
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
    <h3>The way to your ear <em class="fall-total"></em></h3>{fall_rows()}</section>
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
