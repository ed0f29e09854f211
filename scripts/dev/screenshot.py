"""The README's picture of the page: `python -m scripts.dev.screenshot`.

Chromium visits the real page, which says a sentence a few times; the picture is of the reply that
was heard soonest.
"""

from __future__ import annotations

from pathlib import Path

from moss_engine.api.errors import ConfigError
from moss_engine.config import NANO_CHECKPOINT, REPO_ROOT, EngineConfig
from moss_engine.ui.config import PageConfig
from scripts.bench.browser import tools
from scripts.command import make_parser, run_command

TEXT = (
    "The small voice in this box speaks while it is still thinking, and every number on this "
    "page is measured."
)
HEARD_S = 3.6  # of the reply when the picture is taken
SIZE = {"width": 1440, "height": 900}


def main() -> None:
    parser = make_parser("dev.screenshot", __doc__)
    parser.add_argument(
        "--out",
        type=Path,
        default=REPO_ROOT / "assets" / "screenshot.png",
        metavar="FILE",
        help="PNG file to write (default: assets/screenshot.png)",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=NANO_CHECKPOINT,
        metavar="DIR",
        help="checkpoint that speaks (default: the built-in voice)",
    )
    parser.add_argument(
        "--replies", type=int, default=4, metavar="N", help="replies to choose from (4)"
    )
    parser.add_argument("--port", type=int, default=7963, help="port for the page (7963)")
    options = parser.parse_args()
    if options.replies < 1:
        raise ConfigError("Give --replies from 1 on.")
    if not options.out.parent.is_dir():
        raise ConfigError(
            f"There is no folder {options.out.parent}; make it, or name another file with --out."
        )
    picture, heard_after_ms = take(
        EngineConfig(checkpoint=options.checkpoint), PageConfig(port=options.port), options.replies
    )
    options.out.write_bytes(picture)
    print(f"{options.out}: a reply that was heard after {heard_after_ms:.0f} ms")


def take(engine: EngineConfig, page: PageConfig, replies: int) -> tuple[bytes, float]:
    """PNG of the page in the middle of a reply, and milliseconds to its first sound."""
    browsing, _ = tools()
    from moss_engine.build import build_service
    from moss_engine.ui.server import launch

    service = build_service(engine)
    service.start()
    blocks = launch(service, page)
    pictures = []
    try:
        with browsing.chromium() as browser:
            visit = browsing.Visit(browser, f"http://{page.host}:{page.port}/", viewport=SIZE)
            for _ in range(replies):
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
            visit.close()
    finally:
        blocks.close(verbose=False)
        service.close()
    _, heard_after_ms, picture = min(pictures)
    return picture, heard_after_ms


if __name__ == "__main__":
    run_command(main)
