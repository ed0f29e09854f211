"""The password in front of the page."""

from urllib.parse import urlencode

import pytest

from moss_engine.ui.entrance.asgi import Refused
from moss_engine.ui.entrance.login import GUESSES, GUESSES_S, Login
from tests.ui.page_support import asked


class Visit:
    def __init__(self):
        self.now_s = 0.0
        self.login = Login("guest:se:cret", title="Title", css="", clock=lambda: self.now_s)
        self.cookie = b""

    def scope(self, path, method="GET", address="10.0.0.1", **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        head = {"host": "here", "cookie": self.cookie.decode(), **named}
        return {
            "path": path,
            "method": method,
            "client": (address, 1),
            "headers": [(name.encode(), value.encode()) for name, value in head.items()],
        }

    async def ask(self, scope, **form):
        status, headers, page = await asked(self.login.answer, scope, urlencode(form).encode())
        if b"set-cookie" in headers:
            self.cookie = headers[b"set-cookie"].split(b";")[0]
        return status, page.decode()

    async def enter(self, password="se:cret", **scope):
        return await self.ask(
            self.scope("/login", "POST", **scope), username="guest", password=password
        )


async def test_nobody_passes_without_the_password_and_sees_nothing_of_the_page():
    visit = Visit()
    assert not visit.login.knows(visit.scope("/"))
    status, page = await visit.ask(visit.scope("/", accept="text/html"))
    assert status == 401 and "password" in page and "api" not in page
    with pytest.raises(Refused) as refused:
        await visit.ask(visit.scope("/config"))
    assert refused.value.status == 401


async def test_the_password_opens_until_the_visitor_logs_out():
    visit = Visit()
    assert await visit.enter() == (200, '{"success": true}')
    assert visit.login.knows(visit.scope("/config"))
    assert (await visit.ask(visit.scope("/logout")))[0] == 303
    assert not visit.login.knows(visit.scope("/config"))


async def test_a_wrong_password_is_said():
    visit = Visit()
    status, page = await visit.enter("no", accept="text/html")
    assert status == 400 and "wrong" in page
    with pytest.raises(Refused, match="wrong"):
        await visit.enter("no")
    assert not visit.login.knows(visit.scope("/"))


async def test_guessing_is_bounded_for_an_address_and_not_for_others():
    visit = Visit()
    for number in range(GUESSES):
        with pytest.raises(Refused, match="wrong"):
            await visit.enter(f"guess {number}")
    with pytest.raises(Refused) as refused:
        await visit.enter()
    assert refused.value.status == 429
    assert (await visit.enter(address="10.0.0.2"))[0] == 200
    visit.now_s += GUESSES_S + 1
    assert (await visit.enter())[0] == 200


@pytest.mark.parametrize(
    "foreign", [{"sec_fetch_site": "cross-site"}, {"origin": "http://elsewhere"}]
)
async def test_other_pages_log_nobody_out(foreign):
    visit = Visit()
    await visit.enter()
    with pytest.raises(Refused) as refused:
        await visit.ask(visit.scope("/logout", **foreign))
    assert refused.value.status == 403
    assert visit.login.knows(visit.scope("/config"))


async def test_a_made_up_cookie_opens_nothing():
    visit = Visit()
    visit.cookie = visit.login.cookie("x" * 43).encode()
    assert not visit.login.knows(visit.scope("/"))
    visit.cookie = visit.login.cookie(visit.login.token()).encode()
    assert visit.login.knows(visit.scope("/"))
