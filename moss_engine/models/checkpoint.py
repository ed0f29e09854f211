"""Strict loading and saving of checkpoints: exactly the expected names and shapes.

Linear and convolution weights may be stored as int8 with one float16 scale per first-axis row
beside them (`X.weight` and `X.weight_scale`, value = int8 * scale), linear weights also with 4 bits
(`models.packed`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moss_engine.api.errors import CheckpointError
from moss_engine.api.small_files import read_json
from moss_engine.models.config import ModelConfig
from moss_engine.models.packed import group_of, quantise8, widen4
from moss_engine.models.tensor_file import StoredTensor, read_header, read_tensor, refuse

FILE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
SCALE_SUFFIX = "_scale"
SHARD_BYTES = 1 << 30
FINITE_SAMPLES = 65_536
TIED_ROWS = 1024
TABLES_AND_HEADS = {
    "model.embed_tokens.weight": "text_lm_head.weight",
    "model.audio_embed.weight": "audio_lm_head.weight",
}
_REMEDY = "use weights and a config.json that belong together."


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the network's tensors: 11 a layer and 6 more (446 at full size)."""
    hidden, ffn, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_size, kv_size = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    layer = {
        "self_attn.q_proj": (q_size, hidden),
        "self_attn.k_proj": (kv_size, hidden),
        "self_attn.v_proj": (kv_size, hidden),
        "self_attn.o_proj": (hidden, q_size),
        "self_attn.q_norm": (head_dim,),
        "self_attn.k_norm": (head_dim,),
        "mlp.gate_proj": (ffn, hidden),
        "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    expected: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.audio_embed.weight": (config.audio_vocab_size, hidden),
        "model.text_norm.weight": (hidden,),
        "model.audio_norm.weight": (hidden,),
        "text_lm_head.weight": (config.vocab_size, hidden),
        "audio_lm_head.weight": (config.audio_vocab_size, hidden),
    }
    for prefix in slot_prefixes(config):
        expected |= {f"{prefix}{name}.weight": shape for name, shape in layer.items()}
    return expected


def slot_prefixes(config: ModelConfig) -> list[str]:
    """The prefix of the tensors of every KV slot: shared layers, text branch, audio branch."""
    branch = config.num_modality_layers
    blocks = {"shared_block": config.num_shared_layers, "text_block": branch, "audio_block": branch}
    return [f"model.{block}.layers.{i}." for block, count in blocks.items() for i in range(count)]


def load_tensors(
    path: Path, expected: Mapping[str, tuple[int, ...]], **how: Any
) -> dict[str, Tensor]:
    """All tensors that `stream_tensors` gives, as a dictionary."""
    return dict(stream_tensors(path, expected, **how))


def stream_tensors(
    path: Path,
    expected: Mapping[str, tuple[int, ...]],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    keep_int8: bool = False,
    keep_int4: bool = False,
) -> Iterator[tuple[str, Tensor]]:
    """The expected tensors of a safetensors file or of a folder of shards, one by one.

    Names, shapes and dtypes are checked by the files' headers before memory is taken for any
    tensor. Float tensors keep their stored dtype unless `dtype` is given. Weights in 8 or 4 bits
    are widened to `dtype` (None: float32), or returned as they are with `keep_int8` and
    `keep_int4`: `X.weight`, then `X.weight_scale`, float32 [rows] or float16 [rows, groups]. Only
    one tensor at a time is in CPU memory. Raises CheckpointError that names the file or tensor and
    the remedy.
    """
    path = Path(path)
    stored = read_index(path) if path.is_dir() else read_header(path)
    check_tensors(path, stored, expected)
    for name in expected:
        tensor = read_finite(stored[name])
        if tensor.dtype not in (torch.int8, torch.uint8):
            yield name, tensor.to(device, dtype or tensor.dtype)
            continue
        is_int8 = tensor.dtype is torch.int8
        scale = read_finite(stored[name + SCALE_SUFFIX])
        if keep_int8 if is_int8 else keep_int4:
            yield name, tensor.to(device)
            yield name + SCALE_SUFFIX, (scale.float() if is_int8 else scale).to(device)
        else:
            yield name, widen_stored(tensor, scale).to(device, dtype or torch.float32)


def stores_int8(folder: Path) -> bool:
    """Whether a checkpoint folder holds int8 weights, and none in 4 bits, which computing in int8
    would round again. Raises CheckpointError for damaged files."""
    kinds = {stored.dtype for stored in read_index(Path(folder)).values()}
    return torch.int8 in kinds and torch.uint8 not in kinds


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], int8_names: Collection[str] = ()
) -> None:
    """Write one safetensors file; weights in `int8_names` become int8 with a scale per row."""
    from safetensors.torch import save_file

    assert set(int8_names) <= set(tensors), "an int8 name is no tensor"
    stored = {}
    for name, tensor in tensors.items():
        if name in int8_names:
            stored[name], stored[name + SCALE_SUFFIX] = quantise(tensor)
        else:
            stored[name] = tensor.detach().cpu().contiguous()
    save_file(stored, path, metadata={"format": "pt"})
    path.chmod(0o644)  # the package makes files that nobody else may read


