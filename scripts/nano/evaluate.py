"""Stage 9: the figures of the built-in voice, through the real service, with default settings and
fixed seeds.

    python -m scripts.nano.evaluate [--checkpoint assets/nano] [--teacher] [--out FILE]

Prints misheard words, the quality of the sound, and memory as JSON. --teacher judges the teacher as
well, and its speech after vocoder and codec; that needs hibari-tts. The speed is measured by
`scripts.bench load`.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

import httpx
import numpy as np
import torch

from moss_engine import open_service
from moss_engine.codec.base import MOSS_MEL, Window
from moss_engine.codec.mel import log_mel
from moss_engine.codec.nano import load_fsq
from moss_engine.codec.vocoder.make import make_vocoder, pick_folder
from moss_engine.config import NANO_CHECKPOINT, EngineConfig
from moss_engine.text.spoken.text import spoken_text
from scripts.bench.common import Report
from scripts.bench.program import running
from scripts.command import make_parser, run_command
from scripts.judges.sound import SoundJudges
from scripts.judges.words import Recogniser, count_errors
from scripts.nano.speech.voices import ADA, BEN
from scripts.sentences import EVERYDAY, HARVARD

PORT = 7993
SEED = 1
SUFFIXES = {ADA: "", BEN: f"_{BEN}"}
"""What the names of each voice's figures end with."""


def misheard(
    recogniser: Recogniser, texts: Sequence[str], waves: Sequence[np.ndarray], rate_hz: int
) -> float:
    """The share of misheard words in all texts, in percent."""
    wrong = num_words = 0
    for text, wave in zip(texts, waves, strict=True):
        heard = recogniser.transcribe(wave, rate_hz)
        errors, words = count_errors(text, heard)
        wrong, num_words = wrong + errors, num_words + words
        if errors:
            print(f"  {errors} wrong | {spoken_text(text)} | heard: {heard}")
    return round(100 * wrong / num_words, 2)


def reply_figures(
    config: EngineConfig, recogniser: Recogniser, judges: SoundJudges
) -> dict[str, object]:
    """Word error rates and sound of the replies."""
    figures: dict[str, object] = {}
    with open_service(checkpoint=config.checkpoint, vocoder=config.vocoder) as service:
        for voice, suffix in SUFFIXES.items():
            for name, texts in (("harvard", HARVARD), ("everyday", EVERYDAY)):
                waves = [service.say(text, voice=voice, seed=SEED).samples for text in texts]
                rate_hz, name = service.info.sample_rate_hz, name + suffix
                figures[f"wer_{name}_percent"] = misheard(recogniser, texts, waves, rate_hz)
                figures |= judges.figures(name, waves, rate_hz)
    return figures


def copy_figures(
    config: EngineConfig, recogniser: Recogniser, judges: SoundJudges
) -> dict[str, object]:
    """Figures of the teacher, of its mels through the vocoder, and of these after the codec."""
    from scripts.nano.speech.teacher_voice import teacher

    figures: dict[str, object] = {}
    even, fsq = 2 * MOSS_MEL.hop_size, load_fsq(config.checkpoint / "codec")
    for voice, suffix in SUFFIXES.items():
        rows = [{"spoken": spoken_text(text), "voice": voice, "speed": 1.0} for text in HARVARD]
        said = [teacher().say(row, seed).pcm for seed, row in enumerate(rows)]
        originals = [pcm.astype(np.float32) / 32768 for pcm in said]
        padded = [np.pad(wave, (0, -len(wave) % even)) for wave in originals]
        mels = [log_mel(torch.from_numpy(wave), MOSS_MEL) for wave in padded]
        with torch.inference_mode():
            decoded = [fsq.mel_of_codes(fsq.codes_of_mel(mel[None]))[0] for mel in mels]
        kinds = {
            f"teacher{suffix}": originals,
            f"true_mel{suffix}": vocoded(mels, config),
            f"copy_synthesis{suffix}": vocoded(decoded, config),
        }
        for name, waves in kinds.items():
            rate_hz = MOSS_MEL.sample_rate_hz
            figures[f"wer_{name}_percent"] = misheard(recogniser, HARVARD, waves, rate_hz)
            figures |= judges.figures(name, waves, rate_hz)
    return figures


def vocoded(mels: Sequence[torch.Tensor], config: EngineConfig) -> list[np.ndarray]:
    """Mels [num_mels, frames] -> their sound by the vocoder of a checkpoint."""
    device, waves = torch.device("cpu"), []
    folder = pick_folder(config.checkpoint / "vocoder", config.vocoder, device)
    vocoder = make_vocoder(folder, device, (MOSS_MEL.hop_size,), 1)
    for mel in mels:
        ((wave, _),) = vocoder.speak([Window(vocoder.open(), mel, is_last=True)])
        waves.append(wave.numpy())
    return waves


def page_memory_mb(config: EngineConfig) -> int:
    """Peak resident memory of app.py, started and with its page fetched once."""
    with running(PORT, "--checkpoint", str(config.checkpoint)) as program:
        httpx.get(program.url, timeout=60.0).raise_for_status()
        return program.memory_mb("VmHWM")


def main() -> None:
    parser = make_parser("nano.evaluate", __doc__)
    parser.add_argument("--checkpoint", type=Path, default=NANO_CHECKPOINT)
    parser.add_argument("--vocoder", default="auto", help="as the program's option")
    parser.add_argument("--teacher", action="store_true", help="judge the teacher, too")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    args = parser.parse_args()
    config = EngineConfig(checkpoint=args.checkpoint, vocoder=args.vocoder)
    recogniser, judges = Recogniser(), SoundJudges()
    report = Report(args.out)
    report.add(
        machine=f"{platform.machine()}, {os.cpu_count()} cores",
        torch=torch.__version__,
        seed=SEED,
        recogniser="moonshine-voice 0.0.65 tiny-en",
        vocoder=args.vocoder,
        judges="distillmos 0.9.1, speechmos 0.0.1.1 (DNSMOS)",
        app_memory_mb=page_memory_mb(config),
        **reply_figures(config, recogniser, judges),
    )
    if args.teacher:
        report.add(**copy_figures(config, recogniser, judges))
    print(report.text())


if __name__ == "__main__":
    run_command(main)
