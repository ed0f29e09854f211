"""The README's picture of the page: `python -m scripts.dev.screenshot`.

Chromium visits the real page, which says a sentence a few times; the picture is of the reply that
was heard soonest.
"""

from __future__ import annotations

from moss_engine.build import build_service
from moss_engine.config import REPO_ROOT, EngineConfig
from scripts.bench.browser import page_browser, served
from scripts.command import make_parser, run_command

TEXT = (
    "The small voice in this box speaks while it is still thinking, and every number on this "
    "page is measured."
)
OUT = REPO_ROOT / "assets" / "screenshot.png"
REPLIES = 4
HEARD_S = 3.6  # of the reply when the picture is taken
SIZE = {"width": 1440, "height": 900}


def main() -> None:
    make_parser("dev.screenshot", __doc__).parse_args()
    picture, heard_after_ms = take()
    OUT.write_bytes(picture)
    print(f"{OUT}: a reply that was heard after {heard_after_ms:.0f} ms")


def take() -> tuple[bytes, float]:
    """PNG of the page in the middle of a reply, and milliseconds to its first sound."""
    pictures = []
    with served(build_service(EngineConfig())) as url, page_browser.chromium() as browser:
        visit = page_browser.Visit(browser, url, viewport=SIZE)
        for _ in range(REPLIES):
            if visit.page.locator("#clear").is_visible():
                visit.page.locator("#clear").click()
            visit.page.mouse.move(0, 0)
            visit.ask(TEXT)
            visit.wait("sent", "waiting", "thinking", "speaking")
            visit.page.wait_for_function(
                f"liveAudio.heard > {HEARD_S} * liveAudio.state.rate", timeout=60_000
            )
            pictures.append(
                (visit.state("underruns"), visit.state("heardAfterMs"), visit.page.screenshot())
            )
            visit.wait("done")
        visit.context.close()
    _, heard_after_ms, picture = min(pictures)
    return picture, heard_after_ms


if __name__ == "__main__":
    run_command(main)
