"""Chromium on the page, for benches: the page in this process, a tab, a microphone that plays a
file, and what is to be seen of a conversation."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.api.errors import MissingPackageError, MossError
from moss_engine.audio.pcm import to_pcm16, write_wav
from moss_engine.config import REPO_ROOT
from moss_engine.ui.config import PageConfig

RATE_HZ = 24_000
LOUD = 0.05
TURN_LIMIT_S = 60.0
SPOKEN = "#mode-notes [data-input=speech][data-output=speech]"
WATCH = """(loud) => {
  window.seen = {
    starts: [], asked: [], silences: [], underruns: 0, before: 0, loud: 0, onset: 0, onsets: 0,
    run: null, held: null, goings: 0,
  };
  const listener = recorder.capture.listener;
  recorder.capture.listener = (pcm, level, played) => {
    const now = performance.now();
    if (level > loud) {
      if (now - seen.loud > 1000) {
        seen.onset = now;
        seen.onsets += 1;
      }
      seen.loud = now;
    }
    listener(pcm, level, played);
  };
  const { player } = liveAudio;
  const hold = player.hold.bind(player);
  player.hold = (held) => {
    if (held) seen.held = performance.now();
    else if (seen.held) seen.goings += 1;
    if (!held) seen.held = null;
    hold(held);
  };
  const stop = liveAudio.stop;
  liveAudio.stop = () => {
    if (seen.held) seen.silences.push(seen.held - seen.onset);
    seen.held = null;
    stop();
  };
  setInterval(() => {
    const { run, firstMs, underruns } = liveAudio.state;
    seen.underruns += Math.max(0, (underruns || 0) - seen.before);
    seen.before = underruns || 0;
    if (!run || run === seen.run || !firstMs) return;
    seen.run = run;
    seen.starts.push(firstMs + player.outputLatencyMs - seen.loud);
    seen.asked.push(seen.onsets - 1);
  }, 10);
}"""
"""Of a conversation by voice: `starts` from the last loud block of a question to the answer's first
sample at the loudspeaker, which question was `asked`, by its number, `silences` from the first loud
block of a voice to the silence of an answer that it stopped, and `goings` on of one that it did
not."""


def tools() -> tuple[Any, Any]:
    """The page tests' browser and scripted service; raises MissingPackageError without them."""
    sys.path.insert(0, str(REPO_ROOT))
    try:
        browsing = import_module("tests.ui.page_browser")
        support = import_module("tests.ui.page_support")
    except ImportError as error:
        raise MissingPackageError(
            f"{error.name} is not installed; run: bash scripts/test.sh --version"
        ) from None
    if browsing.CHROMIUM is None:
        raise MissingPackageError(
            "Chromium is not installed; on Debian and Ubuntu: apt-get install chromium"
        )
    return browsing, support


@contextmanager
def served(service: Any, *, scripted: bool = False) -> Iterator[str]:
    """The page in front of a service; its address. Both are ended afterwards."""
    from moss_engine.ui.server import launch

    if not scripted:
        service.start()
    page = launch(service, PageConfig(port=tools()[1].free_port()))
    try:
        yield str(page.local_url)
    finally:
        page.close(verbose=False)
        if not scripted:
            service.close()


@contextmanager
def hearing(wave: np.ndarray) -> Iterator[Any]:
    """Chromium whose microphone plays float32 [n] at RATE_HZ over and over."""
    browsing, _ = tools()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "microphone.wav"
        write_wav(path, to_pcm16(wave), RATE_HZ)
        flags = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
        played = f"--use-file-for-fake-audio-capture={path}"
        with browsing.chromium(*flags, played) as browser:
            yield browser


def talk_hands_free(browser: Any, url: str) -> Any:
    """A tab that listens hands-free, whose `seen` is that of WATCH."""
    browsing, _ = tools()
    tab = browsing.Visits(browser).make(url, permissions=["microphone"])
    tab.page.wait_for_function("window.recorder?.ready")
    mode = tab.page.locator(SPOKEN).first.get_attribute("data-mode")
    tab.page.locator(f'#mode label:has([value="{mode}"])').click()
    tab.page.evaluate(WATCH, LOUD)
    tab.page.locator(".rec-free").click()
    return tab


def require_listening(tab: Any) -> None:
    """Raise MossError, with what the page says, where it listens no longer."""
    if tab.page.evaluate("recorder.state") == "off":
        said = tab.page.locator("#problem").inner_text()
        raise MossError(f"The page closed its microphone: {said or 'it does not say why.'}")
