"""What codec and vocoder alone leave of the teacher's speech: in words by a recogniser, in sound by
two judges.

    python -m scripts.nano.copy_synthesis --work DIR [--checkpoint FOLDER] [--vocoder bigvgan]
        [--save FOLDER]

Judges 20 Harvard sentences: the teacher's own waves, those from their true mels, and those from
mels decoded from codes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.mel import log_mel
from moss_engine.codec.nano.fsq import load_fsq
from moss_engine.codec.vocoder.make import make_vocoder, pick_folder
from moss_engine.config import NANO_CHECKPOINT, EngineConfig
from moss_engine.text.spoken.text import spoken_text
from scripts.nano.judge import Recogniser, judge
from scripts.nano.judges.sound_judges import SoundJudges
from scripts.nano.speech.shards import SAMPLE_RATE_HZ
from scripts.nano.text.sentences import HARVARD


def teacher_waves(sentences: Sequence[str], cache: Path) -> list[np.ndarray]:
    """The sentences as the teacher says them, float32; kept in `cache` as 16-bit WAV."""
    import soundfile

    from scripts.nano.speech.teacher_voice import Teacher
    from scripts.nano.speech.voices import ADA

    cache.mkdir(parents=True, exist_ok=True)
    paths = [cache / f"teacher-{k:02d}.wav" for k in range(len(sentences))]
    if not all(path.exists() for path in paths):
        teacher = Teacher()
        for k, (path, sentence) in enumerate(zip(paths, sentences, strict=True)):
            pcm, *_ = teacher.say(
                {"spoken": spoken_text(sentence), "voice": ADA, "speed": 1.0}, seed=k
            )
            soundfile.write(path, pcm, SAMPLE_RATE_HZ, subtype="PCM_16")
    return [soundfile.read(path, dtype="float32")[0] for path in paths]


def mels_of(waves: Sequence[np.ndarray]) -> list[Tensor]:
    """Log-mel [num_mels, frames] of each, of an even number of frames"""
    even = 2 * MOSS_MEL.hop_size
    return [
        log_mel(torch.from_numpy(np.pad(wave, (0, -len(wave) % even))), MOSS_MEL) for wave in waves
    ]


@torch.inference_mode()
def copies(mels: Sequence[Tensor], codec: Path) -> list[Tensor]:
    """Mels through the codec's encoder and decoder"""
    fsq = load_fsq(codec)
    return [fsq.mel_of_codes(fsq.codes_of_mel(mel[None]))[0] for mel in mels]


def spoken(mels: Sequence[Tensor], config: EngineConfig) -> list[np.ndarray]:
    """Mels through the vocoder of a checkpoint, as streams of their whole mel"""
    device = torch.device("cpu")
    folder = pick_folder(
        config.vocoder_folder or config.checkpoint / "vocoder", config.vocoder, device
    )
    vocoder = make_vocoder(folder, device, (MOSS_MEL.hop_size,), 1)
    waves = []
    for mel in mels:
        stream = vocoder.open()
        stream.add(mel)
        waves.append(torch.cat(vocoder.flush_together([stream])).numpy())
    return waves


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.nano.copy_synthesis",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder that keeps the teacher's sentences"
    )
    parser.add_argument(
        "--checkpoint", type=Path, default=NANO_CHECKPOINT, help="folder with codec/ and vocoder/"
    )
    parser.add_argument("--vocoder", default="auto", help="as the program's option")
    parser.add_argument("--save", type=Path, help="also write the copies as WAV here")
    options = parser.parse_args()

    config = EngineConfig(checkpoint=options.checkpoint, vocoder=options.vocoder)
    recogniser, judges = Recogniser(), SoundJudges()
    for name, waves in kinds_of_copies(
        teacher_waves(HARVARD, options.work / "harvard"), config
    ).items():
        if options.save is not None:
            save_waves(options.save / name, waves)
        errors = judge(recogniser, waves, HARVARD, SAMPLE_RATE_HZ)
        sound = ", ".join(
            f"{k} {v:.2f}" for k, v in judges.figures(name, waves, SAMPLE_RATE_HZ).items()
        )
        print(f"{name}: word error rate {errors.word_error_rate:.1%}, {sound}", flush=True)


def kinds_of_copies(
    originals: Sequence[np.ndarray], config: EngineConfig
) -> dict[str, list[np.ndarray]]:
    """The teacher's waves, what the vocoder makes of their mels, and of mels after the codec"""
    mels = mels_of(originals)
    return {
        "teacher": list(originals),
        "true_mel": spoken(mels, config),
        "copy_synthesis": spoken(copies(mels, config.checkpoint / "codec"), config),
    }


def save_waves(folder: Path, waves: Sequence[np.ndarray]) -> None:
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    for k, wave in enumerate(waves):
        soundfile.write(folder / f"harvard-{k:02d}.wav", wave, SAMPLE_RATE_HZ, subtype="PCM_16")


if __name__ == "__main__":
    main()
