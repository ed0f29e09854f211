"""Chromium for tests of the page, with a tap on whatever is connected to an audio context's
destination."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import soundfile
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update "
    "--autoplay-policy=no-user-gesture-required"
).split()

PAUSE_S = 4.0  # of what the microphone plays: an answer is heard in it, on a busy machine, too
PATIENCE_MS = 60_000  # how long a test waits for what must happen; a busy machine takes its time

TAP = """
(() => {
  const connect = AudioNode.prototype.connect;
  const tap = (window.tap = { blocks: [], firstAt: null, lastAt: null, asked: 0 });
  document.addEventListener("asked", () => (tap.asked += 1));
  const keep = (samples, now) => {
    const sounding = samples.some((sample) => sample !== 0);
    if (sounding) { tap.firstAt ??= now; tap.lastAt = now; }
    tap.blocks.push(samples);
  };
  const SOURCE = `registerProcessor("tap", class extends AudioWorkletProcessor {
    process([[samples]]) {
      if (samples) this.port.postMessage([samples.slice(), Date.now()]);
      return true;
    }
  })`;
  const attach = async (source, context) => {
    if (context.audioWorklet) {
      await context.audioWorklet.addModule(URL.createObjectURL(new Blob([SOURCE], { type: "text/javascript" })));
      const node = new AudioWorkletNode(context, "tap", { numberOfOutputs: 0 });
      node.port.onmessage = ({ data }) => keep(...data);
      connect.call(source, node);
    } else {
      const node = context.createScriptProcessor(16384, 1, 1); // smaller ones lose blocks on a busy machine
      node.onaudioprocess = ({ inputBuffer }) => keep(inputBuffer.getChannelData(0).slice(), Date.now());
      connect.call(source, node);
      connect.call(node, context.destination);
    }
  };
  AudioNode.prototype.connect = function (target, ...rest) {
    if (target instanceof AudioDestinationNode) attach(this, this.context);
    return connect.call(this, target, ...rest);
  };
})();
"""
SAMPLES = """() => {
  const bytes = new Uint8Array(Float32Array.from(tap.blocks.flatMap((block) => [...block])).buffer);
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return btoa(text);
}"""

# What was changed is on the screen, and has its colours.
PAINTED = """async () => {
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 30)));
  const fades = document.getAnimations().filter((one) => one instanceof CSSTransition);
  await Promise.allSettled(fades.map(({ finished }) => finished));
}"""

# Every text of the page that somebody can see or hear, but for what visitors and models wrote.
TEXTS = """() => {
  const own = (e) => !e.closest('[translate="no"], script, style, template');
  const found = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode;
    if (own(node.parentElement) && node.parentElement.checkVisibility()) found.add(node.data);
  }
  for (const e of document.body.querySelectorAll("*")) {
    if (!own(e) || !e.checkVisibility()) continue;
    for (const name of ["aria-label", "aria-valuetext", "title", "placeholder"]) if (e.hasAttribute(name)) found.add(e.getAttribute(name));
  }
  return [...found].map((text) => text.trim().replace(/\\s+/g, " ")).filter((text) => /\\p{L}{2}/u.test(text));
}"""


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """A browser without a microphone, but for what the flags give it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*FLAGS, *flags], ignore_default_args=["--mute-audio"]
        )
        try:
            yield browser
        finally:
            browser.close()


def write_microphone(sample: Path, path: Path) -> None:
    """What the browser's microphone plays over and over: a sound file with PAUSE_S of silence
    behind it."""
    wave, rate_hz = soundfile.read(sample, dtype="float32")
    soundfile.write(path, np.pad(wave, (0, round(PAUSE_S * rate_hz))), rate_hz)


def new_context(browser: Browser, **options) -> BrowserContext:
    quiet = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}
    context = browser.new_context(**{**quiet, **options})
    context.set_default_timeout(PATIENCE_MS)
    return context


