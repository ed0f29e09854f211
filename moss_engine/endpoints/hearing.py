"""Recordings of programs -> what a mode takes."""

from __future__ import annotations

import asyncio
import base64
import binascii

from moss_engine.api.errors import AudioFormatError
from moss_engine.api.request import Speech
from moss_engine.api.service import hear
from moss_engine.audio.file import read_audio
from moss_engine.endpoints.server import Server


def from_base64(data: str) -> bytes:
    """Line breaks, as `base64 FILE` writes them, are left out. Raises AudioFormatError for what is
    no base64, and for a data URL."""
    if data.startswith("data:"):
        raise AudioFormatError("The recording is a data URL; send only what follows its comma.")
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError):
        raise AudioFormatError("The recording is no base64; send the file's bytes in it.") from None


async def heard(server: Server, file: bytes) -> Speech:
    """The bytes of a sound file as a mode takes them; raises a MossError for what is none."""
    wave, rate_hz = await asyncio.to_thread(read_audio, file, server.info.max_speech_s)
    return await hear(server.service, wave, rate_hz)
