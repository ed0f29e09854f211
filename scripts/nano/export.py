"""Stage 8: lm/, codec/ and vocoder/ -> a checkpoint folder with its manifest, as assets/nano is.

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
from moss_engine.codec.nano import load_fsq
from moss_engine.codec.vocoder.make import KINDS
from moss_engine.config import NANO_CHECKPOINT, REPO_ROOT
from moss_engine.models.checkpoint import FILE_NAME, expected_tensors, load_tensors, save_tensors
from moss_engine.models.config import ModelConfig
from moss_engine.models.manifest import MANIFEST_NAME, write_manifest
from scripts.command import run_command
from scripts.nano.stage import stage_parser

SETTINGS = ("README.md", "generation_config.json", "processor_config.json")
"""Files of assets/nano that were written by hand, but for the code of silence, the codec's."""


def export_language_model(source: Path, out: Path) -> None:
    """Write config.json, tokenizer.json and model.safetensors, from DIR/lm."""
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
    """Write the folder anew; returns its size in bytes."""
    out: Path = args.out
    for part in ("lm", "codec", *(f"vocoder/{kind}" for kind in KINDS)):
        if not (args.work / part / "config.json").is_file():
            raise CheckpointError(f"{args.work / part} holds no checkpoint; train that part first.")
    if out.exists() and any(out.iterdir()) and not (out / MANIFEST_NAME).exists():
        raise CheckpointError(
            f"{out} holds other files than a checkpoint; name an empty folder with --out."
        )
    settings = {name: (NANO_CHECKPOINT / name).read_text(encoding="utf-8") for name in SETTINGS}
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    export_language_model(args.work / "lm", out)
    for part in ("codec", *(f"vocoder/{kind}" for kind in KINDS)):
        (out / part).mkdir(parents=True)
        for name in ("config.json", FILE_NAME):
            shutil.copyfile(args.work / part / name, out / part / name)
    for name, text in settings.items():
        (out / name).write_text(text, encoding="utf-8")
    processor = json.loads(settings["processor_config.json"])
    processor["pauses"]["code"] = silent_code(out / "codec")
    (out / "processor_config.json").write_text(json.dumps(processor, indent=2) + "\n")
    for path in out.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    command = "python -m scripts.nano.export"
    write_manifest(out, {"name": "nano", "commit": _commit(), "command": command})
    return sum(path.stat().st_size for path in out.rglob("*") if path.is_file())


@torch.inference_mode()
def silent_code(codec: Path) -> int:
    """The code that the codec gives to digital silence."""
    fsq = load_fsq(codec)
    mel = log_mel(torch.zeros(fsq.config.mel.sample_rate_hz), fsq.config.mel)
    codes = fsq.codes_of_mel(mel[None])[0]
    return int(codes[len(codes) // 2])


def _commit() -> str:
    done = subprocess.run(
        ["git", "-C", REPO_ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = stage_parser("export", __doc__)
    parser.add_argument("--out", type=Path, default=NANO_CHECKPOINT)
    args = parser.parse_args()
    print(f"{args.out}: {export(args) / 1e6:.2f} MB")


if __name__ == "__main__":
    run_command(main)
