"""The speech encoder and its front ends against public implementations
(tests/golden/make_speech.py) and itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from moss_engine.api.errors import CheckpointError, EngineFaultError
from moss_engine.codec.moss.speaker import CAMPPLUS_NAME, SpeakerEncoder, fbank
from moss_engine.codec.moss.whisper import (
    Encoder,
    WhisperVq,
    WhisperVqConfig,
    build_whisper_vq,
    expected_tensors,
    load_whisper_vq,
    to_16_khz,
    whisper_features,
)
from moss_engine.codec.resample import resample
from moss_engine.models.checkpoint import FILE_NAME
from moss_engine.models.tensor_file import read_header, read_tensor
from scripts.bench.random_weights import PUBLISHED_CONFIG, random_encoder
from tests.fixtures.golden.make_speech import (
    FEATURE_SAMPLES,
    PATH,
    RATES_HZ,
    RESAMPLED_S,
    WIDE_CONFIG,
    WIDE_FRAMES,
    sound,
)
from tests.fixtures.make_tiny_moss import CAMPPLUS, make_tiny_encoder, speaker_matrix

TOLERANCE = 1e-4
GOLDEN = np.load(PATH)
WAVE = sound(FEATURE_SAMPLES, 16_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("codec")
    make_tiny_encoder(path)
    return path


@pytest.fixture(scope="module")
def encoder(folder):
    return load_whisper_vq(folder)


def relative_error(found: torch.Tensor, wanted: np.ndarray) -> float:
    """Largest difference, as a share of the largest value."""
    assert tuple(found.shape) == wanted.shape
    return float(np.abs(found.numpy() - wanted).max() / np.abs(wanted).max())


def padded(wave: np.ndarray) -> torch.Tensor:
    return torch.nn.functional.pad(torch.from_numpy(wave), (0, -len(wave) % 1280))[None]


def test_features_are_those_of_transformers():
    assert relative_error(whisper_features(padded(WAVE))[0], GOLDEN["features"]) < TOLERANCE


@pytest.mark.parametrize(("from_hz", "to_hz"), RATES_HZ)
def test_resampling_is_that_of_torchaudio(from_hz, to_hz):
    wave = torch.from_numpy(sound(round(from_hz * RESAMPLED_S), from_hz))
    found = resample(wave, from_hz, to_hz, zero_crossings=6, roll_off=0.99)
    assert relative_error(found, GOLDEN[f"resampled_{from_hz}_{to_hz}"]) < TOLERANCE
    if to_hz == 16_000:
        torch.testing.assert_close(to_16_khz(wave, from_hz), found)


def test_two_rates_without_a_common_measure_take_no_memory_to_speak_of():
    wave = torch.sin(torch.arange(44_101) * (2 * np.pi * 440 / 44_101))
    found = resample(wave, 44_101, 16_000, zero_crossings=6, roll_off=0.99)
    wanted = torch.sin(torch.arange(16_000) * (2 * np.pi * 440 / 16_000))
    assert found.shape == wanted.shape and (found - wanted)[50:-50].abs().max() < 2e-3


def test_the_filter_bank_is_kaldis():
    assert relative_error(fbank(torch.from_numpy(WAVE)), GOLDEN["fbank"]) < TOLERANCE


def test_points_are_those_of_transformers_layers_under_a_causal_mask(encoder):
    points = encoder.network.points(torch.from_numpy(GOLDEN["features"])[None])[0]
    assert relative_error(points, GOLDEN["points"]) < TOLERANCE


def test_points_are_those_at_the_published_width():
    """20 heads, 1280 wide; two of the 16 layers."""
    config = WhisperVqConfig.from_dict(WIDE_CONFIG, source="wide")
    wide = build_whisper_vq(config, random_encoder(config))
    with torch.inference_mode():
        points = wide.network.points(torch.from_numpy(GOLDEN["features"][None, :, :WIDE_FRAMES]))[0]
    assert relative_error(points, GOLDEN["wide_points"]) < TOLERANCE


def test_codes_are_the_nearest_rows(encoder, folder):
    codes = encoder.encode(WAVE, 16_000)
    stored = read_header(folder / FILE_NAME)["encoder.codebook.weight"]
    distances = torch.cdist(torch.from_numpy(GOLDEN["points"]), read_tensor(stored))
    assert codes == distances.argmin(1).tolist() and len(set(codes)) > 3


def test_long_recordings_are_cut_every_30_seconds(encoder):
    wave = sound(16_000 * 33, 16_000)
    codes = encoder.encode(wave, 16_000)
    assert len(codes) == 375 + 38
    assert codes[:375] == encoder.encode(wave[: 16_000 * 30], 16_000)
    alone = encoder.encode(wave[16_000 * 30 :], 16_000)
    assert codes[375:-1] == alone[:-1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_change_few_codes(folder, encoder, dtype):
    wave = sound(16_000 * 8, 16_000)
    exact = encoder.encode(wave, 16_000)
    found = load_whisper_vq(folder, dtype=dtype).encode(wave, 16_000)
    agreement = np.mean(np.array(exact) == np.array(found))
    assert agreement >= (0.97 if dtype is torch.float16 else 0.9)


def test_values_that_are_no_numbers_are_not_codes(folder):
    broken = load_whisper_vq(folder)
    with torch.no_grad():
        broken.network.layers[0].fc2.bias[0] = torch.inf
    with pytest.raises(EngineFaultError, match="start the program with --codec-dtype float32"):
        broken.encode(WAVE, 16_000)


def test_the_published_size():
    config = WhisperVqConfig.from_dict(PUBLISHED_CONFIG, source="published")
    expected = expected_tensors(config)
    assert len(expected) == 6 + 15 * 16
    with torch.device("meta"):
        network = Encoder(config)
    num_values = sum(int(np.prod(shape)) for shape in expected.values())
    assert num_values == 343_119_360
    assert (
        sum(p.numel() for p in network.parameters())
        == num_values + 16 * 1280 - (16_384 + 1500) * 1280
    )


def test_the_speaker_network_reads_the_filter_bank_without_its_mean(folder):
    pytest.importorskip("onnxruntime")
    features = GOLDEN["fbank"] - GOLDEN["fbank"].mean(0)
    vector = SpeakerEncoder(folder / CAMPPLUS_NAME).vector(torch.from_numpy(WAVE))
    assert relative_error(vector, (features**2).mean(0) @ speaker_matrix()) < TOLERANCE


def test_a_foreign_speaker_network_is_refused(tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(CheckpointError, match="is missing"):
        SpeakerEncoder(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(CAMPPLUS.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"bad\.onnx is no speaker network"):
        SpeakerEncoder(tmp_path / "bad.onnx")


def test_codes_by_fixed_lengths_are_those_of_the_network(folder):
    """Shorter after longer, exactly a length, two pieces."""
    plain, fixed = load_whisper_vq(folder), load_whisper_vq(folder)
    fixed.capture()
    for seconds in (3.5, 0.05, 2.0, 31.0):
        wave = sound(round(16_000 * seconds), 16_000)
        assert fixed.encode(wave, 16_000) == plain.encode(wave, 16_000)


SOUNDS = [
    (sound(n, hz), hz)
    for n, hz in ((16_000 * 9, 16_000), (44_100 * 4, 44_100), (900, 8000), (16_000 * 33, 16_000))
]


def share_of_equal(one: WhisperVq, other: WhisperVq) -> float:
    codes = [(one.encode(*said), other.encode(*said)) for said in SOUNDS]
    return float(np.mean([a == b for pair in codes for a, b in zip(*pair, strict=True)]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
class TestOnAGpu:
    """Against the CPU and the stored points of an independent implementation."""

    def test_points_in_float32_are_those_of_the_reference(self, folder):
        encoder = load_whisper_vq(folder, "cuda").network
        with torch.inference_mode():
            found = encoder.points(torch.from_numpy(GOLDEN["features"])[None].cuda())[0].cpu()
        assert relative_error(found, GOLDEN["points"]) < TOLERANCE

    def test_codes_are_those_of_the_cpu(self, folder):
        wanted, found = load_whisper_vq(folder), load_whisper_vq(folder, "cuda")
        assert share_of_equal(wanted, found) > 0.99

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_16_bits_change_few_codes(self, folder, dtype):
        wanted, found = load_whisper_vq(folder, "cuda"), load_whisper_vq(folder, "cuda", dtype)
        assert share_of_equal(wanted, found) >= (0.97 if dtype is torch.float16 else 0.9)
