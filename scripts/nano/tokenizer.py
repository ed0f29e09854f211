"""Stage 2: prompts.jsonl.gz -> tokenizer.json: byte-level BPE of 1,024 entries.

    python -m scripts.nano.tokenizer --work WORK

Text is split before every space, at punctuation and into single digits; any string can be encoded.
The specials are the first entries, the tokens of voices and rates the last ones. They are never
produced from plain text: the tokenizer is set not to parse them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from moss_engine.api.errors import CheckpointError
from scripts.nano.speech.voices import RATE_TOKENS, VOICE_TOKENS
from scripts.nano.stage import stage_parser

VOCAB_SIZE = 1024
IM_START, IM_END, TEXT_PAD, SOSP, MODALITY_PAD, READ, _ = SPECIALS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|sosp|>",
    "<|audio|>",
    "<read>",
    "<chat>",
)
"""The last one is not used any more; it only keeps the other ids in their places."""
ROLE_REPEATS = 5000  # makes one piece of each role name
MAX_TAKES = 4


def read_prompts(work: Path) -> Iterator[dict[str, Any]]:
    """The rows of prompts.jsonl.gz, split into one for every take, with its id, voice and speed."""
    path = work / "prompts.jsonl.gz"
    if not path.exists():
        raise CheckpointError(f"{path} is missing: run python -m scripts.nano.prompts first.")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            takes = row.pop("takes")
            for number, (voice, speed) in enumerate(takes):
                yield {**row, "id": MAX_TAKES * row["id"] + number, "voice": voice, "speed": speed}


def train_tokenizer(texts: Iterator[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    words = Regex(r" ?[A-Za-z']+| ?[^\sA-Za-z'\d]+|\d|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    last = [*VOICE_TOKENS.values(), *RATE_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(last),
        special_tokens=list(SPECIALS),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(last)
    size = tokenizer.get_vocab_size()
    assert size == VOCAB_SIZE, f"{size} entries, not {VOCAB_SIZE}: too little text"
    assert [tokenizer.token_to_id(special) for special in SPECIALS] == list(range(len(SPECIALS)))
    tokenizer.encode_special_tokens = True
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer, set to take special names in a text as plain characters."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return tokenizer


def main() -> None:
    args = stage_parser("tokenizer", __doc__).parse_args()
    texts = [row["spoken"] for row in read_prompts(args.work)]
    roles = ["system\n", "user\n", "assistant\n"] * ROLE_REPEATS
    tokenizer = train_tokenizer(iter([*texts, *roles]))
    tokenizer.save(str(args.work / "tokenizer.json"))
    sample = texts[::50]
    pieces = sum(len(tokenizer.encode(text).ids) for text in sample)
    print(f"tokenizer: {sum(map(len, sample)) / pieces:.2f} characters a piece")


if __name__ == "__main__":
    main()
