"""The fused activation against the package's own, and a whole generator with it."""

from __future__ import annotations

import importlib.util

import pytest
import torch

pytestmark = pytest.mark.gpu
cuda_support = pytest.importorskip("tests.cuda_support")
if importlib.util.find_spec("bigvgan") is None:
    pytest.skip("bigvgan is not installed", allow_module_level=True)

from moss_engine.codec.bigvgan import build_generator  # noqa: E402
from moss_engine.runtime.kernels.snake import FusedActivation, fuse_activations  # noqa: E402
from tests.cuda_support import DEVICE, relative_error  # noqa: E402

TINY = {
    "resblock": "1", "upsample_rates": [4, 2], "upsample_kernel_sizes": [8, 4], "upsample_initial_channel": 12,
    "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3, 5]], "use_tanh_at_final": False,
    "use_bias_at_final": False, "activation": "snakebeta", "snake_logscale": True, "sampling_rate": 24000, "n_fft": 64,
    "win_size": 64, "hop_size": 8, "num_mels": 5, "fmin": 0, "fmax": None,
}


def generator() -> torch.nn.Module:
    torch.manual_seed(3)
    network = build_generator(TINY, weight_norm=False).to(DEVICE).eval()
    for name, parameter in network.named_parameters():
        if name.endswith(("alpha", "beta")):
            parameter.data.normal_(0.0, 0.3)
    return network.requires_grad_(False)


@pytest.mark.parametrize("samples", [1, 2, 7, 300])
def test_activation(samples):
    plain = generator().resblocks[0].activations[0]
    x = 2 * torch.randn(2, 6, samples, generator=torch.Generator().manual_seed(samples)).to(DEVICE)
    assert relative_error(FusedActivation(plain)(x), plain(x)) < 1e-5


def test_generator():
    network = generator()
    mel = torch.randn(1, 5, 20, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    with torch.inference_mode():
        wanted = network(mel)
        fuse_activations(network)
        assert relative_error(network(mel), wanted) < 1e-5
