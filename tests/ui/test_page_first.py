"""What a visitor has before Gradio's scripts are there: title and preview, a box, few files."""

from __future__ import annotations

import re
from urllib.request import urlopen

import httpx
import pytest

from tests.ui.node import UI
from tests.ui.page_support import until

MOST_REQUESTS = 40


def test_the_document_names_this_page_and_all_its_addresses_are_found(url):
    text = httpx.get(url).text
    assert text.count("<title>MOSS-Speech Live</title>") == 1
    told = dict(
        re.findall(
            r'<meta (?:property|name)="((?:og|twitter):\w+|description)" content="([^"]+)">', text
        )
    )
    assert {"og:title", "og:image", "og:url", "og:description", "description"} <= set(told)
    assert len(re.findall('property="og:', text)) == len([name for name in told if "og:" in name])
    assert told["og:url"].rstrip("/") == url.rstrip("/") and "Gradio" not in " ".join(told.values())
    icons = httpx.get(f"{url}manifest.json").json()["icons"]
    paths = [
        told["og:image"],
        f"{url}favicon.ico",
        *(f"{url.rstrip('/')}/{icon['src'].lstrip('/')}" for icon in icons),
    ]
    for path in paths:
        with urlopen(path) as answer:
            assert answer.headers["Content-Type"].startswith("image/") and answer.read()


def test_what_the_page_links_to_is_there_and_is_what_gradio_loads(url):
    text = httpx.get(url).text
    linked = re.findall(r'href="\./(assets/[^"]+)"', text)
    assert len(linked) > 30
    with httpx.Client(base_url=url) as http:
        for path in linked:
            assert http.get(path).status_code == 200


@pytest.mark.browser
def test_the_box_is_there_before_gradios_scripts_and_what_it_got_is_taken_over(
    service, visits, visit, url
):
    held, requests = [], []

    def hold(route):
        held.append(route) if len(held) < 1 and not released else route.continue_()

    released = []
    visit()  # the browser's context, with a tap on its sound
    tab = visits._open[0].context.new_page()
    tab.on("request", lambda request: requests.append(request.url))
    tab.route("**/assets/*.js", hold)
    tab.goto(url, wait_until="commit")
    tab.locator("#first textarea").fill("An early question.")
    tab.keyboard.press("Enter")
    tab.keyboard.type("And a second")
    assert tab.locator(".first-asked").inner_text() == "An early question."
    released.append(True)
    held[0].continue_()
    tab.wait_for_function("window.liveAudio?.state.phase === 'done'")
    assert service.requests[-1].messages[-1].content.text == "An early question."
    assert tab.locator("#text textarea").input_value() == "And a second"
    assert tab.evaluate("document.activeElement.closest('#text') !== null")
    assert tab.locator("#first, #first-css").count() == 0
    own = [request for request in requests if request.startswith("http")]
    assert len(own) <= MOST_REQUESTS and not [
        r for r in own if r.endswith(".css") and "page-" not in r and "theme" not in r
    ]
    tab.close()


@pytest.mark.browser
def test_a_page_that_rests_is_not_drawn_anew(visit):
    tab = visit(
        init="""{
          const frame = requestAnimationFrame;
          window.frames = 0;
          window.requestAnimationFrame = (draw) => (frames++, frame(draw));
        }"""
    )

    def rests() -> bool:
        before = tab.page.evaluate("frames")
        tab.page.wait_for_timeout(500)
        return tab.page.evaluate("frames") - before < 5

    assert until(rests), "Gradio's sign of loading is gone, and its clock goes on"


def test_the_document_is_large_enough_to_measure_a_link_by(url):
    """Of a visit with everything in the browser's cache it is all that comes."""
    player = (UI / "components" / "player.js").read_text(encoding="utf-8")
    (worth,) = re.findall(r"WORTH_MEASURING = ([\d_]+);", player)
    request = httpx.Client().stream("GET", url, headers={"Accept-Encoding": "br"})
    with request as answer:
        assert sum(map(len, answer.iter_raw())) > int(worth)
