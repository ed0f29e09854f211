"""Other libraries' attention, which `scripts.bench.lm.attention` compares with the runtime's.

Each is a function of a `Scene` that yields methods; it raises where a library cannot do what it is
asked for.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from scripts.bench.lm.attention_case import BLOCK_SIZE, Scene
from scripts.bench.lm.attention_flex import torch_flex
from scripts.bench.lm.attention_kernels import Method

FLASHINFER_WORKSPACE_BYTES = 512 << 20


def torch_sdpa(scene: Scene, backend: SDPBackend) -> Method:
    """torch's attention of equally long sequences: one new row each, or nothing cached."""
    case = scene.case
    assert case.decodes or not any(case.cached)
    queries = scene.queries.view(len(case.new), -1, *scene.queries.shape[1:]).transpose(1, 2)

    def attend(gathered: tuple[Tensor, Tensor]) -> Tensor:
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(
                queries, *gathered, is_causal=not case.decodes, enable_gqa=True
            )
        return out.transpose(1, 2).flatten(0, 1)

    stored = [
        (keys.contiguous(), values.contiguous())
        for keys, values in map(scene.gathered, range(scene.num_slots))
    ]
    return Method(
        f"torch SDPA ({backend.name.lower()}), gathered KV",
        lambda slot: attend(stored[slot]),
        gather=scene.gathered,
        attend_gathered=attend,
    )


def torch_varlen(scene: Scene) -> Method:
    """torch.nn.attention.varlen over gathered KV.

    Its block tables need FlashAttention 3, which torch lacks.
    """
    from torch.nn.attention.varlen import varlen_attn

    case = scene.case
    lengths = torch.tensor([0, *case.lengths]).cumsum(0).to(scene.device, torch.int32)
    starts = torch.tensor(case.starts, dtype=torch.int32, device=scene.device)
    options: dict[str, Any] = {"window_size": (-1, 0)}
    if "enable_gqa" in inspect.signature(varlen_attn).parameters:
        options["enable_gqa"] = True

    def attend(gathered: tuple[Tensor, Tensor]) -> Tensor:
        out = varlen_attn(
            scene.queries, *gathered, starts, lengths, max(case.new), max(case.lengths), **options
        )
        assert isinstance(out, Tensor)
        return out

    stored = [scene.packed(slot) for slot in range(scene.num_slots)]
    return Method(
        "torch varlen_attn, gathered KV",
        lambda slot: attend(stored[slot]),
        gather=scene.packed,
        attend_gathered=attend,
    )


def page_lists(scene: Scene) -> tuple[Tensor, Tensor, Tensor]:
    """FlashInfer's block tables: offsets of sequences' pages, pages, rows of the last pages."""
    counts = [-(-length // BLOCK_SIZE) for length in scene.case.lengths]
    begins = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
    pages = torch.cat([table[:count] for table, count in zip(scene.tables, counts, strict=True)])
    last = torch.tensor(
        [(length - 1) % BLOCK_SIZE + 1 for length in scene.case.lengths], dtype=torch.int32
    )
    return begins, pages, last


def flashinfer(scene: Scene, backend: str) -> Method:
    """FlashInfer over the runtime's own pool.

    `cuda_cores` takes one new row a sequence, `fa2` and `fa3` any.
    """
    import flashinfer as library  # pyright: ignore[reportMissingImports]

    config, case = scene.config, scene.case
    workspace = torch.zeros(FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=scene.device)
    begins, pages, last = page_lists(scene)
    sizes = (config.num_attention_heads, config.num_key_value_heads, config.head_dim, BLOCK_SIZE)
    dtypes = {"q_data_type": scene.queries.dtype, "kv_data_type": scene.keys.dtype}
    if case.decodes and backend != "fa3":
        wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "HND", use_tensor_cores=backend == "fa2"
        )
        plan = lambda: wrapper.plan(begins, pages, last, *sizes, **dtypes)  # noqa: E731
    else:
        starts = torch.tensor(case.starts, dtype=torch.int32)
        wrapper = library.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND", backend=backend)
        plan = lambda: wrapper.plan(starts, begins, pages, last, *sizes, causal=True, **dtypes)  # noqa: E731
    times_ms = []
    for _ in range(4):
        start_s = time.perf_counter()
        plan()
        times_ms.append(1e3 * (time.perf_counter() - start_s))
    out = torch.empty_like(scene.queries)
    return Method(
        f"FlashInfer {library.__version__} ({backend})",
        lambda slot: wrapper.run(scene.queries, (scene.keys[slot], scene.values[slot]), out=out),
        plan_ms=min(times_ms[1:]),
    )


def others(scene: Scene) -> Iterator[tuple[str, Callable[[], Method]]]:
    """The methods compared on a scene, by name; made when called."""
    case = scene.case
    for backend in ("fa2", "fa3", *(("cuda_cores",) if case.decodes else ())):
        yield f"FlashInfer ({backend})", lambda backend=backend: flashinfer(scene, backend)
    if case.decodes or (len(case.new) == 1 and not any(case.cached)):
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            yield (
                f"torch SDPA ({backend.name.lower()})",
                lambda backend=backend: torch_sdpa(scene, backend),
            )
    if not case.decodes:
        yield "torch varlen_attn", lambda: torch_varlen(scene)
    if case.flex:
        yield "torch FlexAttention", lambda: torch_flex(scene)
