"""POST /v1/realtime/client_secrets: short-lived keys, with which a page opens a session."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.responses import JSONResponse, Response

from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.bodies import OpenBody
from moss_engine.endpoints.realtime.session import first_session, settled, warning
from moss_engine.endpoints.server import Server


class ExpiresAfter(OpenBody):
    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Field(ge=10, le=7200)] = 600


class SecretBody(OpenBody):
    """`session` is as in `session.update`, and holds from the session's beginning."""

    expires_after: ExpiresAfter = ExpiresAfter()
    session: dict[str, Any] = Field(default_factory=dict)


async def issue(server: Server, body: SecretBody, caller: Caller) -> Response:
    """The key, when it ends, and the session as it will be; raises ApiError for a field that
    cannot be had."""
    info = server.info
    session, ignored, refused = settled(server, first_session(server, ""), body.session)
    if refused:
        raise refused[0]
    key, ends_s = server.access.issue(caller, body.session, body.expires_after.seconds)
    told = {**session.value(info.voices, info.recogniser), **warning(ignored)}
    return JSONResponse({"value": key, "expires_at": ends_s, "session": told})