class Visit:
    """A tab of somebody who was never here, which runs `init` first; `edit` is a text of the page's
    modules, and what stands there instead; other options are those of the browser's context.
    `problems` collects what the console complains about, `requests` every address asked for."""

    def __init__(
        self,
        browser: Browser,
        url: str,
        init: str = "0",
        view: str = "engine",
        edit: tuple[str, str] | None = None,
        **options,
    ):
        self.context = new_context(browser, **options)
        self.page: Page = self.context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console",
            lambda m: self.problems.append(m.text) if m.type in ("error", "warning") else None,
        )
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        if edit is not None:
            self._edit(*edit)
        for script in (TAP, init):
            self.page.add_init_script(script)
        self.page.goto(f"{url}#{view}")
        self.arrive()
        if view == "engine":
            self.page.wait_for_selector("#panel .tile", state="attached")
        self.text = self.page.locator("#text textarea")

    def arrive(self) -> None:
        """Wait until the page is there."""
        self.page.wait_for_function("window.liveAudio")
        self.page.wait_for_selector("#mode input:checked", state="attached")

    def reload(self) -> None:
        self.page.reload()
        self.arrive()

    def _edit(self, old: str, new: str) -> None:
        def answer(route) -> None:
            text = route.fetch().text()
            assert old in text, f"the page's modules do not hold {old}"
            route.fulfill(body=text.replace(old, new), content_type="text/javascript")

        self.page.route("**/joined.js", answer)

    def ask(self, text: str) -> None:
        """Type, wait until the sound system is awake, and press Enter."""
        self.text.fill(text)
        self.page.keyboard.press("End")
        self.page.wait_for_function(
            "liveAudio.player.context?.state === 'running' && liveAudio.player.sink.ready"
        )
        self.send()

    def send(self) -> None:
        """Press Enter in the box. On return the question is on its way, so that the phase is that
        of its reply, or it stands in the box still, as the page refused it."""
        asked = self.page.evaluate("tap.asked")
        self.text.press("Enter")
        self.page.wait_for_function(
            "(asked) => tap.asked > asked || document.querySelector('#text textarea').value",
            arg=asked,
        )

    def told(self) -> str:
        """What the page says went wrong."""
        self.page.wait_for_timeout(20)
        return self.page.locator("#problem p").inner_text()

    def record(self, seconds: float) -> None:
        """Press, wait until so much has reached the server, press again."""
        self.page.locator(".rec-talk").click()
        self.page.wait_for_function(
            f"recorder.state === 'recording' && recorder.seconds >= {seconds}"
        )
        self.page.locator(".rec-talk").click()

    def choose(self, mode: str) -> None:
        """Press the mode of that label."""
        self.page.locator("#mode label", has_text=mode).click()

    def hear(self, text: str) -> None:
        """Ask, and listen to the end."""
        self.ask(text)
        self.wait("done")

    def wait(self, *phases: str) -> None:
        self.page.wait_for_function(f"{list(phases)}.includes(liveAudio.state.phase)")

    def state(self, name: str):
        return self.page.evaluate(f"liveAudio.state.{name}")

    def sound(self) -> np.ndarray:
        """float32 of everything that reached the destination so far, without the silence before
        it."""
        exact = self.page.evaluate("isSecureContext")
        self.page.wait_for_timeout(150 if exact else 1500)  # for what is still in the tap
        return np.trim_zeros(
            np.frombuffer(base64.b64decode(self.page.evaluate(SAMPLES)), np.float32), "f"
        )

    def captured(self) -> np.ndarray:
        """The same as the int16 that it was made of."""
        samples = self.sound() * 32768
        assert np.abs(samples - np.rint(samples)).max(initial=0.0) < 1e-6, (
            "samples were scaled on their way"
        )
        return np.trim_zeros(np.rint(samples).astype(np.int16), "f")

    def assert_heard(self, expected: np.ndarray) -> None:
        """Exactly these int16 samples were heard, and nothing after them."""
        heard = self.captured()
        assert np.array_equal(heard[: len(expected)], expected), (
            "the samples differ from those that were sent"
        )
        assert not heard[len(expected) :].any(), "something sounds after the end"

    def forget(self) -> None:
        self.page.evaluate("Object.assign(tap, {blocks: [], firstAt: null, lastAt: null})")

    def buffer_whole_replies(self) -> None:
        """From the next reply on, sound begins when all of it has come: no machine is too slow to
        play it."""
        self.page.evaluate("""async () => {
          await liveAudio.player.sink?.ready; // a module is not left half loaded
          await liveAudio.player.context?.close();
          Object.assign(liveAudio.player, { context: null, prebufferMs: 10000 });
          return liveAudio.player.unlock();
        }""")

    def assert_silent(self) -> None:
        """Nothing sounds any more."""
        self.page.wait_for_timeout(500)
        last = self.page.evaluate("tap.lastAt")
        self.page.wait_for_timeout(500)
        assert self.page.evaluate("tap.lastAt") == last, "sound goes on"
