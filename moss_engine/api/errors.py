"""Errors whose text a person can act on.

A `MossError` is the world's fault (a file, a machine, a visitor's input) and its message is one
sentence that ends with the remedy. Our own mistakes are assertions instead.
"""

from __future__ import annotations


class MossError(Exception):
    """Base of every error that may be shown to a person as it stands.

    `code` is a stable name for programs; `http_status` is used where the error crosses HTTP.
    """

    code = "E_MOSS"
    http_status = 500


class InputError(MossError):
    """A request that cannot be served as sent; no engine work was started."""

    code = "E_INPUT"
    http_status = 422


class TextEmptyError(InputError):
    """A text without anything to say."""

    code = "E_TEXT_EMPTY"


class TextTooLongError(InputError):
    """A text above --max-text-chars."""

    code = "E_TEXT_LONG"
    http_status = 413


class ForeignTextError(InputError):
    """A text in what looks like a language that the voice cannot read; a client may insist on it,
    and it is read."""

    code = "E_LANGUAGE"


class AudioFormatError(InputError):
    """A file that is no audio file, a damaged one, or one of an impossible sample rate or channel
    count."""

    code = "E_AUDIO_FORMAT"


class AudioEmptyError(InputError):
    """Silence, or too little sound to hold a word."""

    code = "E_AUDIO_EMPTY"


class AudioLongError(InputError):
    """A recording above --max-speech-s."""

    code = "E_AUDIO_LONG"
    http_status = 413


class AudioNonfiniteError(InputError):
    """Samples that are NaN or infinite."""

    code = "E_AUDIO_NONFINITE"


class ParameterError(InputError):
    """A sampling or session value out of its range; the message names the field."""

    code = "E_PARAM"


class UnknownVoiceError(ParameterError):
    """A voice that is not there, or not there any more."""


class ContextError(InputError):
    """Prompt plus the longest possible reply does not fit the model's context or the KV pool."""

    code = "E_CONTEXT"
    http_status = 413


class UnsupportedModeError(InputError):
    """The loaded checkpoint cannot serve this combination of input and output."""

    code = "E_MODE"


class BrainError(MossError):
    """The chat server that thinks of the answers is out of reach, or does not answer as agreed."""

    code = "E_BRAIN"
    http_status = 502


class BusyError(MossError):
    """Every place in the queue is taken; trying again later will work."""

    code = "E_BUSY"
    http_status = 503


ALL_TAKEN = "All places are taken; try again in a moment."


class ShuttingDownError(MossError):
    """The service is shutting down: running replies finish, new requests are refused."""

    code = "E_DRAINING"
    http_status = 503


class ReplicasLostError(MossError):
    """No replica of the cluster can serve this now; trying again later may work."""

    code = "E_REPLICAS"
    http_status = 503


class EngineFaultError(MossError):
    """The runtime failed while this request was running; the request is over."""

    code = "E_ENGINE"


class ReplyFaultError(EngineFaultError):
    """This reply alone could not be made; the engine and other replies go on."""

    code = "E_REPLY"


class ConfigError(MossError):
    """An option, or a combination of options, that cannot work."""

    code = "E_CONFIG"


class CheckpointError(MossError):
    """A checkpoint file is missing, damaged, or does not belong to this configuration."""

    code = "E_CHECKPOINT"


class EngineFileError(MossError):
    """An engine file is missing, damaged, or was built for something else; the message names field
    and command."""

    code = "E_ENGINE_FILE"


class MelSpecError(ConfigError):
    """Two parts were joined whose mel settings differ."""

    code = "E_MEL"


class MissingPackageError(MossError):
    """An optional package is not installed; the message holds the command that installs it."""

    code = "E_PACKAGE"


def error_of(code: str, message: str) -> MossError:
    """The error of an accepted reply that failed: of the class that has this code, a plain
    `MossError` where none has."""
    kinds = [MossError]
    for kind in kinds:  # grows meanwhile
        if kind.code == code:
            return kind(message)
        kinds += kind.__subclasses__()
    return MossError(message)
