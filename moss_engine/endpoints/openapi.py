"""GET /v1/openapi.json: what the HTTP interfaces take, from the declarations that they check by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import moss_engine
from moss_engine.endpoints.chat import ChatBody
from moss_engine.endpoints.realtime.client_secrets import SecretBody, SessionBody
from moss_engine.endpoints.responses import ResponsesBody
from moss_engine.endpoints.sound import MEDIA_TYPES
from moss_engine.endpoints.speech import SpeechBody
from moss_engine.endpoints.transcription import TranscriptionBody

JSON, EVENTS, SDP = "application/json", "text/event-stream", "application/sdp"
FORM = "multipart/form-data"
LISTS = ("languages", "timestamp_granularities")
"""Fields of a form that programs write with [] behind their name."""
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}


@dataclass(frozen=True)
class Operation:
    """`body` is what it takes, as JSON, or schemas by their media types; `answers` are the media
    types of what it gives."""

    method: str
    path: str
    summary: str
    body: type[BaseModel] | dict[str, Any] | None = None
    answers: Sequence[str] = (JSON,)
    status: str = "200"


def _form() -> dict[str, Any]:
    """Of a recording and the fields about it."""
    schema = TranscriptionBody.model_json_schema()
    fields = {
        f"{name}[]" if name in LISTS else name: value
        for name, value in schema["properties"].items()
    }
    fields["file"] = {"type": "string", "format": "binary"}
    return {**schema, "properties": fields, "required": [*schema["required"], "file"]}


TEXT = {"type": "string"}
OFFER = {"type": "object", "properties": {"sdp": TEXT, "session": TEXT}, "required": ["sdp"]}
OPERATIONS = (
    Operation("get", "/v1/models", "The model that is here"),
    Operation("get", "/v1/models/{model}", "The model that a name stands for"),
    Operation("get", "/v1/audio/voices", "The voices that are here"),
    Operation("get", "/v1/openapi.json", "This document"),
    Operation(
        "post", "/v1/audio/speech", "A text becomes a sound file or a stream", SpeechBody,
        answers=(*MEDIA_TYPES.values(), EVENTS),
    ),
    Operation(
        "post", "/v1/audio/transcriptions", "A sound file becomes its words", {FORM: _form()},
        answers=(JSON, "text/plain", "text/vtt", EVENTS),
    ),
    Operation(
        "post", "/v1/chat/completions", "A conversation is answered in text or speech", ChatBody,
        answers=(JSON, EVENTS),
    ),
    Operation(
        "post", "/v1/realtime/client_secrets", "A short-lived key for a page", SecretBody,
    ),
    Operation(
        "post", "/v1/realtime/sessions", "The same, by its earlier name", SessionBody,
    ),
    Operation(
        "post", "/v1/realtime/calls", "An offer of WebRTC is answered", {SDP: TEXT, FORM: OFFER},
        answers=(SDP,), status="201",
    ),
    Operation(
        "post", "/v1/responses", "A conversation is answered in text", ResponsesBody,
        answers=(JSON, EVENTS),
    ),
)  # fmt: skip


@cache
def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    kinds = [operation.body for operation in OPERATIONS if isinstance(operation.body, type)]
    _, found = models_json_schema(
        [(kind, "validation") for kind in kinds], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    about = "Fields that are not declared have no effect; the header x-moss-ignored names them."
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "MOSS-Speech Live",
            "version": moss_engine.__version__,
            "description": f"{about} The realtime interface, a WebSocket, is /v1/realtime.",
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": {**found["$defs"], "Error": ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    refusal = {"schema": {"$ref": "#/components/schemas/Error"}}
    answer = {
        "description": operation.summary,
        "headers": {"x-moss-ignored": {"schema": {"type": "string"}}},
        "content": {media_type: {} for media_type in operation.answers},
    }
    told: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {
            operation.status: answer,
            "default": {"description": "A refusal", "content": {JSON: refusal}},
        },
    }
    if "{model}" in operation.path:
        name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        told["parameters"] = [name]
    taken = operation.body
    if isinstance(taken, type):
        taken = {JSON: {"$ref": f"#/components/schemas/{taken.__name__}"}}
    if taken is not None:
        content = {media_type: {"schema": schema} for media_type, schema in taken.items()}
        told["requestBody"] = {"required": True, "content": content}
    return told
