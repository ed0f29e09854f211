"""The language model alone: many prompts in one padded batch, without the engine. For judging
training runs.

    python -m scripts.nano.direct --lm WORK/lm --out replies.json [--sets harvard everyday]
        [--temperatures 0.5 0.6]
    python -m scripts.nano.direct --replies replies.json --codec WORK/codec --vocoder WORK/vocoder

The first command needs torch and tokenizers only and writes the replies' rows; the second turns
them into sound and has the recogniser judge it. Both in one when all folders are given.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.api.tokens import Row, is_stop, spoken_codes
from moss_engine.models.config import ModelConfig
from moss_engine.models.load import load_model
from moss_engine.models.network import MossSpeech
from moss_engine.text.spoken.text import spoken_text
from scripts.nano.speech.voices import ADA, RATE_TOKENS, VOICE_TOKENS, VOICES, rate_token
from scripts.nano.text.hard_sentences import HARD, HOMOGRAPHS
from scripts.nano.text.sentences import EVERYDAY, HARVARD, STRESS
from scripts.nano.tokenizer import CHAT, IM_END, IM_START, READ, load_tokenizer

CHAT_PROBES = (
    "Hello!",
    "Who are you?",
    "What is seven plus five?",
    "What is forty-two plus nineteen?",
    "What is eighty minus thirty-three?",
    "What comes after Tuesday?",
    "How many days are in April?",
    "What is the opposite of hot?",
    "What is the capital of France?",
    "Tell me a joke.",
    "What does lemon mean?",
    "What color is the sky?",
    "Who won the election in Brazil?",
    "Thank you.",
    "What is the plural of box?",
    "Why do cats like fish so much?",
)
SETS = {
    "harvard": HARVARD, "everyday": EVERYDAY, "stress": STRESS, "chat": CHAT_PROBES, "hard": HARD,
    "homographs": tuple(sentence for sentence, *_ in HOMOGRAPHS),
}  # fmt: skip
MAX_ROWS = 900


@dataclass(frozen=True)
class Settings:
    """Sampling of a run; temperature 0 is greedy, top_k 0 and top_p 1 switch filters off."""

    audio_temperature: float
    audio_top_k: int
    audio_top_p: float
    text_temperature: float
    seed: int
    voice: str = ADA
    speed: float = 1.0


class Prompter:
    """Text -> prompt ids, and text ids -> text."""

    def __init__(self, folder: Path):
        self.tokenizer = load_tokenizer(folder / "tokenizer.json")
        vocab = self.tokenizer.get_vocab(with_added_tokens=True)
        names = (IM_START, IM_END, READ, CHAT, *VOICE_TOKENS.values(), *RATE_TOKENS)
        self.special = {name: vocab[name] for name in names}

    def words(self, text: str) -> list[list[int]]:
        """Text ids word by word, each with the space before it."""
        first, *others = spoken_text(text).split()
        return [self._ids(word) for word in (first, *(" " + other for other in others))]

    def prompt(self, text: str, mode: str, voice: str = ADA, speed: float = 1.0) -> list[int]:
        start, end = self.special[IM_START], self.special[IM_END]
        line = self._ids("\n")
        return [
            start,
            *self._ids("system\n"),
            self.special[READ if mode == "read" else CHAT],
            self.special[VOICE_TOKENS[voice]],
            self.special[rate_token(speed)],
            end,
            *line,
            start,
            *self._ids("user\n"),
            *self._ids(spoken_text(text)),
            end,
            *line,
            start,
            *self._ids("assistant\n"),
        ]

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    def caption(self, rows: Sequence[Row], config: ModelConfig) -> str:
        specials = (
            config.modality_pad_token_id,
            config.sosp_token_id,
            config.eos_token_id,
            config.pad_token_id,
        )
        return self.tokenizer.decode([row.text for row in rows if row.text not in specials])


class PaddedCache:
    """`Attend` over a batch of left-padded sequences of equal progress."""

    def __init__(self, config: ModelConfig, padding: Tensor, capacity: int, like: Tensor):
        batch = len(padding)
        shape = (config.num_layers, batch, config.num_key_value_heads, capacity, config.head_dim)
        self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)
        self.padding, self.filled = padding, 0
        self.columns = torch.arange(capacity, device=like.device)

    def attend(self, slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, end = q.shape[1], self.filled + q.shape[1]
        self.keys[slot, :, :, self.filled : end] = k.transpose(1, 2)
        self.values[slot, :, :, self.filled : end] = v.transpose(1, 2)
        columns = self.columns[:end]
        now = self.columns[self.filled : end]
        seen = (columns[None, None] >= self.padding[:, None, None]) & (
            columns[None, None] <= now[None, :, None]
        )
        seen = seen | (
            columns[None, None] == now[None, :, None]
        )  # padding rows see themselves, so that nothing is NaN
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            self.keys[slot, :, :, :end],
            self.values[slot, :, :, :end],
            attn_mask=seen[:, None],
            enable_gqa=True,
        )
        assert out.shape[2] == rows
        return out.transpose(1, 2)


def pick(
    logits: Tensor, temperature: float, top_k: int, top_p: float, generator: torch.Generator
) -> Tensor:
    """[batch, vocab] -> sampled ids [batch]."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float() / temperature
    if top_k:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    if top_p < 1:
        ranked, order = logits.softmax(-1).sort(-1, descending=True)
        dropped = (ranked.cumsum(-1) - ranked >= top_p).scatter(
            -1, order, ranked.cumsum(-1) - ranked >= top_p
        )
        logits = logits.masked_fill(dropped, -torch.inf)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)


