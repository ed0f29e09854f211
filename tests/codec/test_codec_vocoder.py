"""BigVGAN and the vocoders that shape pulses: streams equal one run of the network, seamlessly."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import pad

from moss_engine.api.errors import CheckpointError, MissingPackageError
from moss_engine.codec.base import Window
from moss_engine.codec.load import load_codec
from moss_engine.codec.mel import LOG_FLOOR
from moss_engine.codec.streamed import Pasts
from moss_engine.codec.vocoder.bigvgan import (
    build_generator,
    fold_activations,
    import_bigvgan_module,
)
from moss_engine.codec.vocoder.make import (
    SOURCE_TYPES,
    load_vocoder,
    make_vocoder,
    pick_folder,
    save_source_vocoder,
)
from moss_engine.codec.vocoder.source_bigvgan import EDGE, NOISE_SAMPLES, SourceBigVgan
from moss_engine.codec.vocoder.source_filter import (
    KNEE,
    SILENT_FRAMES,
    SOURCE_DELAY,
    SOURCE_EDGE,
    CachedVocoder,
    SourceFilter,
    limited,
    pulses,
    wave_of,
)
from moss_engine.config import NANO_CHECKPOINT
from tests.codec.speaking import spoken
from tests.fixtures.make_tiny_codec import TINY_VOCODER, make_tiny_codec

HOP = 480


def speech_like_mel(frames: int, seed: int = 0) -> torch.Tensor:
    noise = torch.randn(80, frames, generator=torch.Generator().manual_seed(seed))
    return (noise.cumsum(1) * 0.5 - 5).clamp(LOG_FLOOR, 2)


@pytest.mark.parametrize(("activation", "logscale"), [("snake", False), ("snakebeta", True)])
def test_folded_activations_are_the_same_function(activation, logscale):
    torch.manual_seed(0)
    config = {**TINY_VOCODER, "activation": activation, "snake_logscale": logscale}
    generator = build_generator(config).eval()
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


def test_only_a_vocoder_that_uses_bigvgan_asks_for_it(monkeypatch):
    """The built-in voice speaks on a CPU without the package; its other vocoder names the command
    that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    import_bigvgan_module.cache_clear()
    assert len(spoken(load_codec(NANO_CHECKPOINT), range(20))) == 20 * 960
    with pytest.raises(MissingPackageError, match=r"pip install --no-deps bigvgan==2\.4\.1"):
        load_codec(NANO_CHECKPOINT, vocoder="bigvgan")
    monkeypatch.undo()
    import_bigvgan_module.cache_clear()
    assert import_bigvgan_module("bigvgan").BigVGAN


CPU = torch.device("cpu")
SIZES = {
    "source-filter": {"width": 16, "blocks": 3, "fine_blocks": 1, "pitch_width": 8},
    "source-bigvgan": {"width": 16, "pitch_width": 8},
}
AROUND = 16
TOLERANCE = 1e-3
"""Of the peak. The phase of the pulses is a sum over the whole reply: its rounding grows."""


@pytest.fixture(scope="module", params=tuple(SIZES))
def folder(request, tmp_path_factory) -> Path:
    """A tiny vocoder of one type with random weights, which takes all for voiced."""
    torch.manual_seed(3)
    network = SOURCE_TYPES[request.param](**SIZES[request.param])
    with torch.no_grad():
        network.pitch.leave.weight *= 0.1
        network.pitch.leave.bias[2:] = 3.0
    folder = tmp_path_factory.mktemp("vocoder") / request.param
    save_source_vocoder(folder, request.param, SIZES[request.param], 0.05, network, "float32")
    return folder


@pytest.fixture(scope="module")
def vocoder(folder) -> CachedVocoder:
    made = make_vocoder(folder, CPU, (4, 6), 1)
    assert isinstance(made, CachedVocoder)
    return made


def speak(vocoder: CachedVocoder, parts) -> torch.Tensor:
    state, pieces = vocoder.open(), []
    for part, is_last in [*((part, False) for part in parts), (torch.empty(80, 0), True)]:
        ((wave, state),) = vocoder.speak([Window(state, part, is_last)])
        pieces.append(wave)
    return torch.cat(pieces)


