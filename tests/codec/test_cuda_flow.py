"""The flow and HiFT in kernels and CUDA graphs against their plain forms."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.gpu
cuda_support = pytest.importorskip("tests.runtime.cuda.cuda_support")

from moss_engine.codec.base import Window  # noqa: E402
from moss_engine.codec.moss.flow import cuda as cuda_flow  # noqa: E402
from moss_engine.codec.moss.flow import network  # noqa: E402
from moss_engine.codec.moss.flow.cuda import CudaFlow, encode, last_convolution, plan_of  # noqa: E402
from moss_engine.codec.moss.flow.network import (  # noqa: E402
    Chunk,
    FlowMemory,
    FlowVoice,
    encode_chunk,
    flow_voice,
    prompt_memory,
    run_chunks,
    velocity,
)
from moss_engine.codec.moss.flow.weights import EPS, FlowWeights, pack_flow  # noqa: E402
from moss_engine.codec.vocoder.hift.cuda import CudaHift  # noqa: E402
from moss_engine.codec.vocoder.hift.generator import Hift  # noqa: E402
from moss_engine.codec.vocoder.hift.network import HiftNetwork  # noqa: E402
from moss_engine.codec.vocoder.hift.weights import pack_hift  # noqa: E402
from moss_engine.kernels.codec import flow  # noqa: E402
from moss_engine.kernels.codec.flow import Chunks, Tiles  # noqa: E402
from moss_engine.kernels.launch import shared_memory_bytes  # noqa: E402
from scripts.bench.random_weights import random_flow, random_hift  # noqa: E402
from tests.fixtures.make_tiny_moss import TINY_FLOW, TINY_HIFT  # noqa: E402
from tests.runtime.cuda.cuda_support import DEVICE, INTERPRETED, relative_error  # noqa: E402

CLOSE = 2e-5
CODES = 5
FRAMES = 20


def make_weights(dtype: torch.dtype = torch.float32) -> FlowWeights:
    return pack_flow(random_flow(TINY_FLOW, 3), TINY_FLOW, DEVICE, dtype)


def make_voice(weights: FlowWeights, codes: int, seed: int) -> FlowVoice:
    random = np.random.RandomState(seed)
    mel = torch.from_numpy(random.standard_normal((80, 4 * codes))).float() * 2 - 5
    return flow_voice(
        weights,
        random.randint(0, 64, codes).tolist(),
        mel,
        torch.from_numpy(random.standard_normal(192)).float(),
    )


def windows_of(count: int, streams: int, seed: int) -> list[tuple[int, ...]]:
    return [
        tuple(row)
        for row in np.random.RandomState(seed).randint(0, 64, (streams, 2 + count + 3)).tolist()
    ]


def meta_of(memories: list[FlowMemory], anchor: torch.Tensor) -> torch.Tensor:
    return torch.tensor([cuda_flow._meta(memory, anchor, FRAMES) for memory in memories])


def aged(weights: FlowWeights, voices: list[FlowVoice], chunks: int = 3) -> list[FlowMemory]:
    """Memories whose rings, of two chunks, have gone round, but for the last one, which is new."""
    memories = [
        FlowMemory(weights, CODES, 2, prompt_memory(weights, voice, CODES)) for voice in voices
    ]
    for at in range(chunks):
        for memory, voice, window in zip(
            memories[:-1], voices, windows_of(CODES, len(voices), at), strict=False
        ):
            run_chunks(weights, [Chunk(memory, voice, (window,), None)])
    return memories


LIBRARY = {
    "query": Tiles(8, 0, 1, 4),
    "attend": Tiles(16, 16, 1, 8, 1),
    "join": Tiles(0, 0, 1, 0),
    "feed": Tiles(8, 0, 1, 4),
}


@pytest.mark.parametrize(
    ("weight_bytes", "tiles"),
    [(64 << 10, {}), (2 << 10, {}), (64 << 10, LIBRARY)],
    ids=["whole", "bands apart", "the library's products"],
)
def test_one_step_of_the_estimator_and_its_memory(monkeypatch, weight_bytes, tiles):
    monkeypatch.setattr(flow, "_WEIGHT_BYTES", weight_bytes)
    weights = make_weights()
    plan = plan_of(4 * FRAMES, torch.float32, shared_memory_bytes())
    plan = dataclasses.replace(plan, **tiles)
    voices = [make_voice(weights, 10, 1), make_voice(weights, 5, 2)]
    plain = aged(weights, voices, 1 if INTERPRETED else 3)
    fused = aged(weights, voices, 1 if INTERPRETED else 3)
    inputs = torch.randn(4, FRAMES, 320, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    inputs[1::2, :, :80] = inputs[::2, :, :80]  # both branches of a stream move the same mel
    given = cuda_flow._Inputs.empty(weights, 2, CODES)
    given.meta.copy_(meta_of(fused, given.anchor))
    with torch.inference_mode():
        moves = torch.cat(
            [
                velocity(weights, memory, rows, 4)
                for memory, rows in zip(plain, inputs.split(2), strict=True)
            ]
        )
        wanted = inputs[::2, :, :80] + 0.5 * (1.7 * moves[::2] - 0.7 * moves[1::2])
        found = inputs.flatten(0, 1).clone()
        chunks = Chunks(given.anchor, given.meta, FRAMES)
        y = last_convolution(weights, chunks, plan, found, 4)
        final = weights.estimator.final_norm
        project = weights.estimator.project
        flow.step(
            y, final.weight, final.bias, EPS, project.weight, project.bias, found, 0.5, 0.7, FRAMES
        )
    found = found.view_as(inputs)
    assert torch.equal(found[::2, :, :80], found[1::2, :, :80])
    assert relative_error(found[::2, :, :80], wanted) < CLOSE
    assert torch.equal(found[..., 80:], inputs[..., 80:])
    for mine, theirs in zip(fused, plain, strict=True):
        assert relative_error(mine.kv, theirs.kv) < CLOSE
        assert relative_error(mine.tails, theirs.tails) < CLOSE


def test_the_conformer_and_its_rings():
    weights = make_weights()
    voices = [make_voice(weights, 10, 1), make_voice(weights, 5, 2)]
    plain, fused = aged(weights, voices, 1), aged(weights, voices, 1)
    windows = torch.tensor(windows_of(CODES, 2, 9), device=DEVICE)
    anchor = torch.zeros(16, device=DEVICE)
    meta = meta_of(fused, anchor).to(DEVICE)
    first = torch.tensor([memory.position for memory in fused], device=DEVICE)
    with torch.inference_mode():
        before = torch.stack([memory.last_codes for memory in fused])
        found, after = encode(weights, anchor, meta, first, windows, before)
        wanted = torch.stack(list(map(encode_chunk, [weights] * 2, plain, windows)))
    assert relative_error(found, wanted) < CLOSE
    for mine, theirs, last in zip(fused, plain, after, strict=True):
        assert relative_error(last, theirs.next_codes) < CLOSE
        for ring in ("low", "high"):
            assert relative_error(getattr(mine, ring).rows, getattr(theirs, ring).rows) < CLOSE
            assert relative_error(getattr(mine, ring).waves, getattr(theirs, ring).waves) < CLOSE


def test_a_run_holds_chunks_of_any_length_and_those_behind_them(monkeypatch):
    if INTERPRETED:  # ten steps are too many to interpret
        monkeypatch.setattr(cuda_flow, "NUM_STEPS", 1)
        monkeypatch.setattr(network, "NUM_STEPS", 1)
    weights = make_weights()
    voices = [make_voice(weights, codes, codes) for codes in (5, 10, 15)]
    fused = CudaFlow(weights, CODES, 8, graphs=not INTERPRETED)
    runs = [
        [(CODES, CODES, CODES), (CODES,), (CODES, CODES)],  # the first stream's ring is full then
        [(CODES,), (CODES, 2), (3,)],
    ]
    made: list[list[torch.Tensor]] = []
    for runner in (run_chunks, fused):
        memories = [
            FlowMemory(weights, CODES, 3, prompt_memory(weights, voice, CODES)) for voice in voices
        ]
        mels = []
        for turn, sizes in enumerate(runs):
            chunks = []
            for i, (memory, voice) in enumerate(zip(memories, voices, strict=True)):
                windows = tuple(
                    windows_of(size, 1, 10 * turn + i + 20 * at)[0]
                    for at, size in enumerate(sizes[i])
                )
                chunks.append(Chunk(memory, voice, windows, None if turn else voice.mel[-FRAMES:]))
            mels += runner(weights, chunks)
        made.append(mels)
    for wanted, found, sizes in zip(*made, itertools.chain(*runs), strict=True):
        assert found.shape == wanted.shape == (4 * sum(sizes), 80)
        assert relative_error(found, wanted) < CLOSE


@pytest.mark.skipif(INTERPRETED, reason="ten steps are too many to interpret")
@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, CLOSE), (torch.float16, 5e-3), (torch.bfloat16, 4e-2)]
)
def test_chunks_of_many_streams_in_graphs(dtype, most):
    wide, weights = make_weights(), make_weights(dtype)
    run = CudaFlow(weights, CODES, 3)
    made: list[list[torch.Tensor]] = []
    for kind, runner in ((wide, run_chunks), (weights, run)):
        voices = [make_voice(kind, codes, codes) for codes in (5, 10, 15)]
        memories = [
            FlowMemory(kind, CODES, 2, prompt_memory(kind, voice, CODES, runner))
            for voice in voices
        ]
        mels = []
        for turn, size in enumerate(
            (5, 5, 5, 5, 2)
        ):  # the third stream joins late; a short chunk comes last
            members = range(2 if turn < 2 else 3)
            chunks = [
                Chunk(
                    memories[i],
                    voices[i],
                    (window,),
                    voices[i].mel[-4 * size :] if turn == 0 else None,
                )
                for i, window in zip(members, windows_of(size, 3, turn), strict=False)
            ]
            mels.append(torch.stack(list(runner(kind, chunks))))
        made.append(mels)
    for wanted, found in zip(*made, strict=True):
        assert found.shape == wanted.shape
        assert relative_error(found, wanted) < most


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.float16, 2e-3)])
def test_hift_in_fewer_passes_over_memory(dtype, most):
    weights = pack_hift(random_hift(TINY_HIFT), TINY_HIFT, DEVICE)
    random = torch.Generator().manual_seed(0)
    mel = (torch.randn(2, 80, 5, generator=random) * 2 - 5).to(DEVICE)
    source = torch.randn(2, 5 * TINY_HIFT.samples_per_frame, generator=random).to(DEVICE) * 0.1
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        wanted = HiftNetwork(weights)(mel, source)
        found = HiftNetwork(weights, dtype, fused=True)(mel, source)
    assert found.shape == wanted.shape
    assert relative_error(found, wanted) < most


@pytest.mark.skipif(INTERPRETED, reason="CUDA graphs need a GPU")
def test_hift_in_graphs():
    weights = pack_hift(random_hift(TINY_HIFT), TINY_HIFT, DEVICE)
    plain, fused = Hift(weights), Hift(weights, CudaHift(weights, FRAMES, [12, 16], 4))
    corners = torch.randn(3, 80, 14, generator=torch.Generator().manual_seed(0)).to(DEVICE) * 2 - 5
    mels = torch.nn.functional.interpolate(corners, size=72, mode="linear")
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        wanted, found = ([], [])
        for hift, waves in ((plain, wanted), (fused, found)):
            states = [hift.open() for _ in mels]
            for at in (0, 20, 40, 60):
                results = hift.speak(
                    [
                        Window(state, mel[:, at : at + 20], at == 60)
                        for state, mel in zip(states, mels, strict=True)
                    ]
                )
                states = [state for _, state in results]
                waves += [wave for wave, _ in results]
    for wave, other in zip(found, wanted, strict=True):
        assert len(wave) == len(other) > 0
        assert relative_error(wave, other) < 5e-2  # graphs run in half precision
