"""Train a BigVGAN on the teacher's speech: first reconstruction, then adversarial.

python -m scripts.nano.train_vocoder --work DIR [--seconds 840 --call-seconds 420] [--preset nano|large]

Reads DIR/speech and DIR/codec; keeps its state in DIR/vocoder.pt and writes DIR/vocoder/ at every save (with the preset
`large`: DIR/vocoder_large.pt and DIR/vocoder_large/). The inputs are partly true mels, partly mels decoded from codes.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from torch import Tensor

from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.mel import log_mel
from moss_engine.codec.store import load_fsq, load_vocoder
from scripts.nano.cuda_step import Step
from scripts.nano.features import SpeechStream, load_speech, mel_crops, random_starts
from scripts.nano.speech import wait_for_speech
from scripts.nano.training import Clock, load_state, pick_device, save_state
from scripts.nano.vocoder_trainer import EDGE_FRAMES, HOP, PEAK_RATES, PRESETS, Trainer

SAVE_EVERY_S = 60.0
REPORT_EVERY_STEPS = 500


def rate_at(progress: float, stage_a: float, peak: float) -> float:
    """Stage a: a short rise, then constant; stage b: a cosine from 0.6 of the peak down to 0.05 of it."""
    if progress < stage_a:
        return peak * min(1.0, 0.02 + progress / (0.1 * stage_a))
    fall = (progress - stage_a) / (1 - stage_a)
    return peak * (0.05 + 0.55 * (1 + math.cos(math.pi * fall)) / 2)


def main() -> None:
    args = _parse()
    device = pick_device(args.device)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    name = "vocoder" if args.preset == "nano" else f"vocoder_{args.preset}"
    args.peak_rate = args.peak_rate or PEAK_RATES[args.preset]
    trainer = Trainer(args.preset, args.batch, args.crop_frames, device)
    state = load_state(args.work / f"{name}.pt", device)
    if state is not None and state.get("peak_rate", PEAK_RATES["nano"]) != args.peak_rate:
        print(f"{name}: the saved state was trained at another rate; starting anew", flush=True)
        state = None
    step, spent_s = 0, 0.0
    if state is not None:
        trainer.load(state)
        step, spent_s = state["step"], state["spent_s"]
        torch.manual_seed(args.seed + step)
    clock = Clock(args.seconds, args.call_seconds, spent_s)
    wait_for_speech(args.work, args.hours)
    train, held = load_speech(args.work, device, args.hours)
    print(
        f"{name}: {sum(p.numel() for p in trainer.generator.parameters()) / 1e6:.2f} M parameters, "
        f"{train.num_frames / 180_000:.2f} h of speech, from step {step}",
        flush=True,
    )
    step = _train(args, name, trainer, train, clock, step)
    print(f"{name}: {step} steps in {clock.spent_s:.0f} s", flush=True)
    _report_export(args.work, name, held, device)


def _train(args: argparse.Namespace, name: str, trainer: Trainer, train: SpeechStream, clock: Clock, step: int) -> int:
    saved_at, decoded, stage, run = time.monotonic(), None, "", None
    while clock.running and step < args.max_steps:
        if stage != (new_stage := "a" if clock.progress < args.stage_a else "b"):
            stage = new_stage
            decoded = _decoded(args.work, train, trainer.device, required=stage == "b")
            run = Step(trainer.reconstruct if stage == "a" else trainer.compete, trainer.device, args.capture)
        assert run is not None
        trainer.set_rates(rate_at(clock.progress, args.stage_a, args.peak_rate))
        _fill_batch(trainer, train, decoded, args.true_share)
        run()
        step += 1
        if step % 20 == 0 and trainer.device.type == "cuda":
            torch.cuda.synchronize()  # keeps the host's clock honest
        clock.tick()
        if step % REPORT_EVERY_STEPS == 0:
            mel, stft, adversarial, critic = trainer.figures.tolist()
            print(
                f"{name} {stage} step {step} at {clock.spent_s:.0f} s: mel {mel:.4f}, STFT {stft:.4f}, "
                f"adversarial {adversarial:.3f}, discriminators {critic:.3f}",
                flush=True,
            )
            if not math.isfinite(mel + stft + adversarial + critic):
                raise SystemExit(f"{name} diverged at step {step}; the last saved state is kept.")
        if time.monotonic() - saved_at > SAVE_EVERY_S:
            _save(args, name, trainer, step, clock.spent_s)
            saved_at = time.monotonic()
    _save(args, name, trainer, step, clock.spent_s)
    return step


def _fill_batch(trainer: Trainer, train: SpeechStream, decoded: Tensor | None, true_share: float) -> None:
    """Random crops into the static batch; about `true_share` of them with the true mel."""
    batch, frames = len(trainer.wave), trainer.crop_frames + 2 * EDGE_FRAMES
    starts = random_starts(train.num_frames, frames, batch, trainer.device)
    mel = mel_crops(train.mel, starts, frames)
    if decoded is not None:
        is_true = torch.rand(batch, 1, 1, device=trainer.device) < true_share
        mel = torch.where(is_true, mel, mel_crops(decoded, starts, frames))
    trainer.mel.copy_(mel)
    samples = (starts[:, None] + EDGE_FRAMES) * HOP + torch.arange(trainer.wave.shape[-1], device=trainer.device)
    trainer.wave.copy_(train.pcm[samples][:, None].float() / 32768)


@torch.no_grad()
def _decoded(work: Path, stream: SpeechStream, device: torch.device, *, required: bool) -> Tensor | None:
    """float16 [frames, num_mels]: the stream's mel after the codec, or None without a codec unless one is required."""
    folder = work / "codec"
    if not (folder / "config.json").exists():
        if required:
            raise SystemExit(f"{folder} is missing; run scripts.nano.train_codec first.")
        return None
    fsq = load_fsq(folder, device)
    decoded = torch.empty_like(stream.mel)
    chunk = 6000
    for start in range(0, stream.num_frames, chunk):
        first = max(0, start - 200)  # context for the networks' first frames
        mel = stream.mel[first : start + chunk + 200].float()
        mel = mel[: len(mel) // 2 * 2].t()[None]
        result = fsq.mel_of_codes(fsq.codes_of_mel(mel))[0].t()[start - first :][:chunk]
        decoded[start : start + len(result)] = result
    return decoded


def _save(args: argparse.Namespace, name: str, trainer: Trainer, step: int, spent_s: float) -> None:
    progress = {"step": step, "spent_s": spent_s, "peak_rate": args.peak_rate}
    save_state(args.work / f"{name}.pt", {**trainer.state(), **progress})
    trainer.export(args.work / name)


@torch.inference_mode()
def _report_export(work: Path, name: str, held: SpeechStream, device: torch.device) -> None:
    """Mel L1 in nats of the exported files on held-out speech, from true and from decoded mels."""
    generator, _ = load_vocoder(work / name, device)
    frames = min(500, held.num_frames // 2 * 2)
    target = held.mel[:frames].t()[None].float()
    decoded = _decoded(work, held, device, required=False)
    inputs = {"true": target} | ({} if decoded is None else {"decoded": decoded[:frames].t()[None].float()})
    for kind, mel in inputs.items():
        wave = generator(mel)[:, 0]
        distance = (log_mel(wave, MOSS_MEL) - target).abs().mean().item()
        peak = wave.abs().max().item()
        print(f"{name} exported: held-out mel L1 {distance:.4f} from {kind} mels, peak {peak:.2f}", flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="work folder that holds speech/ and codec/")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="nano")
    parser.add_argument(
        "--seconds",
        type=float,
        help="length of the whole training, over all calls (default: what --call-seconds leaves of this call)",
    )
    parser.add_argument("--call-seconds", type=float, help="end this call after so long; the next one goes on")
    parser.add_argument("--stage-a", type=float, default=0.25, help="share of the training without discriminators")
    parser.add_argument("--true-share", type=float, default=0.3, help="share of crops with the true mel")
    parser.add_argument("--hours", type=float, default=10.0, help="speech to wait for, and to use")
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--crop-frames", type=int, default=30)
    parser.add_argument("--peak-rate", type=float, help=f"default: {PEAK_RATES}; a state of another rate is left")
    parser.add_argument("--max-steps", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--capture", action=argparse.BooleanOptionalAction, default=True, help="use CUDA graphs")
    args = parser.parse_args()
    if args.seconds is None and args.call_seconds is None:
        parser.error("give --seconds, --call-seconds or both")
    return args


if __name__ == "__main__":
    main()
