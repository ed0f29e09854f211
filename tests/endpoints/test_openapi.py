"""GET /v1/openapi.json: it tells of every route, and of the fields by which their bodies are
checked."""

from __future__ import annotations

import httpx
from starlette.routing import Route

from moss_engine.endpoints.access import Access
from moss_engine.endpoints.app import PREFIX, make_app
from moss_engine.endpoints.openapi import document
from moss_engine.endpoints.server import Server
from moss_engine.endpoints.speech import SpeechBody
from tests.ui.page_support import INFO, FakeService


def test_every_route_is_told_of():
    app = make_app(Server(FakeService(), INFO, "m", Access(open_to_all=True)))
    served = {
        (route.path.replace("{model:path}", "{model}"), method.lower())
        for route in app.routes
        if isinstance(route, Route) and route.path.startswith(PREFIX)
        for method in (route.methods or set()) - {"HEAD"}
    }
    told = {(path, method) for path, methods in document()["paths"].items() for method in methods}
    assert told == served


def test_the_fields_are_those_that_are_checked(url):
    answer = httpx.get(f"{url}/v1/openapi.json")
    schemas = answer.json()["components"]["schemas"]
    speech = schemas["SpeechBody"]
    assert set(speech["properties"]) == set(SpeechBody.model_fields)
    assert speech["required"] == ["model", "input"] and speech["additionalProperties"] is True
    assert (speech["properties"]["speed"]["minimum"], speech["properties"]["speed"]["maximum"]) == (
        0.25, 4.0,
    )  # fmt: skip
    form = answer.json()["paths"]["/v1/audio/transcriptions"]["post"]["requestBody"]["content"]
    fields = form["multipart/form-data"]["schema"]["properties"]
    assert {"file", "model", "timestamp_granularities[]"} <= set(fields)