@torch.inference_mode()
def at_once(network: torch.nn.Module, mel: torch.Tensor) -> torch.Tensor:
    """The training's own forward pass over mel with silence around it, without streaming's layers.

    The pulses are a stream's, since their phase begins somewhere.
    """
    left = SILENT_FRAMES
    padded = pad(mel[None], (left, AROUND), value=LOG_FLOOR)
    silence, pasts = torch.full((1, 80, left), LOG_FLOOR), Pasts(None)
    network.pitch.advance(silence, pasts)
    padded_mel = pad(mel[None], (0, 2 * AROUND), value=LOG_FLOOR)
    streamed = network.pitch.advance(padded_mel, Pasts(pasts.kept))
    source = torch.zeros(1, padded.shape[-1] * HOP + 2 * SOURCE_EDGE)
    first = SOURCE_EDGE + left * HOP - SOURCE_DELAY
    count = min(streamed.shape[1], source.shape[1] - first)
    source[:, first : first + count] = streamed[:, :count]
    if isinstance(network, SourceFilter):
        return sum(network.parts(padded, source, left, AROUND))[0]
    spare = SOURCE_EDGE - EDGE
    position = torch.arange(source.shape[1] - 2 * spare) + spare - first + left * HOP
    noise = network.noise[position % NOISE_SAMPLES][None]
    voiced, free = network.spectra(padded, source[:, spare:-spare], noise)
    return wave_of(voiced + free, 16)[0, EDGE + left * HOP : EDGE + (left + mel.shape[1]) * HOP]


@settings(max_examples=4, deadline=None)
@given(lengths=st.lists(st.integers(0, 25), min_size=1, max_size=5), seed=st.integers(0, 3))
def test_any_pieces_give_the_samples_of_one_run(folder, vocoder, lengths, seed):
    mel = speech_like_mel(sum(lengths), seed)
    wave = speak(vocoder, mel.split(lengths, 1))
    assert len(wave) == mel.shape[1] * HOP
    if len(wave):
        network, config = load_vocoder(folder)
        expected = limited(at_once(network, mel) * config["gain"])
        assert expected.abs().max() > 1e-4
        assert (wave - expected).abs().max() <= TOLERANCE * expected.abs().max()


def test_sound_begins_after_the_networks_delay(vocoder):
    state = vocoder.open()
    delay = -(-vocoder.network.delay // HOP)
    assert vocoder.missing_frames(state) == 4 + delay
    ((wave, state),) = vocoder.speak([Window(state, speech_like_mel(3 + delay), False)])
    assert len(wave) == 0
    ((wave, state),) = vocoder.speak([Window(state, speech_like_mel(1), False)])
    assert 4 * HOP <= len(wave) < 5 * HOP and vocoder.missing_frames(state) == 6


def test_loud_samples_are_bent_and_others_left(vocoder):
    wave = torch.linspace(-3, 3, 601)
    bent = limited(wave)
    inside = wave.abs() <= KNEE
    torch.testing.assert_close(bent[inside], wave[inside], rtol=0, atol=0)
    assert bent.abs().max() <= 1 and (bent.diff() >= 0).all()


def test_pulses_are_a_sum_of_cosines():
    generator = torch.Generator().manual_seed(0)
    phase = torch.rand(2000, dtype=torch.float64, generator=generator)
    f0 = torch.full((2000,), 400.0, dtype=torch.float64)
    expected = sum(torch.cos(2 * torch.pi * h * phase) for h in range(1, 28))
    torch.testing.assert_close(pulses(phase, f0, torch.ones(2000)), expected, atol=1e-2, rtol=0)
    assert (pulses(phase, f0, torch.zeros(2000)) == 0).all()


def test_a_codec_picks_the_vocoder_that_was_asked_for(tmp_path):
    make_tiny_codec(tmp_path, seed=1)
    assert pick_folder(tmp_path / "vocoder", "bigvgan", CPU) == tmp_path / "vocoder"
    for path in (tmp_path / "vocoder").iterdir():
        path.unlink()
    for kind in ("source-filter", "source-bigvgan"):
        network = SOURCE_TYPES[kind](**SIZES[kind])
        name = "source_filter" if kind == "source-filter" else "bigvgan"
        place = tmp_path / "vocoder" / name
        save_source_vocoder(place, kind, SIZES[kind], 1.0, network, "float16")
    spoken = {
        name: type(load_codec(tmp_path, vocoder=name).vocoder.network)
        for name in ("auto", "source_filter", "bigvgan")
    }
    assert spoken == {"auto": SourceFilter, "source_filter": SourceFilter, "bigvgan": SourceBigVgan}
    assert pick_folder(tmp_path / "vocoder", "auto", torch.device("cuda")).name == "bigvgan"
    with pytest.raises(CheckpointError, match="no vocoder 'bigvgan'"):
        pick_folder(tmp_path / "codec_", "bigvgan", CPU)


@pytest.mark.parametrize(("vocoder", "codes"), [("source_filter", 10), ("bigvgan", 12)])
def test_the_built_in_voice_begins_in_time(vocoder, codes):
    stream = load_codec(NANO_CHECKPOINT, vocoder=vocoder).open_stream()
    assert stream.missing_codes == codes
