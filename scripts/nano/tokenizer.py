"""Stage 2: prompts.jsonl.gz -> tokenizer.json: byte-level BPE of 1,024 entries, specials first.

    python -m scripts.nano.tokenizer --work DIR

Text is split before every space, at punctuation and into single digits; any string can be encoded.
The specials are never produced from plain text: the tokenizer is set not to parse them.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from scripts.nano.speech.voices import RATE_TOKENS, VOICE_TOKENS

VOCAB_SIZE = 1024
IM_START, IM_END, TEXT_PAD, SOSP, MODALITY_PAD, READ, CHAT = SPECIALS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|sosp|>",
    "<|audio|>",
    "<read>",
    "<chat>",
)
ROLE_REPEATS = 5000  # makes one piece of each role name
DROPOUT = 0.1
MAX_TAKES = 4


def read_prompts(work: Path) -> Iterator[dict]:
    """The rows of prompts.jsonl.gz, one for every take, with its own id, voice and speed."""
    with gzip.open(work / "prompts.jsonl.gz", "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            takes = row.pop("takes")
            for number, (voice, speed) in enumerate(takes):
                yield {**row, "id": MAX_TAKES * row["id"] + number, "voice": voice, "speed": speed}


def read_talk(work: Path) -> Iterator[dict]:
    """The questions and answers of talk.jsonl.gz."""
    with gzip.open(work / "talk.jsonl.gz", "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def train_tokenizer(texts: Iterator[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(r" ?[A-Za-z']+| ?[^\sA-Za-z'\d]+|\d|\s+"), behavior="isolated"
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIALS),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE, (
        f"{tokenizer.get_vocab_size()} entries, not {VOCAB_SIZE}"
    )
    assert [tokenizer.token_to_id(special) for special in SPECIALS] == list(range(len(SPECIALS)))
    tokenizer.encode_special_tokens = True
    return tokenizer


def with_voice_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The same vocabulary size, with the tokens of voices and rates in place of the last pieces
    that were merged."""
    names = [*VOICE_TOKENS.values(), *RATE_TOKENS]
    data = json.loads(tokenizer.to_str())
    vocab = data["model"]["vocab"]
    if set(names) <= vocab.keys():
        return tokenizer
    assert not set(names) & vocab.keys() and len(vocab) == VOCAB_SIZE
    first = VOCAB_SIZE - len(names)
    kept = {piece: number for piece, number in vocab.items() if number < first}
    merges = [pair for pair in data["model"]["merges"] if "".join(pair) in kept]
    assert all(piece in kept for pair in merges for piece in pair)
    data["model"]["vocab"] = kept | {name: first + k for k, name in enumerate(names)}
    data["model"]["merges"] = merges
    like = next(token for token in data["added_tokens"] if token["content"] == READ)
    data["added_tokens"] += [
        {**like, "id": first + k, "content": name} for k, name in enumerate(names)
    ]
    changed = Tokenizer.from_str(json.dumps(data))
    changed.encode_special_tokens = True
    assert [changed.token_to_id(name) for name in names] == list(range(first, VOCAB_SIZE))
    return changed


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer, set to take special names in a text as plain characters."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.nano.tokenizer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument(
        "--base", type=Path, help="take the pieces of this tokenizer.json instead of learning them"
    )
    args = parser.parse_args()
    texts = [row["spoken"] for row in read_prompts(args.work)] + [
        row["user"] for row in read_talk(args.work)
    ]
    if args.base is not None:
        tokenizer = with_voice_tokens(load_tokenizer(args.base))
    else:
        roles = ["system\n", "user\n", "assistant\n"] * ROLE_REPEATS
        tokenizer = with_voice_tokens(train_tokenizer(iter([*texts, *roles])))
    tokenizer.save(str(args.work / "tokenizer.json"))
    sample = texts[::50]
    pieces = sum(len(tokenizer.encode(text).ids) for text in sample)
    print(
        f"{VOCAB_SIZE} entries, {sum(map(len, sample)) / pieces:.2f} characters a piece, "
        f"{len(texts)} texts"
    )


if __name__ == "__main__":
    main()
