"""A password in front of the page: the form, the cookies, and a bound on guessing.

In front of everything, rather than Gradio's own login, which shows the page's functions and voices
to those who have no password yet, and lets any page elsewhere log everybody out.
"""

from __future__ import annotations

import hmac
import html
import re
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from moss_engine.ui.entrance.asgi import Refused, address_of, header, is_foreign, read_body

MAX_TOKENS = 4096
GUESSES = 10
GUESSES_S = 60.0
MAX_ADDRESSES = 4096
OPEN_PATHS = ("/gradio_api/startup-events", "/gradio_api/startup-events/")

FORM = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><style>{css}</style>
<script>if (matchMedia("(prefers-color-scheme: dark)").matches)
document.documentElement.classList.add("dark")</script></head>
<body class="login"><main><form class="panel" method="post" action="login"><h1>{title}</h1>
<p role="alert">{sentence}</p>
<label><span>User</span><input name="username" autocomplete="username" required autofocus></label>
<label><span>Password</span>
<input name="password" type="password" autocomplete="current-password" required></label>
<button>Login</button></form></main></body></html>"""


class Login:
    """`user_password` is USER:PASSWORD; `title` and `css` are those of the page."""

    def __init__(
        self,
        user_password: str,
        *,
        title: str,
        css: str,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._secret = user_password.encode()
        self._title, self._css = title, css
        self._clock = clock
        self._cookie = f"moss-speech-{secrets.token_hex(4)}"
        self._tokens: OrderedDict[str, None] = OrderedDict()
        self._guesses: OrderedDict[str, deque[float]] = OrderedDict()

    def knows(self, scope: dict[str, Any]) -> bool:
        """Whether a request may pass; `/logout` and `/login` are never the page's."""
        path = scope["path"].rstrip("/")
        return path not in ("/login", "/logout") and (
            scope["path"] in OPEN_PATHS or bool(self._tokens_of(scope))
        )

    async def answer(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer a request that may not pass. Raises Refused."""
        path = scope["path"].rstrip("/")
        if path in ("/login", "/logout") and is_foreign(scope):
            raise Refused(403, "This is asked for by another page; open this one.")
        if path == "/logout":
            for token in self._tokens_of(scope):
                self._tokens.pop(token, None)
            told: Response = RedirectResponse("./", 303)
        elif path == "/login" and scope["method"] == "POST":
            told = self._log_in(scope, await read_body(receive))
        elif _wants_html(scope):
            told = self._form(401, "")
        else:
            raise Refused(401, "Log in first.")
        await told(scope, receive, send)

    def _log_in(self, scope: dict[str, Any], body: bytes) -> Response:
        guesses = self._guesses_of(address_of(scope))
        if len(guesses) >= GUESSES:
            raise Refused(429, "That were many wrong passwords; wait a minute.")
        try:
            fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=16)
        except ValueError:
            raise Refused(400, "The form has too many fields.") from None
        given = ":".join(fields.get(name, [""])[0] for name in ("username", "password"))
        if hmac.compare_digest(given.encode(), self._secret):
            told: Response = JSONResponse({"success": True})
            if _wants_html(scope):
                told = RedirectResponse("./", 303)
            token = secrets.token_urlsafe(32)
            self._tokens[token] = None
            if len(self._tokens) > MAX_TOKENS:
                self._tokens.popitem(last=False)
            told.set_cookie(self._cookie, token, httponly=True, samesite="none", secure=True)
            told.set_cookie(f"{self._cookie}-plain", token, httponly=True)
            return told
        guesses.append(self._clock())
        if not _wants_html(scope):
            raise Refused(400, "User or password is wrong.")
        return self._form(400, "User or password is wrong.")

    def _form(self, status: int, sentence: str) -> Response:
        page = FORM.format(
            title=html.escape(self._title), css=self._css, sentence=html.escape(sentence)
        )
        return HTMLResponse(page, status, {"cache-control": "no-store"})

    def _guesses_of(self, address: str) -> deque[float]:
        """Times of the wrong passwords of an address within GUESSES_S."""
        guesses = self._guesses.setdefault(address, deque())
        self._guesses.move_to_end(address)
        if len(self._guesses) > MAX_ADDRESSES:
            self._guesses.popitem(last=False)
        while guesses and self._clock() - guesses[0] > GUESSES_S:
            guesses.popleft()
        return guesses

    def _tokens_of(self, scope: dict[str, Any]) -> list[str]:
        found = re.findall(rf"{self._cookie}(?:-plain)?=([\w-]{{43}})", header(scope, b"cookie"))
        return [token for token in found if token in self._tokens]


def _wants_html(scope: dict[str, Any]) -> bool:
    return "text/html" in header(scope, b"accept")
