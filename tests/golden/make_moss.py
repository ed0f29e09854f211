"""Golden mels and a golden wave of the published codec's decoder, made by its authors' own code on random weights.

python -m tests.golden.make_moss MOSS_SPEECH MATCHA_TTS

MOSS_SPEECH is a clone of github.com/OpenMOSS/MOSS-Speech (6b86ef6), MATCHA_TTS one of
github.com/shivammehta25/Matcha-TTS (108906c); they need diffusers 0.35, einops, omegaconf and the conformer package.
Both run in float64, so that what is stored is exact; weights are those of `scripts.make_tiny_moss`, at the sizes below.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moss_engine.codec.flow_config import FlowConfig
from moss_engine.codec.hift import source_noise
from moss_engine.codec.hift_config import HiftConfig
from scripts.make_tiny_moss import random_flow, random_hift, with_weight_norm

PATH = Path(__file__).parent / "moss.npz"
FLOW = FlowConfig(vocab_size=80, width=32, num_heads=4, ffn_width=48, num_blocks=2, channels=24, estimator_heads=3,
                  head_dim=8, transformers=2, num_mid_blocks=2, speaker_dim=12)
HIFT = HiftConfig(channels=32, pitch_channels=24)
SEED = 5
CHUNK_CODES = 5
HIFT_FRAMES = 16


def prompt() -> tuple[list[int], Tensor, Tensor]:
    """Codes [10], mel [80, 40] and speaker [12] of a voice."""
    random = np.random.RandomState(SEED)
    mel = torch.from_numpy(random.standard_normal((FLOW.num_mels, 40))) * 2 - 5
    return random.randint(0, 64, 10).tolist(), mel, torch.from_numpy(random.standard_normal(FLOW.speaker_dim))


def reply() -> list[int]:
    return np.random.RandomState(SEED + 1).randint(0, 64, 13).tolist()


def hift_mel() -> Tensor:
    """[80, 16] that changes slowly enough to have a pitch."""
    corners = np.random.RandomState(SEED + 2).standard_normal((1, FLOW.num_mels, 5)) * 2 - 5
    return torch.nn.functional.interpolate(torch.from_numpy(corners), size=HIFT_FRAMES, mode="linear")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("moss_speech", type=Path)
    parser.add_argument("matcha_tts", type=Path)
    args = parser.parse_args()
    _prepare_imports(args.moss_speech, args.matcha_tts)
    flow = _flow()
    codes = reply()
    np.savez_compressed(
        PATH, whole=_mel(flow, codes, streaming=False, finalize=True),
        chunked=_mel(flow, codes, streaming=True, finalize=True),
        first=_mel(flow, codes[: CHUNK_CODES + FLOW.look_ahead], streaming=True, finalize=False), wave=_wave(),
    )  # fmt: skip
    print(f"{PATH}: {PATH.stat().st_size} bytes")


def _prepare_imports(moss_speech: Path, matcha_tts: Path) -> None:
    """Let both clones be imported without the training code and language models that they also import."""
    sys.path.insert(0, str(moss_speech))

    def package(name: str, path: Path | None = None, **values: Any) -> None:
        module = types.ModuleType(name)
        module.__path__ = [] if path is None else [str(path)]
        vars(module).update(values)
        sys.modules[name] = module

    package("matcha", matcha_tts / "matcha")
    package("matcha.utils", matcha_tts / "matcha" / "utils")
    package("matcha.utils.pylogger", get_pylogger=logging.getLogger)
    package("cosyvoice.llm")
    package("cosyvoice.llm.llm", TransformerLM=object, Qwen2LM=object)
    package("cosyvoice.cli")
    package("cosyvoice.cli.model", CosyVoiceModel=object, CosyVoice2Model=object)
    common = __import__("cosyvoice.utils.common", fromlist=["mask_to_bias"])
    common.mask_to_bias = lambda mask, dtype: (1.0 - mask.to(dtype)) * -1e10  # theirs refuses float64


def _flow() -> Any:
    from cosyvoice.flow.decoder import CausalConditionalDecoder
    from cosyvoice.flow.flow import CausalMaskedDiffWithXvec
    from cosyvoice.flow.flow_matching import CausalConditionalCFM
    from cosyvoice.transformer.upsample_encoder import PreLookaheadLayer, Upsample1D, UpsampleConformerEncoder

    settings = types.SimpleNamespace(sigma_min=1e-6, solver="euler", t_scheduler="cosine", training_cfg_rate=0.2,
                                     inference_cfg_rate=FLOW.guidance, reg_loss_type="l1")
    estimator = CausalConditionalDecoder(
        in_channels=FLOW.input_channels, out_channels=FLOW.num_mels, channels=[FLOW.channels], dropout=0.0,
        attention_head_dim=FLOW.head_dim, n_blocks=FLOW.transformers, num_mid_blocks=FLOW.num_mid_blocks,
        num_heads=FLOW.estimator_heads, act_fn="gelu", static_chunk_size=CHUNK_CODES * FLOW.ratio,
        num_decoding_left_chunks=-1)
    encoder = UpsampleConformerEncoder(
        output_size=FLOW.width, attention_heads=FLOW.num_heads, linear_units=FLOW.ffn_width,
        num_blocks=FLOW.num_blocks, normalize_before=True, input_layer="linear", pos_enc_layer_type="rel_pos_espnet",
        selfattention_layer_type="rel_selfattn", input_size=FLOW.width, upsample_stride=FLOW.ratio,
        use_cnn_module=False, macaron_style=False, static_chunk_size=CHUNK_CODES)
    # both are made for 512 channels, whatever the width
    encoder.pre_lookahead_layer = PreLookaheadLayer(FLOW.width, FLOW.look_ahead)
    encoder.up_layer = Upsample1D(FLOW.width, FLOW.width, FLOW.ratio)
    flow = CausalMaskedDiffWithXvec(
        input_size=FLOW.width, output_size=FLOW.num_mels, spk_embed_dim=FLOW.speaker_dim, vocab_size=FLOW.vocab_size,
        input_frame_rate=FLOW.code_rate_hz, token_mel_ratio=FLOW.ratio, pre_lookahead_len=FLOW.look_ahead,
        encoder=encoder, decoder=CausalConditionalCFM(in_channels=240, cfm_params=settings, n_spks=1, spk_emb_dim=80,
                                                      estimator=estimator))
    flow.load_state_dict(random_flow(FLOW, SEED))
    flow = flow.double().eval()
    flow.decoder.rand_noise = flow.decoder.rand_noise.double()
    return flow


def _mel(flow: Any, codes: list[int], *, streaming: bool, finalize: bool) -> np.ndarray:
    """float32 [mels, frames]"""
    prompt_codes, mel, speaker = prompt()

    def length(values: Any) -> Tensor:
        return torch.tensor([len(values)])

    result, _ = flow.inference(
        token=torch.tensor([codes]), token_len=length(codes), prompt_token=torch.tensor([prompt_codes]),
        prompt_token_len=length(prompt_codes), prompt_feat=mel.t()[None], prompt_feat_len=length(mel.t()),
        embedding=speaker[None], streaming=streaming, finalize=finalize)
    return result[0].numpy()


def _wave() -> np.ndarray:
    """float32 [samples], with this program's noise in place of random numbers."""
    from cosyvoice.hifigan.f0_predictor import ConvRNNF0Predictor
    from cosyvoice.hifigan.generator import HiFTGenerator

    names = {"channels": "base_channels", "num_mels": "in_channels", "num_harmonics": "nb_harmonics",
             "sample_rate_hz": "sampling_rate", "sine_amplitude": "nsf_alpha", "noise_amplitude": "nsf_sigma",
             "voiced_hz": "nsf_voiced_threshold", "upsample_rates": "upsample_rates",
             "upsample_kernels": "upsample_kernel_sizes", "kernels": "resblock_kernel_sizes",
             "dilations": "resblock_dilation_sizes", "source_kernels": "source_resblock_kernel_sizes",
             "source_dilations": "source_resblock_dilation_sizes", "slope": "lrelu_slope", "limit": "audio_limit"}
    values = dataclasses.asdict(HIFT)
    settings = {theirs: _listed(values[ours]) for ours, theirs in names.items()}
    hift = HiFTGenerator(**settings, istft_params={"n_fft": HIFT.n_fft, "hop_len": HIFT.hop},
                         f0_predictor=ConvRNNF0Predictor(1, HIFT.num_mels, HIFT.pitch_channels))
    hift.load_state_dict(with_weight_norm(random_hift(HIFT, SEED), old_spelling=False))
    noise = source_noise(HIFT).double()

    def like(values: Tensor) -> Tensor:
        return noise[None, : values.shape[1]] if values.shape[-1] == noise.shape[1] else torch.zeros_like(values)

    drawn, torch.randn_like = torch.randn_like, like
    try:
        wave, _ = hift.double().eval().inference(hift_mel()[None])
    finally:
        torch.randn_like = drawn
    return wave[0].float().numpy()


def _listed(value: Any) -> Any:
    return [_listed(inner) for inner in value] if isinstance(value, tuple) else value


if __name__ == "__main__":
    main()
