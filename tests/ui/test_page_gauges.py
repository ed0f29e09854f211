"""How near each stage comes to what the machine could do, on the panel."""

from __future__ import annotations

import pytest

from moss_engine.api.events import CodecRun
from moss_engine.api.info import MachineLimits
from tests.ui.page_support import Script, until

pytestmark = pytest.mark.browser

# A run of the codec reads 2 MB at 1 GB/s and multiplies 8 million times at 1 a nanosecond: 8 ms.
LIMITS = MachineLimits(1e12, 1e15, 1000, 10, 2000, 1e9, 1e9)


def tile(tab, key: str):
    return tab.page.locator(f".tile[data-key={key}]")


def test_the_codec_s_run_is_shown_with_its_share_of_the_limit(service, tab):
    service.limits = LIMITS
    service.script = Script(seconds=1.2, rtf=0.2, codec=CodecRun(0.032, 2, 8e6, 2e6))
    tab.buffer_whole_replies()
    tab.ask("One two three four.")
    tab.wait("done")
    codec = tile(tab, "codec_ms")
    assert until(lambda: codec.locator("b").inner_text() == "32.0")
    assert codec.locator(".tile-value small").inner_text() == "ms for 2.0 replies"
    gauge = codec.locator(".tile-gauge")
    assert gauge.inner_text() == "25 % of this machine's limit"
    assert "At least 8.00 ms" in gauge.get_attribute("title")
    assert "without the wait for its turn" in codec.locator(".tip").text_content()
    assert tab.problems == []


@pytest.mark.parametrize("run", [None, CodecRun(0.032, 1)], ids=["unknown", "not counted"])
def test_nothing_is_said_of_a_limit_that_nobody_counted(service, tab, run):
    service.limits = LIMITS
    service.script = Script(seconds=1.2, rtf=0.2, codec=run)
    tab.buffer_whole_replies()
    tab.ask("One two three four.")
    tab.wait("done")
    shown = tile(tab, "codec_ms").locator("b")
    assert until(lambda: shown.inner_text() == ("32.0" if run else "\u2013"))
    assert tile(tab, "codec_ms").locator(".tile-gauge").is_hidden()


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
