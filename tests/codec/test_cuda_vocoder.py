"""The GPU's vocoder against the package's own: long signals, a whole generator, half precision in
graphs."""

from __future__ import annotations

import importlib.util

import pytest
import torch

pytestmark = pytest.mark.gpu
cuda_support = pytest.importorskip("tests.runtime.cuda.cuda_support")
if importlib.util.find_spec("bigvgan") is None:
    pytest.skip("bigvgan is not installed", allow_module_level=True)

from moss_engine.codec.vocoder.bigvgan import build_generator  # noqa: E402
from moss_engine.codec.vocoder.cuda import CudaVocoder, FusedGenerator, _Activation  # noqa: E402
from moss_engine.kernels.launch import num_multiprocessors  # noqa: E402
from tests.fixtures.make_tiny_codec import TINY_VOCODER  # noqa: E402
from tests.runtime.cuda.cuda_support import DEVICE, relative_error  # noqa: E402

TINY = TINY_VOCODER | {
    "resblock": "1", "upsample_rates": [4, 2], "upsample_kernel_sizes": [8, 4],
    "upsample_initial_channel": 12, "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 3, 5]], "hop_size": 8, "num_mels": 5,
}  # fmt: skip


def generator(**changes: object) -> torch.nn.Module:
    torch.manual_seed(3)
    network = build_generator({**TINY, **changes}).to(DEVICE).eval()
    for name, parameter in network.named_parameters():
        if name.endswith(("alpha", "beta")):
            parameter.data.normal_(0.0, 0.3)
    return network.requires_grad_(False)


def random_signal(*shape: int, seed: int = 0) -> torch.Tensor:
    signal = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    return signal.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "samples",
    [4 * 12 * 3 + 5, 4 * 60 * (4 * num_multiprocessors() + 2) + 7],
    ids=["short ways", "long ways"],
)
def test_activation_far_from_the_edges(samples):
    """Signals that many programs share, most of which see neither end; more of them go long
    ways."""
    plain = generator(upsample_initial_channel=128).resblocks[0].activations[0]
    x = 2 * random_signal(1, 64, 1, samples)
    bias = torch.arange(64.0, device=DEVICE) / 70
    add = random_signal(1, 64, 1, samples, seed=1)
    total = x.clone()
    wanted = plain((x + bias[:, None, None] + add)[:, :, 0])
    found = _Activation(plain)(x, bias, add, total)[:, :, 0]
    assert relative_error(found, wanted) < 1e-5
    assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("form", ["1", "2"])
@pytest.mark.parametrize("kernels", [[3], [3, 7]])
def test_generator(form, kernels):
    network = generator(
        resblock=form,
        resblock_kernel_sizes=kernels,
        resblock_dilation_sizes=[[1, 3, 5]] * len(kernels),
    )
    mel = torch.randn(2, 5, 20, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    with torch.inference_mode():
        wanted = network(mel)
        assert relative_error(FusedGenerator(network, torch.float32)(mel), wanted) < 1e-5


@pytest.mark.skipif(DEVICE.type == "cpu", reason="CUDA graphs need a GPU")
def test_graphs_of_half_precision_are_close_and_hold_what_they_use():
    network = generator()
    mels = torch.randn(3, 5, 24, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    with torch.inference_mode():
        wanted = network(mels)
    vocoder = CudaVocoder(FusedGenerator(network), 5, (16, 24), 4, DEVICE)
    # would lie where freed memory was
    rest = [torch.randn(1 << 20, device=DEVICE) for _ in range(8)]
    for count in (1, 2, 3):
        # half precision: 11 bits, many layers
        assert relative_error(vocoder(mels[:count]), wanted[:count]) < 2e-2
        assert relative_error(vocoder(mels[:count]), vocoder(mels)[:count]) < 2e-2
    assert len(rest) == 8
