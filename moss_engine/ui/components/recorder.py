"""The recorder: it takes a question by a button, hands-free, or as a file.

The sound goes to the server while it is being said, as 16-bit PCM at 16 kHz made by an AudioWorklet,
so nothing is left to send when the last word is over, and no format of a browser has to be
understood.
"""

from __future__ import annotations

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
  <input type="file" class="rec-input" hidden accept="audio/*,.wav,.flac,.ogg,.opus,.mp3,.aiff">
  <button type="button" class="rec-again" hidden>Send again</button>
</div>
<p class="rec-why"></p></div>"""
