"""Tiny networks with random weights in the layout of the published MOSS-Speech and MOSS-Speech-Codec, for tests: every
file that the real ones have, with the same names inside, but small; what they say is noise.

python -m scripts.make_tiny_moss OUT     writes OUT/model, OUT/codec and, in the latter, the voice "tiny"
"""

from __future__ import annotations

import argparse
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from moss_engine.codec.flow_config import FlowConfig, flow_shapes
from moss_engine.codec.hift_config import HiftConfig, hift_shapes
from moss_engine.codec.moss_layout import CONFIG, FLOW_CHUNK, FLOW_WHOLE, HIFT
from moss_engine.codec.moss_load import VOICES_FOLDER
from moss_engine.codec.voice import SPEAKER_DIM, Voice, save_voice
from moss_engine.codec.whisper_config import codec_digest
from moss_engine.processor import PUBLISHED_SOSP
from scripts.make_tiny_checkpoint import NUM_CODES, write_language_model
from scripts.make_tiny_encoder import make_tiny_encoder

TINY_FLOW = FlowConfig(vocab_size=NUM_CODES + 16, width=32, num_heads=4, ffn_width=48, num_blocks=2, channels=24,
                       estimator_heads=3, head_dim=8, transformers=1, num_mid_blocks=1)
TINY_HIFT = HiftConfig(channels=16, pitch_channels=12)
VOICE = "tiny"
VOICE_CODES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    out = parser.parse_args().out
    make_tiny_moss(out)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: model and codec with random weights, {size / 1000:.0f} kB")


def make_tiny_moss(out: Path, seed: int = 0) -> None:
    """Write OUT/model and OUT/codec; existing files of the same names are replaced."""
    write_language_model(out / "model")
    for name in ("processor_config.json", "generation_config.json"):  # files that only this program's checkpoints have
        (out / "model" / name).unlink()
    tokenizer = out / "model" / "tokenizer.json"  # the token by which a published checkpoint is told
    tokenizer.write_text(tokenizer.read_text(encoding="utf-8").replace("<|sosp|>", PUBLISHED_SOSP), encoding="utf-8")
    make_tiny_codec_folder(out / "codec", seed)


def make_tiny_codec_folder(folder: Path, seed: int = 0, flow: FlowConfig = TINY_FLOW, hift: HiftConfig = TINY_HIFT, *,
                           old_spelling: bool = False) -> None:
    """Write a codec folder with one voice; `old_spelling` of HiFT's weight norm is that of older PyTorch."""
    make_tiny_encoder(folder, seed, NUM_CODES)
    (folder / CONFIG).write_text(config_yaml(flow, hift), encoding="utf-8")
    torch.save(random_flow(flow, seed), folder / FLOW_WHOLE)
    torch.save(random_flow(flow, seed + 1) | {"epoch": 7, "step": 1000}, folder / FLOW_CHUNK)
    torch.save(with_weight_norm(random_hift(hift, seed), old_spelling=old_spelling), folder / HIFT)
    random = np.random.RandomState(seed)
    mel = torch.from_numpy(random.standard_normal((80, 4 * VOICE_CODES)).astype(np.float32)) * 2 - 5
    speaker = torch.from_numpy(random.standard_normal(SPEAKER_DIM).astype(np.float32))
    voice = Voice(VOICE, tuple(random.randint(0, NUM_CODES, VOICE_CODES).tolist()), mel, speaker)
    save_voice(folder / VOICES_FOLDER, voice, codec_digest(folder))


def random_flow(config: FlowConfig, seed: int = 0) -> dict[str, Tensor]:
    """Float32 tensors by the published names; the same on every machine. What they make of codes is a log-mel."""
    tensors = {name: _random(name, shape, seed) for name, shape in flow_shapes(config).items()}
    for name, tensor in tensors.items():
        if name.endswith(("norm1.weight", "norm3.weight", "norm.weight", "norm_mha.weight", "norm_ff.weight",
                          ".block.2.weight", "embed.out.1.weight")):
            tensor += 1
    return tensors


def random_hift(config: HiftConfig, seed: int = 0) -> dict[str, Tensor]:
    """Float32 tensors by the published names, weight norm folded; the pitch of a log-mel is that of a voice."""
    tensors = {name: _random(name, shape, seed) for name, shape in hift_shapes(config).items()}
    for name, tensor in tensors.items():
        if name.endswith("alpha"):
            tensor.abs_().add_(0.5)
        elif name.endswith("weight") and name.startswith(("resblocks", "source_resblocks", "conv_post")):
            tensor *= 0.3
    tensors["conv_pre.weight"] *= 0.2
    tensors["f0_predictor.classifier.weight"] *= 30
    tensors["f0_predictor.classifier.bias"][:] = 150
    return tensors


