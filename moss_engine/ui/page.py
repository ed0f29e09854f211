"""Layout and wiring of the page."""

from __future__ import annotations

import html
from pathlib import Path

import gradio as gr

from moss_engine.modes import Mode
from moss_engine.ui import form
from moss_engine.ui.facts import Facts
from moss_engine.ui.handlers import Handlers
from moss_engine.ui.live_audio import LiveAudio
from moss_engine.ui.panel import make_panel
from moss_engine.ui.recorder import Recorder
from moss_engine.ui.transcript import Transcript
from moss_engine.ui.voice_sample import VoiceSample
from moss_engine.validation import CHANNEL_RANGES

HERE = Path(__file__).resolve().parent
TITLE = "MOSS-Speech Live"
STATE_S = 900  # a conversation is forgotten after so long without a message
CACHE_CHECK_S, CACHE_AGE_S = 600, 1800
MAX_QUEUE = 16

TO_READ = (
    "Good morning! It is twenty past nine, and the sun is finally out.",
    "The quick brown fox jumps over the lazy dog.",
    "Please call Dr. Smith at 4:30 pm about the $25 invoice.",
    "She sells sea shells by the sea shore, and the shells she sells are sea shells, I am sure.",
)
TO_ASK = ("Hello! Who are you?", "Why is the sky blue?", "Tell me a very short story about a fox.",
          "How do I make a good cup of tea?")
TO_ANSWER = ("Hello! Who are you?", "What is seven plus five?", "Which day comes after Friday?", "What can you do?")
KEYS = ('<p class="keys"><span class="k-type"><kbd>Enter</kbd> sends</span>'
        '<span class="k-talk"><kbd>Space</kbd> talks</span> <kbd>Esc</kbd> stops</p>')
ENABLE = (
    "<p>MOSS-Speech can: <code>python -m scripts.download</code> fetches it, <code>python -m scripts.doctor "
    "CHECKPOINT CODEC</code> tells whether this machine can run it.</p>"
)
CONSENT = ("The voice is mine, or its owner agrees to hear it here. It is kept in memory until this tab is closed, and "
           "used for nothing else.")
NOTICE = (
    "You hear an AI voice, not a person. What you type or say is processed on the machine that runs this page; "
    "conversations "
    f"are forgotten after {STATE_S // 60} minutes without a message, sound files within "
    f"{(CACHE_CHECK_S + CACHE_AGE_S) // 60} minutes. Nothing is used for training. Not for emergencies or medical use."
)
ASK = f"(...values) => window.liveAudio.submit(values, {form.CONTROLS.index('heard')})"
KEEP_SEED = "(fresh, seed) => fresh ? seed : window.liveAudio.state.seed ?? seed"
TOLD = "(...values) => window.liveAudio.told(values)"
HALT = "(...values) => window.liveAudio.halt(values, 0)"


