"""The page speaks English and Chinese, one at a time, and leaves what visitors write alone."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from moss_engine.text.modes import PUBLISHED_MODES, PUBLISHED_SAMPLING, read_modes
from tests.ui.page_support import INFO, FakeService, Script, until

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "moss_engine" / "ui" / "chinese.json"
CHINESE = json.loads(TABLE.read_text(encoding="utf-8"))
NANO = read_modes(ROOT / "assets" / "nano" / "processor_config.json").modes
PAGES = {
    "built-in": replace(INFO, modes=NANO, voices=("Ada", "Ben"), speeds=(0.7, 1.5), brain="Llama"),
    "published": replace(
        INFO, modes=PUBLISHED_MODES.modes, sampling=PUBLISHED_SAMPLING, clones_voices=True
    ),
}
# Names and units that a Chinese page has, too; and what the model itself is told.
NAMES = set(
    "Ada Ben MOSS Speech AI Esc KV Top WAV README ms PCM Opus OpenAI docs api md Llama".split()
)
PROMPTS = tuple(mode.system for mode in PUBLISHED_MODES.modes)
WORD = re.compile(r"[A-Za-z]{2,}")
HAN = re.compile(r"[\u4e00-\u9fff]")
# Where the sentences come from that a visitor may be told.
TOLD = (
    "api/request.py", "text/modes.py", "audio/file.py", "engine/engine.py",
    "engine/scheduler.py", "service/*.py", "talk/*.py", "talk/brain/*.py", "text/processor.py",
    "ui/audio_in/*.py", "ui/form.py", "ui/handlers.py",
)  # fmt: skip
NOT_TOLD = ("CheckpointError", "ConfigError")

CHANGES = """async (problem) => { // of what is told again and again, and is the same
  let changes = 0;
  const observer = new MutationObserver((records) => (changes += records.length));
  const tell = async () => {
    document.dispatchEvent(new CustomEvent("liveaudio", { detail: { ...liveAudio.state, run: "0123abcd" } }));
    document.dispatchEvent(new CustomEvent("problem", { detail: problem }));
    recorder.line.heard({ talking: false, utterance: "", seconds: 0, text: "", sure: true }, false);
    await new Promise((resolve) => setTimeout(resolve));
  };
  await tell();
  for (const place of [".la-headline", ".tiles", ".rec-state", "#problem p"]) {
    observer.observe(document.querySelector(place), { subtree: true, childList: true, characterData: true });
  }
  for (let i = 0; i < 20; i++) await tell();
  return changes;
}"""


def sentence(node: ast.expr) -> str | None:
    """The text of a literal, with {} for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
    return None


