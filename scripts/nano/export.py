"""Stage 9: lm/, codec/ and vocoder/ -> a checkpoint folder with its manifest, as assets/nano is.

    python -m scripts.nano.export --work WORK --out FOLDER

Matrices of the language model become int8 rows with float16 scales.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path

import torch

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.mel import log_mel
from moss_engine.codec.nano.fsq import load_fsq
from moss_engine.codec.vocoder.make import KINDS
from moss_engine.config import NANO_CHECKPOINT, REPO_ROOT
from moss_engine.models.checkpoint import FILE_NAME, expected_tensors, load_tensors, save_tensors
from moss_engine.models.config import ModelConfig
from moss_engine.models.manifest import MANIFEST_NAME, write_manifest
from scripts.command import run_command
from scripts.nano.speech.voices import ADA, RATE_TOKENS, RATES, VOICE_TOKENS
from scripts.nano.stage import stage_parser

PROCESSOR_CONFIG = {
    "modes": [
        {
            "name": "read",
            "label": "Read aloud",
            "input": "text",
            "output": "speech",
            "system": "<read>",
            "split_sentences": True,
            "default": True,
            "note": "Reads any English text with the small built-in voice.",
        },
        {
            "name": "chat",
            "label": "Small talk",
            "input": "text",
            "output": "speech",
            "system": "<chat>",
            "split_sentences": False,
            "default": False,
            "note": "Scripted answers: greetings, sums up to twelve, days, capitals, common "
            "words. It does not reason.",
        },
    ],
    "voices": [
        {"name": name, "label": name.capitalize(), "token": token, "default": name == ADA}
        for name, token in VOICE_TOKENS.items()
    ],
    "rates": [{"speed": round(rate, 4), "token": token} for rate, token in zip(RATES, RATE_TOKENS)],
    "segment_chars": 200,
    "max_rows_per_char": 5.0,
    "min_cap_rows": 160,
    "silent_lead_s": 0.05,  # of the 60 ms with which the teacher's sentences begin
}
PAUSES = {"sentence": 4, "paragraph": 13}
"""Codes of silence, of 40 ms: sentences have 0.37 s between them by themselves."""


GENERATION_CONFIG = {
    "text": {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0},
    "audio": {"temperature": 0.4, "top_k": 20, "top_p": 1.0, "repetition_penalty": 1.0},
    "max_rows": 1200,
    "min_rows": 0,
}


def export_language_model(source: Path, out: Path) -> None:
    """config.json, tokenizer.json and model.safetensors of DIR/lm."""
    config = ModelConfig.from_file(source / "config.json")
    tensors = {
        name: tensor.float()
        for name, tensor in load_tensors(source, expected_tensors(config)).items()
    }
    matrices = [name for name, tensor in tensors.items() if tensor.dim() == 2]
    save_tensors(out / FILE_NAME, tensors, matrices)
    for name in ("config.json", "tokenizer.json"):
        shutil.copyfile(source / name, out / name)


def export(args: argparse.Namespace) -> int:
    """Write the folder anew; -> its size in bytes."""
    out: Path = args.out
    for part in ("lm", "codec", *(f"vocoder/{kind}" for kind in KINDS)):
        if not (args.work / part / "config.json").is_file():
            raise CheckpointError(f"{args.work / part} holds no checkpoint; train that part first.")
    if out.exists() and any(out.iterdir()) and not (out / MANIFEST_NAME).exists():
        raise CheckpointError(
            f"{out} holds other files than a checkpoint; name an empty folder with --out."
        )
    card = (NANO_CHECKPOINT / "README.md").read_text(encoding="utf-8")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    export_language_model(args.work / "lm", out)
    for part in ("codec", *(f"vocoder/{kind}" for kind in KINDS)):
        (out / part).mkdir(parents=True)
        for name in ("config.json", FILE_NAME):
            shutil.copyfile(args.work / part / name, out / part / name)
    _write_json(out / "generation_config.json", GENERATION_CONFIG)
    pauses = {"code": silent_code(out / "codec"), **PAUSES}
    _write_json(out / "processor_config.json", {**PROCESSOR_CONFIG, "pauses": pauses})
    (out / "README.md").write_text(card, encoding="utf-8")
    for path in out.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    command = "python -m scripts.nano.export"
    write_manifest(out, {"name": "nano", "commit": _commit(), "command": command})
    return sum(path.stat().st_size for path in out.rglob("*") if path.is_file())


@torch.inference_mode()
def silent_code(codec: Path) -> int:
    """The code that digital silence has."""
    fsq = load_fsq(codec)
    mel = log_mel(torch.zeros(fsq.config.mel.sample_rate_hz), fsq.config.mel)
    codes = fsq.codes_of_mel(mel[None])[0]
    return int(codes[len(codes) // 2])


def _commit() -> str:
    done = subprocess.run(
        ["git", "-C", REPO_ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _write_json(path: Path, values: dict[str, object]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = stage_parser("export", __doc__)
    parser.add_argument("--out", type=Path, default=NANO_CHECKPOINT)
    args = parser.parse_args()
    print(f"{args.out}: {export(args) / 1e6:.2f} MB")


if __name__ == "__main__":
    run_command(main)
