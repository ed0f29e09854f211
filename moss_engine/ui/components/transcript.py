"""The conversation, with its sound to hear again and to keep.

It shows the list that `Conversation.entries` makes, which comes by the page's WebSocket. Texts are
shown as they are, never as markup; only what changed is drawn anew, so a clip that is being played
goes on while others come. The tab keeps the words for the case that the page is loaded again and the
server has forgotten them.
"""

from __future__ import annotations

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
