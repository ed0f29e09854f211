"""What the HTTP interfaces are, and what they take, from the declarations that they check by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

import moss_engine
from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.bodies import MAX_JSON_BYTES

JSON, EVENTS, SDP = "application/json", "text/event-stream", "application/sdp"
FORM = "multipart/form-data"


class Refusal(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class Error(BaseModel):
    error: Refusal


@dataclass(frozen=True)
class Operation:
    """`endpoint` answers whoever may call, by the body that was read where that is JSON, or else by
    the request; None where another route does. `body` is what it takes, as JSON of `limit` bytes at
    most, or schemas by their media types; `answers` are the media types of what it gives."""

    method: str
    path: str
    summary: str
    endpoint: Callable[[Any, Caller], Awaitable[Response]] | None
    body: type[BaseModel] | dict[str, Any] | None = None
    answers: Sequence[str] = (JSON,)
    status: str = "200"
    limit: int = MAX_JSON_BYTES


def form_of(kind: type[BaseModel], file: str, *lists: str) -> dict[str, Any]:
    """The schema of a form with a file; programs write [] behind the names of lists."""
    schema = kind.model_json_schema()
    fields = {f"{k}[]" if k in lists else k: value for k, value in schema["properties"].items()}
    fields[file] = {"type": "string", "format": "binary"}
    return {**schema, "properties": fields, "required": [*schema["required"], file]}


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    bodies = [operation.body for operation in operations]
    kinds = [Error, *(body for body in bodies if isinstance(body, type))]
    _, found = models_json_schema(
        [(kind, "validation") for kind in kinds], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {}
    for operation in operations:
        path = operation.path.replace(":path", "")
        paths.setdefault(path, {})[operation.method] = _operation(operation)
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
            "schemas": found["$defs"],
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
    if "{model" in operation.path:
        name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        told["parameters"] = [name]
    taken = operation.body
    if isinstance(taken, type):
        taken = {JSON: {"$ref": f"#/components/schemas/{taken.__name__}"}}
    if taken is not None:
        content = {media_type: {"schema": schema} for media_type, schema in taken.items()}
        told["requestBody"] = {"required": True, "content": content}
    return told
