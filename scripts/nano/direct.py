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
from pathlib import Path

import numpy as np
import torch

from moss_engine.api.tokens import Row, is_stop, spoken_codes
from moss_engine.models.config import ModelConfig
from moss_engine.models.network import load_model
from moss_engine.text.spoken.text import spoken_text
from scripts.nano.lm.generate import Bound, Settings, generate
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
    from moss_engine.codec.nano.fsq import load_fsq
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
        prog="python -m scripts.nano.direct",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
