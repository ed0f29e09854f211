"""Errors whose text a person can act on.

A `MossError` is the world's fault (a file, a machine, a visitor's input) and its message is one
sentence that ends with the remedy. Our own mistakes are assertions instead.
"""

from __future__ import annotations


class MossError(Exception):
    """Base of every error that may be shown to a person as it stands.

    `code` is a stable name for programs; `http_status` is used where the error crosses HTTP. Both
    are the base's where a class names none.
    """

    code = "E_MOSS"
    http_status = 500

    def __init_subclass__(cls, code: str | None = None, http_status: int | None = None) -> None:
        cls.code, cls.http_status = code or cls.code, http_status or cls.http_status


class InputError(MossError, code="E_INPUT", http_status=422):
    """A request that cannot be served as sent; no engine work was started."""


class TextEmptyError(InputError, code="E_TEXT_EMPTY"):
    """A text without anything to say."""


class TextTooLongError(InputError, code="E_TEXT_LONG", http_status=413):
    """A text above --max-text-chars."""


class ForeignTextError(InputError, code="E_LANGUAGE"):
    """A text in what looks like a language that the voice cannot read; a client may insist on it,
    and it is read."""


class AudioFormatError(InputError, code="E_AUDIO_FORMAT"):
    """A file that is no audio file, a damaged one, or one of an impossible sample rate or channel
    count."""


class AudioEmptyError(InputError, code="E_AUDIO_EMPTY"):
    """Silence, or too little sound to hold a word."""


class AudioLongError(InputError, code="E_AUDIO_LONG", http_status=413):
    """A recording above --max-speech-s."""


class AudioNonfiniteError(InputError, code="E_AUDIO_NONFINITE"):
    """Samples that are NaN or infinite."""


class ParameterError(InputError, code="E_PARAM"):
    """A sampling or session value out of its range; the message names the field."""


class UnknownVoiceError(ParameterError):
    """A voice that is not there, or not there any more."""


class ContextError(InputError, code="E_CONTEXT", http_status=413):
    """Prompt plus the longest possible reply does not fit the model's context or the KV pool."""


class UnsupportedModeError(InputError, code="E_MODE"):
    """The loaded checkpoint cannot serve this combination of input and output."""


class BrainError(MossError, code="E_BRAIN", http_status=502):
    """The chat server that thinks of the answers is out of reach, or does not answer as agreed."""


class BusyError(MossError, code="E_BUSY", http_status=503):
    """Every place in the queue is taken; trying again later will work."""


ALL_TAKEN = "All places are taken; try again in a moment."
CLOSED = "The service is shutting down; try again when it is back."
IN_USE = "request_id is that of an open request; give every request its own."


class ShuttingDownError(MossError, code="E_DRAINING", http_status=503):
    """The service is shutting down: running replies finish, new requests are refused."""


class ReplicasLostError(MossError, code="E_REPLICAS", http_status=503):
    """No replica of the cluster can serve this now; trying again later may work."""


class EngineFaultError(MossError, code="E_ENGINE"):
    """The runtime failed while this request was running; the request is over."""


class ReplyFaultError(EngineFaultError, code="E_REPLY"):
    """This reply alone could not be made; the engine and other replies go on."""


UNFORESEEN = "The program failed at this answer; ask again."


class ConfigError(MossError, code="E_CONFIG"):
    """An option, or a combination of options, that cannot work."""


class CheckpointError(MossError, code="E_CHECKPOINT"):
    """A checkpoint file is missing, damaged, or does not belong to this configuration."""


class EngineFileError(MossError, code="E_ENGINE_FILE"):
    """An engine file is missing, damaged, or was built for something else; the message names field
    and command."""


class MelSpecError(ConfigError, code="E_MEL"):
    """Two parts were joined whose mel settings differ."""


class MissingPackageError(MossError, code="E_PACKAGE"):
    """An optional package is not installed; the message holds the command that installs it."""


def error_of(code: str, message: str) -> MossError:
    """The error of an accepted reply that failed: of the class that has this code, a plain
    `MossError` where none has."""
    kinds = [MossError]
    for kind in kinds:  # grows meanwhile
        if kind.code == code:
            return kind(message)
        kinds += kind.__subclasses__()
    return MossError(message)
