"""The live reply: PCM that is played while it is being made.

The messages of a reply (`moss_engine.ui.stream`) and its sound come by the page's own WebSocket
(`moss_engine.ui.door`). In the browser an AudioWorklet's ring buffer plays them without a gap, while
captions and waveform follow what is heard.
"""

from __future__ import annotations

import html


def live_audio(hint: str, what: str, example: str, chinese: str) -> str:
    """Before the first reply it shows `hint`, what this is, and a button that asks `example`, or
    `chinese` on a Chinese page."""
    hint, what, example, chinese = map(html.escape, (hint, what, example, chinese))
    return f"""
<div id="live">
<section class="la-caption" aria-label="Caption"><p class="la-text" translate="no"></p><p class="la-hint">{hint}</p></section>
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
