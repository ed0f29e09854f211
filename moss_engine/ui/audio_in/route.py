"""The way by which recordings come in: small binary requests, answered as JSON, beside Gradio.

    POST /gradio_api/hear/<session>?seq=3&hands_free=1&answering=0&end=0     int16 PCM at 16 kHz
    POST /gradio_api/hear/<session>/file                                     an audio file as it is

While the page answers, the header X-Saying gives the last words of the answer, percent-encoded, so
that its echo is known. A session's key comes from Gradio's `/listen`, behind whatever password the
page has.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qs, unquote

from moss_engine.api.errors import MossError, ParameterError
from moss_engine.ui.audio_in.ingest import AudioIngest

PREFIX = "/gradio_api/hear/"
PATH = re.compile(rf"{PREFIX}(?P<session>[A-Za-z0-9_-]{{16,32}})(?P<file>/file)?")
MAX_BLOCK_BYTES = 256 * 1024
MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_SAYING = 400  # letters of the answer's last words
FLAGS = ("hands_free", "answering", "end")


class TooLarge(Exception):
    pass


async def answer(
    ingest: AudioIngest, scope: dict[str, Any], receive: Any
) -> tuple[int, dict[str, Any]]:
    """Status and JSON for an ASGI request below PREFIX; never raises for what a client may send."""
    found = PATH.fullmatch(scope["path"])
    if found is None or scope["method"] != "POST" or not ingest.knows(found["session"]):
        return 404, {"detail": "This microphone was closed; start it again."}
    limit = MAX_FILE_BYTES if found["file"] else MAX_BLOCK_BYTES
    try:
        if _declared(scope) > limit:
            raise TooLarge
        if found["file"]:
            with ingest.receiving(found["session"]):
                body = await _read(receive, limit)
            heard = await ingest.read_file(found["session"], body)
        else:
            body = await _read(receive, limit)
            heard = await ingest.hear(found["session"], body=body, **_options(scope))
    except TooLarge:
        return 413, {
            "detail": f"The limit is {limit >> 20} MB; send a shorter recording."
            if found["file"]
            else f"A block has at most {limit >> 10} kB."
        }
    except MossError as error:
        return error.http_status, {"detail": str(error), "code": error.code}
    return 200, asdict(heard)


def _options(scope: dict[str, Any]) -> dict[str, Any]:
    given = {
        key: values[0] for key, values in parse_qs(scope["query_string"].decode("latin-1")).items()
    }
    seq = given.get("seq", "")
    if not re.fullmatch(r"\d{1,9}", seq) or any(
        given.get(flag, "0") not in ("0", "1") for flag in FLAGS
    ):
        raise ParameterError(
            "A block needs its number as seq, and hands_free, answering and end as 0 or 1."
        )
    flags = {flag: given.get(flag) == "1" for flag in FLAGS}
    saying = unquote(_header(scope, b"x-saying"))[-MAX_SAYING:]
    return {"seq": int(seq), "saying": saying, **flags}


def _declared(scope: dict[str, Any]) -> int:
    length = _header(scope, b"content-length")
    return int(length) if length.isdigit() else 0


def _header(scope: dict[str, Any], name: bytes) -> str:
    found = (value for key, value in scope["headers"] if key.lower() == name)
    return next(found, b"").decode("latin-1")


async def _read(receive: Any, limit: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ParameterError("The recording was cut off; record it again.")
        body += message.get("body", b"")
        if len(body) > limit:
            raise TooLarge
        if not message.get("more_body"):
            return bytes(body)
