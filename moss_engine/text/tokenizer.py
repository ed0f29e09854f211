"""Text <-> ids of a checkpoint's vocabulary, in both directions without special tokens."""

from __future__ import annotations

import codecs
import json
from pathlib import Path

import tokenizers

from moss_engine.api.errors import CheckpointError
from moss_engine.api.small_files import read_text

REPLACED = {"<|empty|>": ".", "<|end_empty|>": ":"}
"""Special tokens of MOSS-Speech that stand for a character of the reply's text; all others are not
shown."""

MAX_FILE_BYTES = 64 * 1024 * 1024


class TextTokenizer:
    """A byte-level BPE tokenizer in the format of Hugging Face `tokenizers`.

    `special_ids` maps every special token to its id. Raises CheckpointError for a file it cannot
    use.
    """

    def __init__(self, source: str, name: str = "tokenizer.json"):
        try:
            data = json.loads(source)
            self.special_ids = {
                str(token["content"]): int(token["id"]) for token in data["added_tokens"]
            }
            vocab, decoder = data["model"]["vocab"], data["decoder"]
            # Without the special tokens in any part of it, no text can be turned into one. The rest
            # of what is dropped would add tokens around a text or make its encoding random.
            data.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
            data["model"].update(
                dropout=None, vocab={t: i for t, i in vocab.items() if t not in self.special_ids}
            )
            self._encoder = tokenizers.Tokenizer.from_str(json.dumps(data))
        except Exception as error:  # `tokenizers` raises bare Exception
            raise CheckpointError(
                f"{name} is not a tokenizer ({error}); download the checkpoint again."
            ) from None
        if "ByteLevel" not in json.dumps(decoder):
            raise CheckpointError(
                f"{name} is not a byte-level tokenizer; use the one that belongs to the weights."
            )
        self._names = {text_id: name for name, text_id in self.special_ids.items()}
        to_byte = _bytes_of_chars()
        self._pieces = {i: bytes(to_byte[c] for c in t) for t, i in data["model"]["vocab"].items()}
        self._pieces |= {
            self.special_ids[t]: sign.encode()
            for t, sign in REPLACED.items()
            if t in self.special_ids
        }
        self.vocab_size = 1 + max((*self._pieces, *self.special_ids.values()), default=-1)

    @staticmethod
    def from_file(path: Path) -> TextTokenizer:
        try:
            source = read_text(path, MAX_FILE_BYTES)
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({error}); download the checkpoint again."
            ) from None
        return TextTokenizer(source, str(path))

    def encode(self, text: str) -> list[int]:
        """Ids of a text, taken literally whatever it spells."""
        ids = self._encoder.encode(text, add_special_tokens=False).ids
        assert not set(ids) & set(self.special_ids.values()), (
            "a text was encoded as a special token"
        )
        return ids

    def piece(self, text_id: int) -> str:
        """What an id stands for by itself, a special token by its name; nothing for an id that is
        not in use."""
        special = self._names.get(text_id)
        return special or self._pieces.get(text_id, b"").decode("utf-8", errors="replace")

    def open_decoder(self) -> TextDecoder:
        return TextDecoder(self._pieces)


class TextDecoder:
    """Ids of one reply -> text. A character whose bytes are spread over several ids comes with the
    last of them."""

    def __init__(self, pieces: dict[int, bytes]):
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._has_text = False
        self._at_seam = self._goes_on = False

    def push(self, text_id: int) -> str:
        """The text that this id completes; often none."""
        text = self._utf8.decode(self._pieces.get(text_id, b""))
        if not text:
            return ""
        # Segments are separate sentences, but a model begins each of them as if nothing stood
        # before it.
        seam = " " if self._at_seam and self._has_text and not text[0].isspace() else ""
        if self._at_seam and self._goes_on:
            text = text[0].lower() + text[1:]
        self._has_text, self._at_seam = True, False
        return seam + text

    def end_segment(self, goes_on: bool = False) -> str:
        """A segment is over: what is still incomplete, as replacement characters. The next one
        begins with a small letter if this one `goes_on`."""
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        self._at_seam, self._goes_on = True, goes_on
        return text


def _bytes_of_chars() -> dict[str, int]:
    """The stand-ins of byte-level BPE (as in GPT-2): bytes that print are themselves, the others
    U+0100 and on."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }
