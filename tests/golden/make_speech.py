"""Write what public packages make of a made-up sound, for the speech encoder and its front ends.

`python -m tests.golden.make_speech`, with transformers 4.57, torchaudio 2.11 and kaldi-native-fbank 1.23 installed
beside the program's own packages. Random weights are those of `scripts.make_tiny_encoder`. `--published` writes
nothing: it compares the encoder at its whole published size, for which a minute and 6 GB of memory are needed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.codec.whisper_config import WhisperVqConfig
from moss_engine.codec.whisper_vq import build_whisper_vq
from scripts.make_tiny_encoder import PUBLISHED_CONFIG, TINY_CONFIG, make_tensors

PATH = Path(__file__).with_name("speech.npz")
RATES_HZ = ((44_100, 16_000), (48_000, 16_000), (24_000, 16_000), (11_025, 16_000), (44_100, 24_000))
FEATURE_SAMPLES = 12_345
RESAMPLED_S = 0.1
WIDE_CONFIG = PUBLISHED_CONFIG | {"quantize_position": 2, "pooling_position": 2, "quantize_vocab_size": 64}
"""Every tensor has its published shape, but for the codebook; two of the layers."""
WIDE_FRAMES = 48


def sound(num_samples: int, rate_hz: int) -> np.ndarray:
    """float32 [n]: a rising tone with overtones, a pause, noise."""
    seconds = np.arange(num_samples) / rate_hz
    phase = 2 * np.pi * (120 * seconds + 90 * seconds**2)
    voiced = sum(np.sin(k * phase) / k for k in range(1, 20)) * (np.sin(9 * seconds) > 0)
    noise = np.random.RandomState(0).standard_normal(num_samples) * np.clip(seconds - 0.3, 0, 0.2)
    return (0.2 * voiced + 0.3 * noise).astype(np.float32)


def features(wave: np.ndarray) -> np.ndarray:
    """float32 [128, frames] by transformers."""
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(feature_size=128)
    found = extractor([wave], sampling_rate=16_000, padding="longest", pad_to_multiple_of=1280, return_tensors="np")
    return found["input_features"][0]


def resampled(wave: np.ndarray, from_hz: int, to_hz: int) -> np.ndarray:
    """float32 [samples] by torchaudio."""
    import torch
    import torchaudio

    return torchaudio.transforms.Resample(from_hz, to_hz)(torch.from_numpy(wave)).numpy()


def fbank(wave: np.ndarray) -> np.ndarray:
    """float32 [frames, 80] by kaldi-native-fbank, for samples in [-1, 1]."""
    import kaldi_native_fbank

    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.samp_freq = 16_000
    options.mel_opts.num_bins = 80
    computer = kaldi_native_fbank.OnlineFbank(options)
    computer.accept_waveform(16_000, wave.tolist())
    computer.input_finished()
    return np.stack([computer.get_frame(i) for i in range(computer.num_frames_ready)])


def encoder_points(mel: np.ndarray, values: dict[str, Any]) -> np.ndarray:
    """float32 [codes, dim]: layers of transformers' Whisper under a causal mask, between convolutions padded left."""
    import torch
    from torch.nn.functional import conv1d, gelu, pad
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoderLayer

    config = WhisperVqConfig.from_dict(values, source="random")
    tensors = {name.removeprefix("encoder."): tensor for name, tensor in make_tensors(config).items()}
    whisper: Any = WhisperConfig(**{k: v for k, v in values.items() if k != "architectures"})
    whisper._attn_implementation = "eager"
    x = torch.from_numpy(mel)[None]
    for name, stride in (("conv1", 1), ("conv2", 2)):
        x = gelu(conv1d(pad(x, (2, 0)), tensors[f"{name}.weight"], tensors[f"{name}.bias"], stride=stride))
    x = x.transpose(1, 2) + tensors["embed_positions.weight"][: x.shape[2]]
    mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)[None, None]
    for i in range(config.num_layers):
        layer = WhisperEncoderLayer(whisper).eval()
        prefix = f"layers.{i}."
        layer.load_state_dict({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        found = layer(x, mask, None)
        x = found[0] if isinstance(found, tuple) else found
    return torch.nn.functional.avg_pool1d(x.transpose(1, 2), 4)[0].T.detach().numpy()


def make() -> dict[str, np.ndarray]:
    wave = sound(FEATURE_SAMPLES, 16_000)
    mel = features(wave)
    golden = {"features": mel, "points": encoder_points(mel, TINY_CONFIG), "fbank": fbank(wave),
              "wide_points": encoder_points(mel[:, :WIDE_FRAMES], WIDE_CONFIG)}
    for from_hz, to_hz in RATES_HZ:
        golden[f"resampled_{from_hz}_{to_hz}"] = resampled(sound(round(from_hz * RESAMPLED_S), from_hz), from_hz, to_hz)
    return golden


def compare_published() -> None:
    """Print the largest relative difference of the encoder's points at the published size, and how codes compare."""
    import torch

    config = WhisperVqConfig.from_dict(PUBLISHED_CONFIG, source="random")
    wave = sound(32_000, 16_000)
    mel, tensors = features(wave), make_tensors(config)
    wanted = encoder_points(mel, PUBLISHED_CONFIG)
    encoder = build_whisper_vq(config, tensors)
    with torch.inference_mode():
        found = encoder.network.points(torch.from_numpy(mel)[None])[0].numpy()
    nearest = torch.cdist(torch.from_numpy(wanted), tensors["encoder.codebook.weight"]).argmin(1)
    same = np.mean(np.array(encoder.encode(wave, 16_000)) == nearest.numpy())
    print(f"points differ by {np.abs(found - wanted).max() / np.abs(wanted).max():.1e}; {same:.0%} of codes are equal")


if __name__ == "__main__":
    if "--published" in sys.argv:
        compare_published()
    else:
        np.savez_compressed(PATH, **make())
        print(f"{PATH.name}: {PATH.stat().st_size / 1000:.0f} kB")
