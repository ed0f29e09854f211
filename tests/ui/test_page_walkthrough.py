"""Somebody visits for the first time: one click, and a sentence is heard that can be understood."""

from __future__ import annotations

import base64
import re

import numpy as np
import pytest

from moss_engine.build import build_service
from moss_engine.codec.resample import resample
from moss_engine.config import EngineConfig
from moss_engine.recogniser.base import RATE_HZ
from moss_engine.recogniser.load import load_recogniser
from moss_engine.ui.config import PageConfig
from moss_engine.ui.parts.words import TO_READ
from tests.ui.page_support import free_port

pytestmark = pytest.mark.browser

SOUND = """async () => {
  const bytes = new Uint8Array(await liveAudio.wav().arrayBuffer());
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}"""
HEAD_BYTES = 44


@pytest.fixture(scope="module")
def built_in():
    from moss_engine.ui.server import launch

    service, port = build_service(EngineConfig()), free_port()
    service.start()
    page = launch(service, PageConfig(port=port))
    yield f"http://127.0.0.1:{port}/"
    page.close(verbose=False)
    service.close()


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def test_one_click_and_a_sentence_is_understood(built_in, browser):
    import torch

    from tests.ui.page_browser import Visit

    pytest.importorskip("moonshine_voice")
    recogniser, _ = load_recogniser("auto")
    assert recogniser is not None
    tab = Visit(browser, built_in)
    try:
        tab.page.wait_for_function("document.body.dataset.input")
        tab.page.get_by_role("button", name="Hear an example").click()
        tab.page.wait_for_function("liveAudio.heard > 0")
        tab.wait("done")
        wav = base64.b64decode(tab.page.evaluate(SOUND))
        pcm = np.frombuffer(wav[HEAD_BYTES:], "<i2").astype(np.float32) / 32768
        rate_hz = tab.state("rate")
        wave = resample(torch.from_numpy(pcm), rate_hz, RATE_HZ).numpy()
        heard, said = words(recogniser.transcribe(wave).text), words(TO_READ[0])
        assert sum(word in heard for word in said) >= 0.8 * len(said), heard
        own = ("http://127.0.0.1:", "blob:", "data:")
        assert tab.problems == [] and all(url.startswith(own) for url in tab.requests)
    finally:
        tab.close()
        recogniser.close()