def with_weight_norm(tensors: dict[str, Tensor], *, old_spelling: bool) -> dict[str, Tensor]:
    """A state dict of a HiFT in its training form: most weights as length and direction."""
    ends = (".weight_g", ".weight_v") if old_spelling else (
        ".parametrizations.weight.original0", ".parametrizations.weight.original1")  # fmt: skip
    split: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(".weight") and tensor.dim() == 3 and not name.startswith("source_downs"):
            length = tensor.square().sum((1, 2), keepdim=True).sqrt()
            split |= {name.removesuffix(".weight") + end: part
                      for end, part in zip(ends, (length, tensor * 1.7), strict=True)}
        else:
            split[name] = tensor
    return split


def config_yaml(flow: FlowConfig, hift: HiftConfig) -> str:
    """`flow/config.yaml` in the form of the published one, which names the classes that another program builds."""
    return _YAML.format(flow=flow, hift=hift, lists={
        name: str([list(value) if isinstance(value, tuple) else value for value in getattr(hift, name)])
        for name in ("upsample_rates", "upsample_kernels", "kernels", "dilations", "source_kernels",
                     "source_dilations")})  # fmt: skip


def _random(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    values = np.random.RandomState((zlib.crc32(name.encode()) + seed) % 2**32).standard_normal(shape)
    scale = 0.1 if len(shape) == 1 else 1.0 if name == "input_embedding.weight" else math.prod(shape[1:]) ** -0.5
    return torch.from_numpy((scale * values).astype(np.float32))


_YAML = """\
__set_seed1: !apply:random.seed [1986]
sample_rate: {hift.sample_rate_hz}
token_frame_rate: {flow.code_rate_hz}
token_mel_ratio: {flow.ratio}
spk_embed_dim: {flow.speaker_dim}
chunk_size: 5

flow: !new:cosyvoice.flow.flow.CausalMaskedDiffWithXvec
  input_size: {flow.width}
  output_size: {flow.num_mels}
  spk_embed_dim: !ref <spk_embed_dim>
  output_type: mel
  vocab_size: {flow.vocab_size}
  input_frame_rate: !ref <token_frame_rate>
  only_mask_loss: true
  token_mel_ratio: !ref <token_mel_ratio>
  pre_lookahead_len: {flow.look_ahead}
  encoder: !new:cosyvoice.transformer.upsample_encoder.UpsampleConformerEncoder
    output_size: {flow.width}
    attention_heads: {flow.num_heads}
    linear_units: {flow.ffn_width}
    num_blocks: {flow.num_blocks}
    normalize_before: true
    input_layer: linear
    pos_enc_layer_type: rel_pos_espnet
    selfattention_layer_type: rel_selfattn
    input_size: {flow.width}
    upsample_stride: {flow.ratio}
    use_cnn_module: false
    macaron_style: false
    static_chunk_size: !ref <chunk_size>
  decoder: !new:cosyvoice.flow.flow_matching.CausalConditionalCFM
    in_channels: 240
    n_spks: 1
    spk_emb_dim: 80
    cfm_params: !new:omegaconf.DictConfig
      content:
        sigma_min: 1e-06
        solver: euler
        t_scheduler: cosine
        training_cfg_rate: 0.2
        inference_cfg_rate: {flow.guidance}
        reg_loss_type: l1
    estimator: !new:cosyvoice.flow.decoder.CausalConditionalDecoder
      in_channels: {flow.input_channels}
      out_channels: {flow.num_mels}
      channels: [{flow.channels}]
      dropout: 0.0
      attention_head_dim: {flow.head_dim}
      n_blocks: {flow.transformers}
      num_mid_blocks: {flow.num_mid_blocks}
      num_heads: {flow.estimator_heads}
      act_fn: gelu
      static_chunk_size: !ref <chunk_size> * <token_mel_ratio>

hift: !new:cosyvoice.hifigan.generator.HiFTGenerator
  in_channels: {hift.num_mels}
  base_channels: {hift.channels}
  nb_harmonics: {hift.num_harmonics}
  sampling_rate: !ref <sample_rate>
  nsf_alpha: {hift.sine_amplitude}
  nsf_sigma: {hift.noise_amplitude}
  nsf_voiced_threshold: {hift.voiced_hz}
  upsample_rates: {lists[upsample_rates]}
  upsample_kernel_sizes: {lists[upsample_kernels]}
  istft_params:
    n_fft: {hift.n_fft}
    hop_len: {hift.hop}
  resblock_kernel_sizes: {lists[kernels]}
  resblock_dilation_sizes: {lists[dilations]}
  source_resblock_kernel_sizes: {lists[source_kernels]}
  source_resblock_dilation_sizes: {lists[source_dilations]}
  lrelu_slope: {hift.slope}
  audio_limit: {hift.limit}
  f0_predictor: !new:cosyvoice.hifigan.f0_predictor.ConvRNNF0Predictor
    num_class: 1
    in_channels: {hift.num_mels}
    cond_channels: {hift.pitch_channels}
"""


if __name__ == "__main__":
    main()
