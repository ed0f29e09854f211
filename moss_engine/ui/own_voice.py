"""Visitors' own voices: made of a recording, kept in memory, theirs alone, and gone when they leave."""

from __future__ import annotations

import secrets

import numpy as np

from moss_engine.codec.base import SpeechCodec
from moss_engine.codec.campplus import CAMPPLUS_NAME, SpeakerEncoder
from moss_engine.codec.moss import MossCodec
from moss_engine.codec.voice_sample import advice, make_voice
from moss_engine.config import EngineConfig
from moss_engine.errors import BusyError, ConfigError
from moss_engine.ui.hearing import Said

MAX_VOICES = 16


class OwnVoices:
    """One voice a session."""

    def __init__(self, codec: MossCodec, speaker: SpeakerEncoder):
        self._codec = codec
        self._speaker = speaker
        self._names: dict[str, str] = {}

    def make(self, session_id: str, said: Said) -> tuple[str, str | None]:
        """The name of a voice made of a recording, and a sentence where another length would be better.

        Blocks; replaces the session's voice. Raises AudioEmptyError below 1 s, AudioLongError above 30 s, BusyError
        while many visitors have a voice here.
        """
        if session_id not in self._names and len(self._names) >= MAX_VOICES:
            raise BusyError("Many visitors speak with their own voice here; choose another voice or come back later.")
        wave = said.pcm / np.float32(32768)
        voice = make_voice(f"own {secrets.token_hex(8)}", wave, said.rate_hz, _Known(said.codes), self._speaker)
        self.forget(session_id)
        self._codec.add_voice(voice)
        self._names[session_id] = voice.name
        return voice.name, advice(said.seconds)

    def forget(self, session_id: str) -> None:
        """The session is over, or wants another voice."""
        name = self._names.pop(session_id, None)
        if name is not None:
            self._codec.remove_voice(name)


class _Known:
    """The recording's codes, which it has already."""

    def __init__(self, codes: tuple[int, ...]):
        self._codes = codes

    def encode(self, wave: np.ndarray, sample_rate_hz: int) -> list[int]:
        return list(self._codes)


def load_own_voices(codec: SpeechCodec, config: EngineConfig) -> OwnVoices:
    """For `--own-voice`; raises ConfigError for a codec that speaks in one voice, CheckpointError and
    MissingPackageError where its speaker network cannot run."""
    if not isinstance(codec, MossCodec):
        raise ConfigError("--own-voice is for the MOSS-Speech codec; name it with --codec, or leave --own-voice away.")
    return OwnVoices(codec, SpeakerEncoder((config.codec or config.checkpoint) / CAMPPLUS_NAME))