def save_shards(folder: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write tensors, as they come, into files of about SHARD_BYTES, and the index of these."""
    weight_map: dict[str, str] = {}
    shard: dict[str, Tensor] = {}

    def save() -> None:
        name = f"model-{len(set(weight_map.values())) + 1:05}.safetensors"
        save_tensors(folder / name, shard)
        weight_map.update(dict.fromkeys(shard, name))
        shard.clear()

    for name, tensor in tensors:
        shard[name] = tensor
        if sum(part.nbytes for part in shard.values()) >= SHARD_BYTES:
            save()
    if shard:
        save()
    index = json.dumps({"metadata": {}, "weight_map": weight_map}, indent=1)
    (folder / INDEX_NAME).write_text(index + "\n", encoding="utf-8")


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [rows, ...] -> the nearest int8 values in its shape, and float16 scales [rows]."""
    values, scale = quantise8(weight.detach().cpu().float().flatten(1))
    return values.view(weight.shape), scale


def widen_stored(values: Tensor, scale: Tensor) -> Tensor:
    """int8 [rows, ...] with scales [rows], or packed 4 bits, as they are stored -> float32."""
    if values.dtype is torch.uint8:
        return widen4(values, scale)
    return values.float() * scale.float().view(-1, *[1] * (values.dim() - 1))


def read_index(folder: Path) -> dict[str, StoredTensor]:
    """The file that holds each tensor of a folder (one file, or shards); raises CheckpointError."""
    if (folder / FILE_NAME).exists():
        return read_header(folder / FILE_NAME)
    index = folder / INDEX_NAME
    neither = f"{folder} holds neither {FILE_NAME} nor {INDEX_NAME}; "
    values = read_json(index, missing=f"{neither}point to a complete checkpoint folder.")
    try:
        weight_map = values["weight_map"]
        shards = sorted(set(weight_map.values()))
    except (TypeError, KeyError, AttributeError) as error:
        raise refuse(index, f"is no index of shards ({error})") from None
    stored: dict[str, StoredTensor] = {}
    for shard in shards:
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise refuse(index, f"names a shard outside its folder ({shard!r})")
        for name, tensor in read_header(folder / shard).items():
            if weight_map.get(name) != shard:
                raise refuse(
                    folder / shard, f"holds tensor {name!r}, which {INDEX_NAME} places elsewhere"
                )
            stored[name] = tensor
    for name, shard in weight_map.items():
        if name not in stored:
            raise refuse(folder / shard, f"lacks tensor {name!r}, which {INDEX_NAME} places in it")
    return stored


def check_tensors(
    path: Path,
    stored: Mapping[str, StoredTensor] | Mapping[str, Tensor],
    expected: Mapping[str, tuple[int, ...]],
    remedy: str = _REMEDY,
) -> None:
    """Raise CheckpointError, with the remedy, unless exactly the expected names and shapes are
    stored."""
    wanted = dict(expected)
    for name in expected:
        if name in stored and stored[name].dtype is torch.int8:
            wanted[name + SCALE_SUFFIX] = tuple(expected[name][:1])
        if name in stored and stored[name].dtype is torch.uint8:
            wanted[name], wanted[name + SCALE_SUFFIX] = _packed_shapes(path, name, expected[name])
    for what, names in (
        ("lacks", wanted.keys() - stored.keys()),
        ("has the unknown", stored.keys() - wanted.keys()),
    ):
        if names:
            shown = ", ".join(sorted(names)[:3]) + (" ..." if len(names) > 3 else "")
            raise CheckpointError(f"{path} {what} tensors {shown} ({len(names)} in all); {remedy}")
    for name, shape in wanted.items():
        if stored[name].shape != tuple(shape):
            found = list(stored[name].shape)
            raise CheckpointError(
                f"{path}: tensor {name} has shape {found} instead of {list(shape)}; {remedy}"
            )
        if stored[name].dtype is torch.int8 and (name not in expected or len(shape) < 2):
            raise CheckpointError(f"{path}: tensor {name} may not be stored as int8; {_REMEDY}")
        if stored[name].dtype is torch.uint8 and name not in expected:
            raise CheckpointError(f"{path}: tensor {name} may not be stored as uint8; {_REMEDY}")


def _packed_shapes(
    path: Path, name: str, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the values and scales of a matrix in 4 bits."""
    group = group_of(shape[1]) if len(shape) == 2 else None
    if group is None or "embed" in name:
        raise CheckpointError(f"{path}: tensor {name} may not be stored in 4 bits; {_REMEDY}")
    return (shape[0], shape[1] // 2), (shape[0], shape[1] // group)


def read_finite(stored: StoredTensor) -> Tensor:
    """Read a tensor and refuse NaN or infinity, looking at every so many values of a large one."""
    tensor = read_tensor(stored)
    step = max(1, tensor.numel() // FINITE_SAMPLES)
    if tensor.is_floating_point() and not bool(tensor.reshape(-1)[::step].isfinite().all()):
        raise refuse(stored.path, f"has NaN or infinite values in tensor {stored.name!r}")
    return tensor


def refuse_tied(folder: Path) -> None:
    """Raise CheckpointError if a head's first rows are those of its channel's embedding table."""
    stored = read_index(folder)
    for table, head in TABLES_AND_HEADS.items():
        rows = _first_rows(stored[table]), _first_rows(stored[head])
        if rows[0].dtype is rows[1].dtype and torch.equal(*rows):
            raise CheckpointError(
                f"{folder}: {head} equals {table}, as if tied; export the checkpoint again with "
                f"untied heads."
            )


def _first_rows(stored: StoredTensor) -> Tensor:
    rows = min(TIED_ROWS, stored.shape[0])
    num_bytes = stored.num_bytes // stored.shape[0] * rows
    shape = (rows, *stored.shape[1:])
    return read_tensor(dataclasses.replace(stored, shape=shape, num_bytes=num_bytes))
