"""GET /v1/openapi.json: it tells of the fields by which bodies are checked."""

from __future__ import annotations

import httpx

from moss_engine.endpoints.speech import SpeechBody


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
