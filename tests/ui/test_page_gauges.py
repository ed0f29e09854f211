"""Figures of the server's stages, on the panel."""

from __future__ import annotations

import pytest

from moss_engine.api.events import CodecRun
from tests.ui.page_support import Script, until

pytestmark = pytest.mark.browser


def tile(tab, key: str):
    return tab.page.locator(f".tile[data-key={key}]")


def test_the_codec_s_run_is_shown(service, tab):
    service.script = Script(seconds=1.2, rtf=0.2, codec=CodecRun(0.032, 2))
    tab.buffer_whole_replies()
    tab.ask("One two three four.")
    tab.wait("done")
    codec = tile(tab, "codec_ms")
    assert until(lambda: codec.locator("b").inner_text() == "32.0")
    assert codec.locator(".tile-value small").inner_text() == "ms for 2.0 replies"
    assert "without the wait for its turn" in codec.locator(".tip").text_content()
    assert tab.problems == []


def test_a_token_that_is_called_like_a_method_of_javascript_is_shown_as_it_stands(tab):
    pieces = ["constructor", " toString", "\n"]
    tab.page.evaluate(
        """(pieces) => document.dispatchEvent(new CustomEvent("liveaudio", {
          detail: { ...liveAudio.state, run: "0123abcd", ids: [0, 1, 2], pieces: { ...pieces } },
        }))""",
        pieces,
    )
    shown = tab.page.locator(".ids-roll span").all_text_contents()
    assert shown == ["constructor", "toString", "\u21b5"]
