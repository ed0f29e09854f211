"""BigVGAN: built without its training libraries, streamed without a seam."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moss_engine.api.errors import CheckpointError, MissingPackageError
from moss_engine.codec.mel import LOG_FLOOR
from moss_engine.codec.vocoder import bigvgan
from moss_engine.codec.vocoder.bigvgan import (
    build_generator,
    fold_activations,
    import_bigvgan_module,
    mel_spec_of,
)
from moss_engine.codec.vocoder.make import load_vocoder
from moss_engine.codec.vocoder.stream import VocoderStream, WindowPlan, support_frames, whole_wave
from tests.fixtures.make_tiny_codec import TINY_VOCODER, make_tiny_codec

HOP = 480
SUPPORT = support_frames(TINY_VOCODER)


@pytest.fixture(scope="module")
def generator(tmp_path_factory) -> torch.nn.Module:
    folder = tmp_path_factory.mktemp("vocoder")
    make_tiny_codec(folder, seed=1, exact=True)
    return load_vocoder(folder / "vocoder")[0]


def speech_like_mel(frames: int, seed: int = 0) -> torch.Tensor:
    noise = torch.randn(80, frames, generator=torch.Generator().manual_seed(seed))
    return (noise.cumsum(1) * 0.5 - 5).clamp(LOG_FLOOR, 2)


def stream_in_pieces(
    generator, mel: torch.Tensor, lengths: list[int], plan: WindowPlan
) -> list[torch.Tensor]:
    stream = VocoderStream(generator, 80, HOP, plan, torch.device("cpu"))
    pieces = [stream.push(part) for part in mel.split(lengths, dim=1)]
    return [*pieces, stream.flush()]


@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=3),
)
def test_stream_in_any_pieces_equals_one_run(generator, lengths, chunks):
    mel = speech_like_mel(sum(lengths))
    plan = WindowPlan(tuple(chunks), SUPPORT, SUPPORT)
    pieces = stream_in_pieces(generator, mel, lengths, plan)
    wave = torch.cat(pieces)
    assert len(wave) == mel.shape[1] * HOP
    if len(wave):
        expected = whole_wave(generator, mel, SUPPORT)
        assert (wave - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_seams_are_as_smooth_as_the_rest(generator):
    mel, plan = speech_like_mel(40), WindowPlan((4, 6), SUPPORT, SUPPORT)
    pieces = stream_in_pieces(generator, mel, [40], plan)
    wave, expected = torch.cat(pieces).double(), whole_wave(generator, mel, SUPPORT).double()
    seams = [4 * HOP + 6 * HOP * i for i in range(6)]
    bend = torch.diff(wave, n=2)
    for seam in seams:
        at_seam = bend[seam - 3 : seam + 2].abs().max()
        around = bend[seam - HOP : seam + HOP].square().mean().sqrt()
        assert at_seam < 6 * around
        assert (wave - expected)[seam - 4 : seam + 4].abs().max() <= 1e-5 * expected.abs().max()


def test_a_click_would_be_seen(generator):
    """The context is what removes the seam: without it the join is far from the whole run."""
    mel = speech_like_mel(20)
    wave = torch.cat(stream_in_pieces(generator, mel, [20], WindowPlan((5,), 0, 0)))
    expected = whole_wave(generator, mel, SUPPORT)
    assert (wave - expected).abs().max() > 1e-2 * expected.abs().max()


def test_first_chunk_comes_as_soon_as_its_context_is_there(generator):
    stream = VocoderStream(generator, 80, HOP, WindowPlan((3, 8), SUPPORT, 4), torch.device("cpu"))
    sizes, missing = [], []
    for part in speech_like_mel(20).split(1, dim=1):
        missing.append(stream.missing_frames)
        sizes.append(len(stream.push(part)) // HOP)
    assert sizes == [0] * 6 + [3] + [0] * 7 + [8] + [0] * 5
    assert missing[:8] == [7, 6, 5, 4, 3, 2, 1, 8]
    assert len(stream.flush()) == 9 * HOP


def test_support_is_exact(generator):
    """A frame changes samples up to SUPPORT frames away from it, and none beyond."""
    frames, at = 4 * SUPPORT, 2 * SUPPORT
    mel = speech_like_mel(frames)
    changed = mel.clone()
    changed[:, at] += 3
    with torch.inference_mode():
        moved = (generator(mel[None]) - generator(changed[None]))[0, 0].view(
            frames, HOP
        ).abs().amax(1) > 0
    reached = moved.nonzero().flatten()
    assert at - SUPPORT <= reached.min() and reached.max() <= at + SUPPORT
    assert reached.min() < at and reached.max() > at


@pytest.mark.parametrize(
    ("rates", "kernels", "block", "block_kernels", "hop", "frames"),
    [
        ([4, 4, 2, 2, 2, 2], [8, 8, 4, 4, 4, 4], "1", [3, 7, 11], 256, 38),
        ([8, 8, 2, 2], [16, 16, 4, 4], "1", [3, 7, 11], 256, 18),
    ],
)
def test_support_of_the_published_configs(rates, kernels, block, block_kernels, hop, frames):
    config = {
        **TINY_VOCODER, "upsample_rates": rates, "upsample_kernel_sizes": kernels,
        "resblock": block,
        "resblock_kernel_sizes": block_kernels, "resblock_dilation_sizes": [[1, 3, 5]] * 3,
        "hop_size": hop,
    }  # fmt: skip
    assert support_frames(config) == frames


@pytest.mark.parametrize("activation", ["snake", "snakebeta"])
@pytest.mark.parametrize("logscale", [True, False])
def test_folded_activations_are_the_same_function(activation, logscale):
    torch.manual_seed(0)
    generator = build_generator(
        {**TINY_VOCODER, "activation": activation, "snake_logscale": logscale}, weight_norm=False
    ).eval()
    for name, parameter in generator.named_parameters():
        if name.endswith(("alpha", "beta")):
            torch.nn.init.uniform_(parameter, 0.4, 1.5)
        elif parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    mel = speech_like_mel(7)[None]
    with torch.inference_mode():
        before = generator(mel * 0.05)
        fold_activations(generator)
        after = generator(mel * 0.05)
    assert before.abs().max() > 1e-2
    assert (after - before).abs().max() <= 2e-5 * before.abs().max()


def test_the_trainers_activation_is_the_same_function():
    from scripts.nano.vocoder.polyphase import use_polyphase

    torch.manual_seed(0)
    activation = build_generator(TINY_VOCODER, weight_norm=True).activation_post
    for parameter in activation.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 2, 50)
    with torch.no_grad():
        before = activation(x)
        use_polyphase(torch.nn.ModuleList([activation]), compiled=False)
        torch.testing.assert_close(activation(x), before, atol=1e-5, rtol=1e-5)


def test_training_form_and_running_form_agree():
    torch.manual_seed(0)
    training = build_generator(TINY_VOCODER, weight_norm=True)
    mel = speech_like_mel(4)[None]
    with torch.no_grad():
        before = training(mel)
        training.remove_weight_norm()
        torch.testing.assert_close(training(mel), before)
    running = build_generator(TINY_VOCODER, weight_norm=False)
    assert running.state_dict().keys() == training.state_dict().keys()


def test_placeholders_stand_only_during_the_import():
    code = (
        "import sys\n"
        "from moss_engine.codec.vocoder.bigvgan import import_bigvgan_module\n"
        "import_bigvgan_module('bigvgan')\n"
        "names = ('librosa', 'matplotlib', 'huggingface_hub', 'scipy', 'torchaudio', 'pesq', "
        "'bigvgan.meldataset')\n"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_absent_package_is_named_with_its_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    import_bigvgan_module.cache_clear()
    with pytest.raises(MissingPackageError, match=r"pip install --no-deps bigvgan==2\.4\.1"):
        import_bigvgan_module("bigvgan")
    monkeypatch.undo()
    import_bigvgan_module.cache_clear()
    assert bigvgan.import_bigvgan_module("bigvgan").BigVGAN


def test_a_null_fmax_is_half_the_sample_rate():
    assert mel_spec_of({**TINY_VOCODER, "fmax": None}).fmax_hz == 12_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hop_size": 256}, "product 480 but hop_size 256"),
        ({"num_mels": None}, "num_mels"),
        ({"n_fft": "x", "upsample_rates": [5, -1]}, "n_fft, upsample_rates"),
    ],
)
def test_a_wrong_config_is_refused(change, message):
    config = {**TINY_VOCODER, **change}
    if change.get("num_mels", 0) is None:
        del config["num_mels"]
    with pytest.raises(CheckpointError, match=message):
        build_generator(config, weight_norm=False)


def test_output_is_bounded_and_single_precision(generator):
    with torch.inference_mode():
        wave = generator(torch.full((1, 80, 6), 30.0))
    assert wave.dtype == torch.float32 and wave.shape == (1, 1, 6 * HOP)
    assert np.abs(wave.numpy()).max() <= 1.0
