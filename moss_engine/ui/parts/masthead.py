"""The head of the page, and what it tells of itself to those who ask: purpose, limits, and what
runs here."""

from __future__ import annotations

import html

from moss_engine.api.info import ServiceInfo
from moss_engine.ui.parts.words import WHAT

UPSTREAM = "https://github.com/OpenMOSS/MOSS-Speech"
HEARS_NOTHING = "This checkpoint was trained on text alone: it cannot understand a voice."
READS_ONLY = (
    "This checkpoint only reads texts aloud, and no chat server is connected to think of answers."
)


def masthead(facts: ServiceInfo) -> str:
    return f"""
<header class="mast">
  <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
    <path d="M3 16h3M9 11v10M14 5v22M19 9v14M24 13v6M29 15.5v1"/></svg>
  <h1 translate="no">MOSS-Speech <b>Live</b></h1>
  <p class="lead">A language model that speaks while it is still thinking</p>
  <span class="views" role="group" aria-label="View">
  <button type="button" data-view="listen">Listen</button>
  <button type="button" data-view="engine">Engine</button></span>
  <span class="tools"><button type="button" class="about-open" aria-haspopup="dialog">About</button>
  <button type="button" class="tongue" translate="no"></button>
  <button type="button" class="shade" aria-label="Switch between light and dark"></button></span>
</header>{about(facts)}"""


def about(facts: ServiceInfo) -> str:
    return f"""
<dialog class="about" aria-labelledby="about-head">
  <h2 id="about-head" tabindex="-1" autofocus>About this page</h2>
  <p>{html.escape(WHAT)} The page shows how: the waveform, the words as they are
    heard, and every figure as it was measured.</p>
  {limits(facts)}
  <p>The README in the program's folder leads to what every option and figure means.</p>
  <p><a href="{UPSTREAM}" target="_blank" rel="noreferrer">MOSS-Speech: source,
    paper, licence</a></p>
  <form method="dialog"><button class="about-close">Close</button></form>
</dialog>"""


def limits(facts: ServiceInfo) -> str:
    """What this checkpoint cannot do, with the reason and what would change it."""
    reasons = "" if facts.hears else _reason("Speak to it", facts.no_recogniser or HEARS_NOTHING)
    if facts.scripted or not any(mode.history for mode in facts.modes):
        reasons += _reason("Free conversation", READS_ONLY)
    if not reasons:
        return ""
    return f"""<h3>What it cannot do here</h3>
  <ul class="closed">{reasons}</ul>
  <p class="for-operators">MOSS-Speech at full size can.
    <code translate="no">python -m scripts.download</code>
    fetches it, and <code translate="no">python -m scripts.doctor CHECKPOINT CODEC</code>
    tells whether this machine can run it. A chat server on this machine is found by
    <code translate="no">python app.py --brain auto</code>.</p>"""


def _reason(label: str, why: str) -> str:
    return f"<li>{label}: {html.escape(why)}</li>"


def running(facts: ServiceInfo) -> list[tuple[str, str]]:
    """What runs, by the names that figures are compared by."""
    run = facts.runtime
    names = [
        ("checkpoint", run.weights),
        ("runtime", f"{run.name} {run.version}"),
        ("device", run.device),
        ("format", run.dtype),
    ]
    return names + ([("engine", run.engine_digest[:12])] if run.engine_digest else [])
