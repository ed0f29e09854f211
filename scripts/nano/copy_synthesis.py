"""How intelligible codec and vocoder alone are: teacher wave -> codes -> mel -> BigVGAN -> recogniser.

    python -m scripts.nano.copy_synthesis --work DIR [--checkpoint FOLDER] [--save FOLDER]

Prints the word error rates of the teacher's own wave and of its copy over 20 Harvard sentences. Without --checkpoint
the parts in DIR/codec and DIR/vocoder are judged.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from moss_engine.codec.mel import log_mel
from moss_engine.codec.store import load_fsq, load_vocoder
from scripts.nano.judge import Recogniser, judge
from scripts.nano.sentences import HARVARD
from scripts.nano.speech import SAMPLE_RATE_HZ


def teacher_waves(sentences: Sequence[str], cache: Path) -> list[np.ndarray]:
    """The sentences as the teacher says them, float32; kept in `cache` as 16-bit WAV."""
    import soundfile

    from scripts.nano.teacher import Teacher

    cache.mkdir(parents=True, exist_ok=True)
    paths = [cache / f"harvard-{k:02d}.wav" for k in range(len(sentences))]
    if not all(path.exists() for path in paths):
        teacher = Teacher()
        for k, (path, sentence) in enumerate(zip(paths, sentences, strict=True)):
            pcm, _ = teacher.say(sentence, speed=1.0, seed=k)
            soundfile.write(path, pcm, SAMPLE_RATE_HZ, subtype="PCM_16")
    return [soundfile.read(path, dtype="float32")[0] for path in paths]


@torch.inference_mode()
def copies(waves: Sequence[np.ndarray], folder: Path, device: torch.device) -> list[np.ndarray]:
    """Waves through the encoder, decoder and vocoder in `folder`, each as a whole."""
    fsq = load_fsq(folder / "codec", device)
    vocoder, _ = load_vocoder(folder / "vocoder", device)
    per_code = fsq.config.samples_per_code
    made = []
    for wave in waves:
        filled = np.pad(wave, (0, -len(wave) % per_code))
        mel = log_mel(torch.from_numpy(filled)[None].to(device), fsq.config.mel)
        made.append(vocoder(fsq.mel_of_codes(fsq.codes_of_mel(mel)))[0, 0].float().cpu().numpy())
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, help="folder with codec/ and vocoder/; absent: the work folder")
    parser.add_argument("--save", type=Path, help="also write the copies as WAV here")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    originals = teacher_waves(HARVARD, options.work / "harvard")
    copied = copies(originals, options.checkpoint or options.work, torch.device(options.device))
    if options.save is not None:
        import soundfile

        options.save.mkdir(parents=True, exist_ok=True)
        for k, wave in enumerate(copied):
            soundfile.write(options.save / f"harvard-{k:02d}.wav", wave, SAMPLE_RATE_HZ, subtype="PCM_16")
    recogniser = Recogniser()
    for name, waves in (("teacher", originals), ("copy synthesis", copied)):
        errors = judge(recogniser, waves, HARVARD, SAMPLE_RATE_HZ)
        print(
            f"{name}: word error rate {errors.word_error_rate:.1%} ({errors.word_edits} of {errors.num_words} words), "
            f"character error rate {errors.char_error_rate:.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
