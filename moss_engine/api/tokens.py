"""The token contract: two-channel rows, special ids and the two-mode token machine.

Every position of the network is a *row* with a text id and an audio id, of which exactly one is
read: the text id, unless it is the modality pad, then the audio id. A reply alternates between two
modes: in text mode the text head's sample counts, until it is `sosp`; in audio mode the audio
head's sample counts, until it is `eosp`. Everything here is pure; the rules are those of the
published MOSS-Speech generation loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Row(NamedTuple):
    """One position of the two channels."""

    text: int
    audio: int


class Modality(Enum):
    """Which head's sample counts for the next row."""

    TEXT = "text"
    AUDIO = "audio"


@dataclass(frozen=True)
class SpecialIds:
    """Ids with a role, all from `config.json`; none has a default.

    `sosp`, `modality_pad`, `im_end` and `text_pad` are text ids; `eosp` and `audio_pad` are audio
    ids. Audio ids below `eosp` are codec codes, ids above it are never legal as samples.
    `audio_pad` may be a legal code (512 in MOSS-Speech): its role depends on the row.
    """

    sosp: int
    eosp: int
    modality_pad: int
    audio_pad: int
    im_end: int
    text_pad: int

    @property
    def num_codes(self) -> int:
        """Codes are the audio ids 0 .. num_codes - 1."""
        return self.eosp


def text_rows(text_ids: Iterable[int], ids: SpecialIds) -> list[Row]:
    """Rows of plain text: the audio channel holds its pad."""
    return [Row(text_id, ids.audio_pad) for text_id in text_ids]


def speech_rows(codes: Sequence[int], ids: SpecialIds) -> list[Row]:
    """Rows of a speech turn: sosp, one row a code, eosp (`len(codes) + 2` rows)."""
    assert all(0 <= code < ids.num_codes for code in codes), "code out of the codec's range"
    return [
        Row(ids.sosp, ids.audio_pad),
        *(Row(ids.modality_pad, code) for code in codes),
        Row(ids.modality_pad, ids.eosp),
    ]


def is_audio_row(row: Row, ids: SpecialIds) -> bool:
    """Whether the network reads the row's audio id rather than its text id."""
    return row.text == ids.modality_pad


def effective_id(row: Row, ids: SpecialIds) -> int:
    """The only part of a row that the network sees, as one integer: text ids >= 0, audio ids < 0.

    Rows with equal effective ids have equal keys and values, so the prefix cache hashes these.
    """
    return ~row.audio if is_audio_row(row, ids) else row.text


def initial_modality(last_prompt_row: Row, ids: SpecialIds) -> Modality:
    """Mode before the first step, from the prompt's last row (a `sosp` row flips to audio in
    `next_modality`)."""
    return Modality.AUDIO if is_audio_row(last_prompt_row, ids) else Modality.TEXT


def next_modality(modality: Modality, last_row: Row, ids: SpecialIds) -> Modality:
    """Mode in which the row after `last_row` is sampled. A `sosp` row opens its span whatever its
    audio sample is, which nothing else reads."""
    if modality is Modality.TEXT:
        return Modality.AUDIO if last_row.text == ids.sosp else Modality.TEXT
    return Modality.TEXT if last_row.audio == ids.eosp else Modality.AUDIO


def settle_row(modality: Modality, sampled: Row, ids: SpecialIds) -> Row:
    """The row to append: in audio mode the text sample is replaced by the modality pad.

    In text mode the audio sample stays in the row. It is ignored on input, but the repetition
    penalty of the audio channel counts it, as in the reference.
    """
    return Row(ids.modality_pad, sampled.audio) if modality is Modality.AUDIO else sampled


def is_stop(row: Row, ids: SpecialIds) -> bool:
    """Whether the row ends the reply (it stays in the grid)."""
    return row.text in (ids.im_end, ids.text_pad)


def code_of(row: Row, ids: SpecialIds) -> int | None:
    """The codec code that a reply's row carries, or None."""
    return row.audio if is_audio_row(row, ids) and row.audio < ids.num_codes else None


def rows_until_code(rows: Sequence[Row], num_codes: int, ids: SpecialIds) -> tuple[Row, ...]:
    """The rows up to and with the one that carries the `num_codes`th code; all rows if they carry
    fewer."""
    if num_codes <= 0:
        return ()
    found = 0
    for place, row in enumerate(rows, 1):
        found += code_of(row, ids) is not None
        if found == num_codes:
            return tuple(rows[:place])
    return tuple(rows)


def spoken_codes(rows: Iterable[Row], ids: SpecialIds) -> list[int]:
    """Codes to vocode: those of all audio rows of a reply, over all its spans."""
    return [code for row in rows if (code := code_of(row, ids)) is not None]


@dataclass(frozen=True)
class Segment:
    """A part of a reply that is generated on its own: its prompt, and the most rows it may get.

    `silence`: codes that are played before it, unless it is the first. `goes_on`: the next segment
    is the rest of the same sentence; it has a capital letter only because the network expects one.
    `bound_words`: the text to be written, as text ids word by word, so that the model only chooses
    where spans of speech begin; None leaves the text to the model. `reply_rows`: the most rows that
    the whole reply may have at the end of this segment.
    """

    prompt: tuple[Row, ...]
    max_rows: int
    bound_words: tuple[tuple[int, ...], ...] | None = None
    reply_rows: int | None = None
    silence: tuple[int, ...] = ()
    goes_on: bool = False

    @property
    def max_total_rows(self) -> int:
        return len(self.prompt) + self.max_rows
