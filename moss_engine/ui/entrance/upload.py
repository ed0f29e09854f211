"""Where audio files come in, beside Gradio: POST a file as it is to PATH, behind whatever password
the page has, and name the `utterance` of the answer to ask by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.responses import JSONResponse

from moss_engine.api.errors import MossError
from moss_engine.ui.audio_in.ingest import AudioIngest
from moss_engine.ui.entrance.asgi import Refused, address_of, header, is_foreign, read_body

PATH = "/gradio_api/hear"
MAX_FILE_BYTES = 16 << 20


class Upload:
    """An ASGI app for PATH. `visitor_of` names who has a network address."""

    def __init__(self, ingest: AudioIngest, visitor_of: Callable[[str], str]):
        self._ingest = ingest
        self._visitor_of = visitor_of
        self._too_large = (
            f"The file has more than {MAX_FILE_BYTES >> 20} MB; "
            f"send one of {ingest.max_s:g} s of speech at most."
        )

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["method"] != "POST":
            raise Refused(405, "Send an audio file by POST.")
        if is_foreign(scope):
            raise Refused(403, "This is asked for by another page; open this one.")
        declared = header(scope, b"content-length")
        if declared.isdigit() and int(declared) > MAX_FILE_BYTES:
            raise Refused(413, self._too_large)
        visitor = self._visitor_of(address_of(scope))
        try:
            with self._ingest.receiving(visitor):
                body = await read_body(receive, MAX_FILE_BYTES, self._too_large)
                kept = await self._ingest.read_file(visitor, body)
        except MossError as error:
            told = JSONResponse({"detail": str(error), "code": error.code}, error.http_status)
        else:
            told = JSONResponse({"utterance": kept.key, "seconds": kept.seconds})
        await told(scope, receive, send)