def build_page(handlers: Handlers, *, max_sessions: int, max_waiting: int) -> gr.Blocks:
    """The page, ready to launch. The engine admits and queues; Gradio lets through as many as that can ever hold."""
    facts = handlers.facts
    cache = (CACHE_CHECK_S, CACHE_AGE_S)
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=cache, fill_width=True) as page:
        conversation = gr.State(None, time_to_live=STATE_S, delete_callback=handlers.forget)
        gr.HTML(masthead(facts), js_on_load=(HERE / "page.js").read_text(encoding="utf-8"), elem_id="masthead",
                apply_default_css=False)
        with gr.Row(elem_id="desk", equal_height=False):
            with gr.Column(scale=5, min_width=340, elem_id="talk"):
                chat, controls, send, stop, clear, own = talk(facts)
                recorder = controls["utterance"]
            with gr.Column(scale=9, min_width=340, elem_id="show"):
                live = LiveAudio(sample_rate=facts.sample_rate_hz, elem_id="live", label="Live",
                                 hint="Ask something. You hear the answer while it is still being made."
                                 if facts.hears else "Type a sentence. You hear it while it is still being made.")
                make_panel(elem_id="panel")
        gr.HTML(f"<p>{html.escape(NOTICE)}</p>", elem_id="notice", apply_default_css=False)

        quietly = {"queue": False, "show_progress": "hidden", "trigger_mode": "multiple"}
        # A component that is skipped costs Gradio more than all the rest of a message, so a reply has but one output.
        reply = {"fn": handlers.reply, "inputs": [*controls.values(), conversation], "outputs": [live, conversation],
                 "js": ASK, "validator": handlers.validate, "concurrency_id": "engine",
                 "concurrency_limit": max_sessions + max_waiting, "show_progress": "hidden"}
        # A question replaces the one before it; page.js takes two presses for one. Replies are stopped at the service,
        # never by Gradio's `cancels`, which would leave the reply's last message out.
        gr.on([send.click, controls["text"].submit], **reply, api_name="reply", trigger_mode="multiple")
        recorder.spoken(**reply, api_visibility="private", trigger_mode="multiple")
        live.accepted(handlers.accepted, [controls["text"], conversation], [chat, controls["text"]],
                      api_visibility="private", **quietly)
        live.over(handlers.chat, conversation, chat, api_visibility="private", **quietly)
        halt = {"fn": handlers.stop, "inputs": [controls["heard"], conversation], "outputs": chat, "js": HALT,
                **quietly}
        stop.click(**halt, api_name="stop")
        recorder.interrupted(**halt, api_visibility="private")
        live.unwanted(**halt, api_visibility="private")
        live.replaced(**{**halt, "js": TOLD}, api_visibility="private")
        clear.click(handlers.clear, [controls["heard"], conversation], [chat, conversation], js=HALT,
                    api_visibility="private", **quietly)
        if own is not None:
            consent, sample = own
            made = sample.sampled(handlers.take_voice, [consent, sample, conversation],
                                  [controls["voice"], conversation, sample], api_visibility="private", **quietly)
            made.then(None, js="() => document.dispatchEvent(new Event('voicemade'))")
        controls["new_seed"].input(None, [controls["new_seed"], controls["seed"]], controls["seed"], js=KEEP_SEED)
        if facts.hears:
            gr.api(handlers.listen, api_name="listen", queue=False)
        page.unload(handlers.leave)
    page.queue(max_size=MAX_QUEUE, default_concurrency_limit=1, api_open=False)
    return page


def talk(facts: Facts):
    """The left side: conversation, text box, mode, examples and settings."""
    with gr.Row(elem_id="talk-head"):
        gr.HTML("<h2>Conversation</h2>", apply_default_css=False)
        clear = gr.Button("New", size="sm", elem_id="clear", min_width=60, scale=0)
    chat = Transcript(elem_id="chat", label="Conversation", empty="Nothing said yet")
    with gr.Column(elem_id="composer"):
        mode = gr.Radio([(mode.label, mode.name) for mode in facts.modes], value=facts.default_mode.name, label="Mode",
                        show_label=False, container=False, elem_id="mode")
        gr.HTML(mode_notes(facts), elem_id="mode-notes", apply_default_css=False)
        verb, wish = ask_words(facts.default_mode)
        # Of any length: a browser would cut what is too long without a word, the server says so.
        text = gr.Textbox("", show_label=False, label="Your text", placeholder=wish, lines=1, max_lines=7,
                          container=False, autofocus=True, elem_id="text")
        recorder = Recorder(max_s=facts.max_speech_s, no_hands_free=facts.no_hands_free, elem_id="recorder",
                            label="Recording", visible=facts.hears)
        heard, run = (gr.Textbox("", show_label=False, label=label, visible=False) for label in ("Heard", "Run"))
        with gr.Row(elem_id="send-row"):
            gr.HTML(KEYS, apply_default_css=False)
            stop = gr.Button("Stop", elem_id="stop", min_width=76, scale=0)
            send = gr.Button(verb, variant="primary", elem_id="send", min_width=96, scale=0)
    gr.HTML(examples(facts), elem_id="examples", apply_default_css=False)
    if facts.closed:
        gr.HTML(not_here(facts), elem_id="not-here", apply_default_css=False)
    inner, own = settings(facts)
    controls = {"text": text, "mode": mode, "utterance": recorder, "heard": heard, "run": run, **inner}
    return chat, {name: controls[name] for name in form.CONTROLS}, send, stop, clear, own


