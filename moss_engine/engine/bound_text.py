"""Reading aloud: which text ids a reply may write next when its words are given."""

from __future__ import annotations

from collections.abc import Sequence

from moss_engine.api.tokens import Row, SpecialIds


def allowed_text_ids(
    reply_rows: Sequence[Row], words: Sequence[Sequence[int]], ids: SpecialIds
) -> tuple[int, ...]:
    """The text ids that may follow the rows of a reply in text mode, at most two.

    Inside a word its next id; after a word the first id of the next one, or `sosp` once a word was
    written since the last span of speech. Behind the last word `sosp` while it is unspoken, then
    `im_end`. The words hold plain text ids, and the rows no other text.
    """
    written, unspoken = _count_text(reply_rows, ids)
    start = 0
    for word in words:
        end = start + len(word)
        if written < end:
            following = word[written - start]
            may_speak = written == start and unspoken > 0
            return (following, ids.sosp) if may_speak else (following,)
        start = end
    return (ids.sosp,) if unspoken else (ids.im_end,)


def _count_text(reply_rows: Sequence[Row], ids: SpecialIds) -> tuple[int, int]:
    """Text ids that were written: in all, and since the last span of speech."""
    written = unspoken = 0
    for row in reply_rows:
        if row.text == ids.sosp:
            unspoken = 0
        elif row.text != ids.modality_pad:
            written += 1
            unspoken += 1
    return written, unspoken