def raised() -> set[str]:
    """Every sentence that is raised as it stands, and the constants of that kind."""
    found = set()
    paths = [path for places in TOLD for path in (ROOT / "moss_engine").glob(places)]
    for node in (n for path in paths for n in ast.walk(ast.parse(path.read_text("utf-8")))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Error"):
            if ast.unparse(node.func) not in NOT_TOLD:
                found |= {sentence(argument) for argument in node.args}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("FAULT", "CLOSED"):
            found.add(sentence(node.value))
    return {text for text in found if text and text.endswith(".")}


def test_every_sentence_that_a_visitor_may_be_told_is_in_the_table():
    shapes = {re.sub(r"\{#\}", "{}", english) for english in CHINESE}
    assert sorted(raised() - shapes) == []


def test_the_table_has_every_sentence_once_and_fills_in_what_the_english_does():
    pairs = json.loads(TABLE.read_text(encoding="utf-8"), object_pairs_hook=list)
    assert len(pairs) == len(CHINESE)
    for english, chinese in pairs:
        places = len(re.findall(r"\{#?\}", english))
        assert len(re.findall(r"\{[#\d]?\}", chinese)) == places, english
        assert HAN.search(chinese), english


@pytest.fixture(scope="module", params=PAGES)
def page(request, serve):
    service = FakeService(info=PAGES[request.param])
    return service, serve(service)


def choose(tab, mode: str) -> None:
    chosen = f"#mode input[value='{mode}']"
    tab.page.locator(chosen).dispatch_event("click")
    tab.page.wait_for_selector(f"{chosen}:checked", state="attached")
    tab.page.locator("#mode").dispatch_event("change")
    tab.page.wait_for_selector(f"#mode-notes [data-mode='{mode}']:not([hidden])", state="attached")


def texts_in_every_state(service, tab) -> set[str]:
    """What the page says before, while and after a reply, in its settings, and of a mistake."""
    from tests.ui.page_browser import PAINTED, TEXTS

    found = set()

    def look() -> None:
        tab.page.evaluate(PAINTED)
        found.update(tab.page.evaluate(TEXTS))

    look()
    tab.page.locator("#settings summary").press("Enter")
    tab.page.wait_for_selector("#seed input")
    for panel in (".about-open", ".programs-open"):
        tab.page.locator(panel).click()
        look()
        tab.page.keyboard.press("Escape")
    for mode in service.info.modes:
        choose(tab, mode.name)
        look()
        if mode.input == "text":
            service.script = Script(seconds=0.4, rtf=0.1, spoken="twenty")
            tab.hear("$20")
            look()
    tab.page.locator(".explain").click()
    look()
    choose(tab, next(mode.name for mode in service.info.modes if mode.input == "text"))
    service.script = Script(seconds=60.0, rtf=0.5)
    tab.ask("Stopped early.")
    tab.wait("speaking")
    tab.text.press("Escape")
    tab.wait("stopped")
    tab.ask("too long " * 1000)
    look()
    return found


def test_nothing_is_left_in_the_other_language(page, visit):
    service = page[0]
    service.reset()
    tab = visit(page[1], locale="zh-CN")
    tab.page.wait_for_function("document.documentElement.lang === 'zh-Hans'")  # its table is a file
    english = {
        text
        for text in texts_in_every_state(service, tab)
        if not set(WORD.findall(text)) <= NAMES | {"twenty"} and text not in PROMPTS
    }
    assert english == set()
    tab.page.locator(".tongue").click()
    assert until(lambda: tab.page.locator("#clear").inner_text() == "Clear all")
    tab.page.reload()
    tab.page.wait_for_selector("#mode input:checked", state="attached")
    tab.page.wait_for_function("window.liveAudio && document.body.dataset.input")
    found = texts_in_every_state(service, tab)
    assert {text for text in found if HAN.search(text)} == set(), "and nothing of the browser's"
    sent_on = any(text.startswith("Conversations also go to Llama") for text in found)
    assert sent_on == bool(service.info.brain)
    assert tab.problems == []


def test_the_browser_chooses_the_language_and_a_switch_changes_it(service, visit):
    tab = visit(locale="de-DE")
    send = tab.page.locator("#send")
    assert send.inner_text() == "Speak" and tab.page.evaluate("document.body.lang || 'en'") == "en"
    tab.page.locator(".tongue").click()
    assert until(lambda: send.inner_text() == "朗读")
    tab.text.fill("")
    tab.hear("Settings")
    assert tab.page.locator(".la-text").inner_text() == "Settings", "what was asked is translated"
    assert until(lambda: tab.page.locator(".tr-text").all_inner_texts() == ["Settings"])
    assert tab.page.locator(".la-status").inner_text() == "已说完"
    tab.page.locator(".tongue").click()
    assert tab.page.locator(".la-status").inner_text() == "Finished"
    assert send.inner_text() == "Speak"


def test_a_status_that_stays_the_same_is_written_once(service, visit):
    """A screen reader says it again with every change, and so would it with a text put back."""
    tab = visit(locale="zh-CN")
    tab.page.wait_for_function("window.recorder && document.documentElement.lang === 'zh-Hans'")
    muted = next(sentence for sentence in CHINESE if sentence.startswith("The microphone is muted"))
    assert tab.page.evaluate(CHANGES, muted) == 0