def settings(facts: Facts) -> tuple[dict[str, gr.components.Component], tuple[gr.Checkbox, VoiceSample] | None]:
    """The closed accordion with everything a reply's sampling depends on, and the parts that take an own voice."""
    controls: dict[str, gr.components.Component] = {}
    with gr.Accordion("Settings", open=False, elem_id="settings"):
        with gr.Row():
            controls["voice"] = gr.Dropdown(list(facts.voices), value=facts.voices[0], label="Voice", min_width=120,
                                            interactive=len(facts.voices) > 1)
            most, rows_per_s = facts.sampling.max_rows, facts.sample_rate_hz / facts.samples_per_code
            controls["max_rows"] = gr.Slider(16, max(4096, most), value=most, step=1, min_width=160,
                                             label=f"Most rows ({rows_per_s:g} = 1 s)")
        own = own_voice(facts)
        controls["system"] = gr.Textbox("", label="System prompt", lines=2, max_lines=5, elem_id="system",
                                        max_length=facts.max_text_chars,
                                        visible=any(mode.own_system for mode in facts.modes))
        with gr.Row():
            controls["seed"] = gr.Number(0, label="Seed", precision=0, minimum=0, maximum=form.MAX_SEED, min_width=120,
                                         elem_id="seed")
            controls["new_seed"] = gr.Checkbox(True, label="New seed for every reply", min_width=160,
                                               elem_id="new-seed")
        for name, title, channel in (("speech", "Speech", facts.sampling.audio), ("text", "Text", facts.sampling.text)):
            gr.HTML(f'<h3 id="{name}-head">{title} head</h3>', apply_default_css=False)
            with gr.Row(elem_id=f"{name}-sampling"):
                for field, step in (("temperature", 0.05), ("top_k", 1), ("top_p", 0.01), ("repetition_penalty", 0.01)):
                    allowed = CHANNEL_RANGES[field]
                    label = field.replace("_", " ").replace("top ", "top-").capitalize()
                    controls[f"{name}_{field}"] = gr.Slider(allowed.low, allowed.high, value=getattr(channel, field),
                                                            step=step, label=label, min_width=150)
    return controls, own


def own_voice(facts: Facts) -> tuple[gr.Checkbox, VoiceSample] | None:
    """A visitor's own voice, behind the consent of whoever it belongs to; None where it is not offered."""
    if not facts.own_voice:
        return None
    with gr.Column(elem_id="own-voice"):
        gr.HTML("<h3>Your own voice</h3>", apply_default_css=False)
        return (gr.Checkbox(False, label=CONSENT, elem_id="consent"),
                VoiceSample(elem_id="voice-sample", label="Voice sample"))


def masthead(facts: Facts) -> str:
    run = facts.runtime
    chips = [("checkpoint", run.weights), ("runtime", f"{run.name} {run.version}"), ("device", run.device),
             ("format", run.dtype)]
    if run.engine_digest:
        chips.append(("engine", run.engine_digest[:12]))
    items = "".join(f"<li><span>{name}</span> {html.escape(value)}</li>" for name, value in chips)
    return f"""
<header class="mast">
  <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
    <path d="M3 16h3M9 11v10M14 5v22M19 9v14M24 13v6M29 15.5v1"/></svg>
  <h1>MOSS-Speech <b>Live</b></h1>
  <ul class="facts" aria-label="What is running">{items}</ul>
  <button type="button" class="shade" aria-label="Switch between light and dark"></button>
</header>"""


def mode_notes(facts: Facts) -> str:
    """A sentence for each mode."""
    return "".join(f'<p data-mode="{html.escape(mode.name)}" data-input="{mode.input}" '
                   f'data-system="{html.escape(mode.system)}" data-verb="{ask_words(mode)[0]}" '
                   f'data-wish="{ask_words(mode)[1]}">{html.escape(mode.note or "")}</p>'
                   for mode in facts.modes)


def ask_words(mode: Mode) -> tuple[str, str]:
    """What the button says in a mode, and the empty text box: a mode that splits its text into sentences reads it."""
    return ("Speak", "Type what you want to hear") if mode.split_sentences else ("Ask", "Type your question")


def not_here(facts: Facts) -> str:
    """What this checkpoint cannot do, with the reason and what would change it."""
    return "".join(f'<p class="closed"><span aria-disabled="true">{html.escape(item.label)}</span> '
                   f'{html.escape(item.why)}</p>' for item in facts.closed) + ENABLE


def examples(facts: Facts) -> str:
    """Texts to begin with, for each mode: one that splits its text into sentences reads it, others answer it."""
    groups = ""
    for mode in facts.modes:
        texts = TO_READ if mode.split_sentences else TO_ASK if mode.history else TO_ANSWER
        chips = "".join(f'<button type="button" class="chip">{html.escape(text)}</button>'
                        for text in texts if mode.input == "text")
        groups += (f'<div class="chips" data-mode="{html.escape(mode.name)}" role="group" '
                   f'aria-label="Examples: each is sent at once">{chips}</div>')
    return groups
