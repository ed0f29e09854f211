"""The closed settings: everything that a reply's sampling depends on, and an own voice."""

from __future__ import annotations

from moss_engine.api.controls import BY_NAME
from moss_engine.api.info import ServiceInfo
from moss_engine.ui.parts.composer import number
from moss_engine.ui.parts.words import CONSENT

HEADS = (  # the channel of a `Sampling`, its name here, a title and a sentence
    ("audio", "speech", "Speech head",
     "The part of the model that chooses the sounds, one code after another."),
    ("text", "text", "Text head", "The part that chooses the words."),
)  # fmt: skip
NEW_SEED = (
    '<label id="new-seed"><input type="checkbox" checked autocomplete="off">'
    f"<span>{BY_NAME['new_seed'].label}</span></label>"
)
OWN_VOICE = f"""
<div id="own-voice"><h3>Your own voice</h3>
<label id="consent"><input type="checkbox" autocomplete="off"><span>{CONSENT}</span></label>
<div id="voice-sample">
<button type="button" class="vs-record" disabled>Record 5 seconds</button>
<button type="button" class="vs-file" disabled>Choose a file</button>
<input type="file" class="vs-input" hidden accept="audio/*,.flac,.ogg,.opus,.aiff,.m4a,.webm">
<span class="vs-state" role="status"></span></div></div>"""


def settings(facts: ServiceInfo) -> str:
    told = any(mode.own_system for mode in facts.modes)
    kind = "" if told or facts.clones_voices else ' class="for-engine"'  # all of it is sampling
    seed = number(BY_NAME["seed"], 0, slides=False)
    return f"""
<details id="settings"{kind}><summary>Settings</summary>
{OWN_VOICE if facts.clones_voices else ""}{system(facts) if told else ""}
<div id="sampling">{longest(facts)}<div class="controls">{seed}{NEW_SEED}</div>
{"".join(sampling(facts, *head) for head in HEADS)}</div></details>"""


def system(facts: ServiceInfo) -> str:
    return (
        '<label id="system"><span>System prompt: what the model is told before the conversation'
        f'</span><textarea rows="2" maxlength="{facts.max_text_chars}"></textarea></label>'
    )


def longest(facts: ServiceInfo) -> str:
    rows_per_s = facts.sample_rate_hz / facts.samples_per_code
    return number(
        BY_NAME["max_rows"],
        facts.sampling.max_rows,
        label="Longest reply",
        help=f"In rows, the steps of the model: {rows_per_s:g} are a second of speech.",
        low=16,
        high=max(4096, facts.sampling.max_rows),
    )


def sampling(facts: ServiceInfo, channel: str, name: str, title: str, does: str) -> str:
    """The sliders of one head."""
    sliders = "".join(
        number(control, control.of(facts.sampling))
        for control in BY_NAME.values()
        if control.path[:-1] == (channel,)
    )
    return (
        f'<h3 id="{name}-head">{title}</h3><p class="does">{does}</p>'
        f'<div class="controls" role="group" aria-labelledby="{name}-head">{sliders}</div>'
    )