class Bound:
    """The text channel of replies that read: a word's next id, or speech between words; the end
    after the last."""

    def __init__(
        self, config: ModelConfig, texts: Sequence[Sequence[Sequence[int]]], device: torch.device
    ):
        self.config, longest = config, max(sum(map(len, words)) for words in texts) + 1
        self.ids = torch.full((len(texts), longest), config.eos_token_id, device=device)
        self.opens = torch.zeros(self.ids.shape, dtype=torch.bool, device=device)
        for i, words in enumerate(texts):
            flat = [piece for word in words for piece in word]
            self.ids[i, : len(flat)] = torch.tensor(flat, device=device)
            starts = np.cumsum([0, *map(len, words)])
            self.opens[i, torch.from_numpy(starts).to(device)] = True
        self.at = torch.zeros(len(texts), dtype=torch.long, device=device)
        self.unspoken = torch.zeros(len(texts), dtype=torch.bool, device=device)
        self.rows = torch.arange(len(texts), device=device)

    def choose(self, logits: Tensor, speaks: Tensor) -> Tensor:
        """[batch, vocab] -> the text id of every reply; those that speak keep their place."""
        wanted, sosp = self.ids[self.rows, self.at], self.config.sosp_token_id
        may_open = self.opens[self.rows, self.at] & self.unspoken
        is_over = wanted == self.config.eos_token_id
        prefers = logits[:, sosp] > logits.gather(1, wanted[:, None])[:, 0]
        opens = may_open & (prefers | is_over)
        moved = ~opens & ~speaks
        last = self.ids.shape[1] - 1
        self.at = torch.where(moved, (self.at + 1).clamp(max=last), self.at)
        self.unspoken = torch.where(speaks, self.unspoken, moved)
        return torch.where(opens, sosp, wanted)


@torch.inference_mode()
def generate(
    model: MossSpeech,
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    max_rows: int = MAX_ROWS,
    bound: Bound | None = None,
) -> list[list[Row]]:
    """Replies to all prompts; one that does not stop has `max_rows` rows."""
    config, device = model.config, model.audio_lm_head.weight.device
    generator = torch.Generator(device=device).manual_seed(settings.seed)
    longest = max(map(len, prompts))
    padding = torch.tensor([longest - len(p) for p in prompts], device=device)
    rows = torch.full(
        (len(prompts), longest, 2), config.audio_pad_token_id, dtype=torch.long, device=device
    )
    for i, prompt in enumerate(prompts):
        rows[i, :, 0] = torch.tensor(
            [config.pad_token_id] * (longest - len(prompt)) + list(prompt), device=device
        )
    cache = PaddedCache(config, padding, longest + max_rows, model.audio_lm_head.weight)
    speaks = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    over = torch.zeros_like(speaks)
    made: list[Tensor] = []
    for step in range(max_rows):
        positions = (
            torch.arange(cache.filled, cache.filled + rows.shape[1], device=device)[None]
            - padding[:, None]
        ).clamp(min=0)
        states = model(
            rows, positions, cache.attend, torch.tensor([rows.shape[1] - 1], device=device)
        )
        cache.filled += rows.shape[1]
        text_logits = model.text_lm_head(states.text[:, 0])
        if bound is None:
            text = pick(text_logits, settings.text_temperature, 0, 1.0, generator)
        else:
            text = bound.choose(text_logits.float(), speaks)
        audio_logits = model.audio_lm_head(states.audio[:, 0])
        audio_logits[:, config.eosp_token_id + 1 :] = -torch.inf
        audio = pick(
            audio_logits,
            settings.audio_temperature,
            settings.audio_top_k,
            settings.audio_top_p,
            generator,
        )
        text = torch.where(speaks, config.modality_pad_token_id, text)
        rows = torch.stack([torch.where(over, config.pad_token_id, text), audio], -1)[:, None]
        made.append(rows[:, 0])
        speaks = torch.where(speaks, audio != config.eosp_token_id, text == config.sosp_token_id)
        over = over | (text == config.eos_token_id) | (text == config.pad_token_id)
        if step % 16 == 15 and bool(over.all()):
            break
    replies = torch.stack(made, 1).tolist()
    return [_until_stop([Row(*row) for row in reply], config) for reply in replies]


def _until_stop(rows: list[Row], config: ModelConfig) -> list[Row]:
    end = next((i + 1 for i, row in enumerate(rows) if is_stop(row, config.special)), len(rows))
    return rows[:end]


