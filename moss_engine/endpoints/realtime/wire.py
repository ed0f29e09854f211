"""How sound and names come in the text of realtime events."""

from __future__ import annotations

import json
from base64 import b64decode

import numpy as np

from moss_engine.api.errors import AudioFormatError

MAX_NAME_CHARS = 512


def samples_of(data: str) -> np.ndarray:
    """base64 of 16-bit little-endian PCM -> int16 [n]; raises AudioFormatError."""
    try:
        raw = b64decode(data, validate=True)
    except ValueError:
        raw = b"\0"
    if len(raw) % 2:
        raise AudioFormatError("The audio is no base64 of 16-bit samples; send pcm16 at 24 kHz.")
    return np.frombuffer(raw, "<i2").astype(np.int16)


def event_id_of(said: str | bytes) -> str | None:
    """The name that a client gave an event which cannot be read, if that can be."""
    try:
        found = json.loads(said).get("event_id")
    except (ValueError, AttributeError, RecursionError):
        return None
    return found[:MAX_NAME_CHARS] if isinstance(found, str) and found.isascii() else None
