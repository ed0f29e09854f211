"""Train a BigVGAN on the teacher's speech: first reconstruction, then adversarial.

python -m scripts.nano.train_vocoder --work DIR [--seconds 840 --call-seconds 420] [--preset nano|large]

Reads DIR/speech and DIR/codec; keeps its state in DIR/vocoder.pt and writes DIR/vocoder/ at every save (with the preset
`large`: DIR/vocoder_large.pt and DIR/vocoder_large/). The inputs are partly true mels, partly mels decoded from codes.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.bigvgan import build_generator, import_bigvgan_module
from moss_engine.codec.mel import log_mel
from moss_engine.codec.store import load_fsq, load_vocoder, save_vocoder
from scripts.nano.cuda_step import Step
from scripts.nano.features import SpeechStream, load_speech, mel_crops, random_starts
from scripts.nano.polyphase import use_polyphase
from scripts.nano.speech import wait_for_speech
from scripts.nano.training import Clock, load_state, pick_device, save_state
from scripts.nano.vocoder_losses import (
    adversarial_loss,
    discriminator_loss,
    feature_distance,
    mel_distance,
    stft_distance,
)

MEL_FIELDS = {
    "sampling_rate": 24_000, "n_fft": 1920, "win_size": 1920, "hop_size": 480, "num_mels": 80, "fmin": 0, "fmax": 8000,
}  # fmt: skip
COMMON = {
    "activation": "snakebeta", "snake_logscale": True, "use_tanh_at_final": False, "use_bias_at_final": False,
    **MEL_FIELDS,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "nano": {
        "resblock": "2", "upsample_rates": [5, 4, 4, 6], "upsample_kernel_sizes": [15, 8, 8, 12],
        "upsample_initial_channel": 384, "resblock_kernel_sizes": [3, 7], "resblock_dilation_sizes": [[1, 3], [1, 3]],
        **COMMON,
    },
    "large": {
        "resblock": "1", "upsample_rates": [5, 4, 4, 3, 2], "upsample_kernel_sizes": [15, 8, 8, 9, 4],
        "upsample_initial_channel": 512, "resblock_kernel_sizes": [3, 7, 11],
        "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]], **COMMON,
    },
}  # fmt: skip
PEAK_RATES = {"nano": 5e-4, "large": 1.5e-4}
DISCRIMINATORS = {
    "discriminator_channel_mult": 0.25, "mrd_channel_mult": 0.5, "use_spectral_norm": False,
    "mpd_reshapes": [2, 3, 5, 7, 11], "resolutions": [[1024, 120, 600], [2048, 240, 1200], [512, 50, 240]],
}  # fmt: skip
HOP = MOSS_MEL.hop_size
EDGE_FRAMES = 4
"""Frames at both ends of a crop that only give context: their output misses the neighbours that it would have had."""
BETAS = (0.8, 0.99)
MAX_GRADIENT = 300.0
MEL_WEIGHT, FEATURE_WEIGHT, EXCESS_WEIGHT = 45.0, 2.0, 100.0
EMA = 0.999
SAVE_EVERY_S = 60.0
REPORT_EVERY_STEPS = 500


class Trainer:
    """Networks, optimisers, the static batch, and one step of either stage over it."""

    def __init__(self, preset: str, batch: int, crop_frames: int, device: torch.device) -> None:
        self.config, self.device, self.crop_frames = PRESETS[preset], device, crop_frames
        self.generator = build_generator(self.config, weight_norm=True).to(device)
        use_polyphase(self.generator, compiled=device.type == "cuda")
        self.generator.get_submodule("conv_post").register_forward_hook(self._keep_excess)
        self._excess = torch.zeros((), device=device)
        self.critics = _critics().to(device)
        self.average = [p.detach().clone() for p in self.generator.parameters()]
        self.generator_optimizer = _adam(self.generator, device)
        self.critic_optimizer = _adam(self.critics, device)
        self.mel = torch.zeros(batch, MOSS_MEL.num_mels, crop_frames + 2 * EDGE_FRAMES, device=device)
        self.wave = torch.zeros(batch, 1, crop_frames * HOP, device=device)
        self.figures = torch.zeros(4, device=device)  # mel L1, STFT distance, adversarial, discriminator
        self.choose_layout()

    def choose_layout(self) -> None:
        """On a GPU, give the discriminators the memory layout in which they run faster there."""
        if self.device.type != "cuda":
            return
        took_s = {layout: self._time_critics(layout) for layout in (torch.contiguous_format, torch.channels_last)}
        best = min(took_s, key=took_s.__getitem__)
        _to_layout(self.critics, best)
        print("discriminators:", {str(k): f"{1000 * v:.1f} ms" for k, v in took_s.items()}, "->", best, flush=True)

    def _time_critics(self, layout: torch.memory_format) -> float:
        _to_layout(self.critics, layout)
        began = 0.0
        for repeat in range(6):
            if repeat == 3:
                torch.cuda.synchronize()
                began = time.perf_counter()
            with self._low_precision():
                judged = [critic(self.wave, self.wave) for critic in self.critics]
            torch.stack([discriminator_loss(real, fake) for real, fake, _, _ in judged]).sum().backward()
        torch.cuda.synchronize()
        self.critic_optimizer.zero_grad(set_to_none=True)
        return (time.perf_counter() - began) / 3

    def set_rates(self, rate: float) -> None:
        for optimizer in (self.generator_optimizer, self.critic_optimizer):
            for group in optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate

    def reconstruct(self) -> None:
        """Stage a: spectral losses alone."""
        fake = self._generate()
        mel, stft = mel_distance(fake[:, 0], self.wave[:, 0], MOSS_MEL), stft_distance(fake[:, 0], self.wave[:, 0])
        self._update_generator(MEL_WEIGHT * mel + stft)
        self.figures.copy_(torch.stack([mel.detach(), stft.detach(), mel.new_zeros(()), mel.new_zeros(())]))

    def compete(self) -> None:
        """Stage b: the discriminators learn, then the generator against them."""
        fake = self._generate()
        self.critics.requires_grad_(True)
        self.critic_optimizer.zero_grad(set_to_none=True)
        with self._low_precision():
            judged = [critic(self.wave, fake.detach()) for critic in self.critics]
        critic_loss = torch.stack([discriminator_loss(real, faked) for real, faked, _, _ in judged]).sum()
        critic_loss.backward()
        nn.utils.clip_grad_norm_(self.critics.parameters(), MAX_GRADIENT)
        self.critic_optimizer.step()

        self.critics.requires_grad_(False)
        with self._low_precision():
            judged = [critic(self.wave, fake) for critic in self.critics]
        adversarial = torch.stack([adversarial_loss(faked) for _, faked, _, _ in judged]).sum()
        features = torch.stack([feature_distance(real, faked) for _, _, real, faked in judged]).sum()
        mel, stft = mel_distance(fake[:, 0], self.wave[:, 0], MOSS_MEL), stft_distance(fake[:, 0], self.wave[:, 0])
        self._update_generator(MEL_WEIGHT * mel + stft + adversarial + FEATURE_WEIGHT * features)
        self.figures.copy_(torch.stack([mel.detach(), stft.detach(), adversarial.detach(), critic_loss.detach()]))

    def _generate(self) -> Tensor:
        self.generator_optimizer.zero_grad(set_to_none=True)
        return self.generator(self.mel)[..., EDGE_FRAMES * HOP : -EDGE_FRAMES * HOP]

    def _keep_excess(self, _module: nn.Module, _inputs: object, output: Tensor) -> None:
        """The generator ends in a clamp, which has no gradient outside [-1, 1]; this loss leads back inside."""
        self._excess = (output.abs() - 1).clamp_min(0).mean()

    def _update_generator(self, loss: Tensor) -> None:
        (loss + EXCESS_WEIGHT * self._excess).backward()
        nn.utils.clip_grad_norm_(self.generator.parameters(), MAX_GRADIENT)
        self.generator_optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.average, list(self.generator.parameters()), 1 - EMA)

    def _low_precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda", cache_enabled=False)

    def state(self) -> dict[str, Any]:
        return {
            "generator": self.generator.state_dict(), "critics": self.critics.state_dict(), "average": self.average,
            "generator_optimizer": self.generator_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
        }  # fmt: skip

    def load(self, state: dict[str, Any]) -> None:
        self.generator.load_state_dict(state["generator"])
        self.critics.load_state_dict(state["critics"])
        self.average = [value.to(self.device) for value in state["average"]]
        for optimizer, name in ((self.generator_optimizer, "generator"), (self.critic_optimizer, "critic")):
            rates = [group["lr"] for group in optimizer.param_groups]
            optimizer.load_state_dict(state[f"{name}_optimizer"])
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def export(self, folder: Path) -> None:
        """Write the averaged generator without weight norm."""
        averaged = build_generator(self.config, weight_norm=True)
        averaged.load_state_dict(self.generator.state_dict())
        with torch.no_grad():
            for parameter, value in zip(averaged.parameters(), self.average, strict=True):
                parameter.copy_(value)
        with contextlib.redirect_stdout(None):
            averaged.remove_weight_norm()  # type: ignore[operator]
        save_vocoder(folder, self.config, averaged.state_dict())


def _to_layout(network: nn.Module, layout: torch.memory_format) -> None:
    network.to(memory_format=layout)  # type: ignore[call-overload]


def _critics() -> nn.ModuleList:
    package = import_bigvgan_module("discriminators")
    settings = import_bigvgan_module("env").AttrDict(DISCRIMINATORS)
    with contextlib.redirect_stdout(None), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.ModuleList(
            [package.MultiPeriodDiscriminator(settings), package.MultiResolutionDiscriminator(settings)]
        )


def _adam(network: nn.Module, device: torch.device) -> torch.optim.AdamW:
    on_gpu = device.type == "cuda"
    rate = torch.tensor(1e-4, device=device) if on_gpu else 1e-4
    return torch.optim.AdamW(
        network.parameters(), lr=rate, betas=BETAS, weight_decay=0.01, fused=on_gpu, capturable=on_gpu
    )


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
    parser.add_argument("--seconds", type=float, default=840.0, help="length of the whole training, over all calls")
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
    return parser.parse_args()


if __name__ == "__main__":
    main()