def speak_all(
    folder: Path, names: Sequence[str], runs: Sequence[Settings], device: torch.device
) -> list[dict]:
    """One record for each set and settings: captions, codes, and how many replies stopped by
    themselves."""
    model = load_model(folder, device=device)
    prompter = Prompter(folder)
    records = []
    for name, settings in itertools.product(names, runs):
        texts = SETS[name]
        began = time.monotonic()
        mode = "chat" if name == "chat" else "read"
        bound = (
            None
            if mode == "chat"
            else Bound(model.config, [prompter.words(t) for t in texts], device)
        )
        prompts = [prompter.prompt(t, mode, settings.voice, settings.speed) for t in texts]
        replies = generate(model, prompts, settings, bound=bound)
        captions = [prompter.caption(rows, model.config) for rows in replies]
        stopped = sum(is_stop(rows[-1], model.config.special) for rows in replies)
        exact = sum(caption == spoken_text(text) for caption, text in zip(captions, texts))
        record = {
            "set": name,
            "settings": vars(settings),
            "stopped": stopped,
            "exact_captions": exact,
            "of": len(texts),
            "codes": [spoken_codes(rows, model.config.special) for rows in replies],
            "captions": captions,
        }
        print(
            json.dumps(
                {k: v for k, v in record.items() if k not in ("codes", "captions")}
                | {"wall_s": round(time.monotonic() - began, 1)}
            ),
            flush=True,
        )
        if name == "chat":
            for text, caption in zip(texts, captions):
                print(f"  {text} -> {caption}", flush=True)
        records.append(record)
    return records


def judge_records(records: list[dict], codec: Path, vocoder: Path, save: Path | None) -> None:
    """Print the word error rate of every record but the chat's."""
    from moss_engine.codec.nano.store import load_fsq
    from moss_engine.config import EngineConfig
    from scripts.nano.copy_synthesis import spoken
    from scripts.nano.judge import Recogniser, judge

    fsq, config, recogniser = load_fsq(codec), EngineConfig(vocoder_folder=vocoder), Recogniser()
    rate_hz = fsq.config.mel.sample_rate_hz
    for record in records:
        waves = []
        with torch.inference_mode():
            for codes in record["codes"]:
                if codes:
                    waves += spoken([fsq.mel_of_codes(torch.tensor([codes]))[0]], config)
                else:
                    waves.append(np.zeros(rate_hz // 2, np.float32))
        if save is not None:
            _save(waves, save / record["set"], rate_hz)
        if record["set"] != "chat":
            errors = judge(recogniser, waves, SETS[record["set"]], rate_hz)
            print(
                json.dumps(
                    {
                        "set": record["set"],
                        "settings": record["settings"],
                        "word_error_rate": round(errors.word_error_rate, 4),
                        "char_error_rate": round(errors.char_error_rate, 4),
                        "stopped": record["stopped"],
                        "of": record["of"],
                        "seconds": round(sum(map(len, waves)) / rate_hz, 1),
                    }
                ),
                flush=True,
            )


def _save(waves: Sequence[np.ndarray], folder: Path, rate_hz: int) -> None:
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    for k, wave in enumerate(waves):
        soundfile.write(folder / f"{k:03d}.wav", wave, rate_hz, subtype="PCM_16")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--lm", type=Path, help="folder with config.json, tokenizer.json and model.safetensors"
    )
    parser.add_argument("--codec", type=Path)
    parser.add_argument("--vocoder", type=Path)
    parser.add_argument("--sets", nargs="+", choices=sorted(SETS), default=["harvard"])
    parser.add_argument(
        "--temperatures", nargs="+", type=float, default=[0.6], help="of the audio channel"
    )
    parser.add_argument("--top-k", nargs="+", type=int, default=[20])
    parser.add_argument("--top-p", nargs="+", type=float, default=[1.0])
    parser.add_argument("--text-temperature", type=float, default=0.0)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--voices", nargs="+", choices=VOICES, default=[ADA])
    parser.add_argument("--speeds", nargs="+", type=float, default=[1.0])
    parser.add_argument("--out", type=Path, help="write the replies here (JSON)")
    parser.add_argument("--replies", type=Path, help="judge these instead of generating")
    parser.add_argument("--save", type=Path, help="write the sound as WAV files here")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.replies is not None:
        records = json.loads(args.replies.read_text())
    elif args.lm is not None:
        runs = [
            Settings(t, k, p, args.text_temperature, s, voice, speed)
            for t, k, p, s, voice, speed in itertools.product(
                args.temperatures, args.top_k, args.top_p, args.seeds, args.voices, args.speeds
            )
        ]
        records = speak_all(args.lm, args.sets, runs, torch.device(args.device))
    else:
        parser.error("give --lm or --replies")
    if args.out is not None:
        args.out.write_text(json.dumps(records))
    if args.codec is not None and args.vocoder is not None:
        judge_records(records, args.codec, args.vocoder, args.save)


if __name__ == "__main__":
    main()
