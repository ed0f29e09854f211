"""MOSS-Speech once more, in numpy and float64, position by position, straight from its description:
slow and plain.

It shares no code with the package, so that both would have to be wrong in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

Tensors = Mapping[str, np.ndarray]


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x) + eps) * weight


def rotate(head: np.ndarray, position: int, theta: float) -> np.ndarray:
    """NeoX: element i turns together with element i + half, by position * theta ** (-2 i /
    size)."""
    half = len(head) // 2
    turned = np.empty_like(head)
    for i in range(half):
        angle = position * theta ** (-2 * i / len(head))
        turned[i] = head[i] * np.cos(angle) - head[i + half] * np.sin(angle)
        turned[i + half] = head[i + half] * np.cos(angle) + head[i] * np.sin(angle)
    return turned


def attention(
    tensors: Tensors, prefix: str, normed: list[np.ndarray], config: Mapping[str, float]
) -> list[np.ndarray]:
    """Causal grouped-query attention with normed and rotated q and k."""
    size, theta, eps = int(config["head_dim"]), config["rope_theta"], config["rms_norm_eps"]
    group = int(config["num_attention_heads"] // config["num_key_value_heads"])
    q_weight, k_weight, v_weight = (
        tensors[f"{prefix}self_attn.{name}_proj.weight"] for name in "qkv"
    )
    q_norm, k_norm = (tensors[f"{prefix}self_attn.{name}_norm.weight"] for name in "qk")
    queries, keys, values = [], [], []
    for position, x in enumerate(normed):
        q, k, v = ((weight @ x).reshape(-1, size) for weight in (q_weight, k_weight, v_weight))
        queries.append([rotate(rms_norm(head, q_norm, eps), position, theta) for head in q])
        keys.append([rotate(rms_norm(head, k_norm, eps), position, theta) for head in k])
        values.append(v)
    outputs = []
    for position, heads in enumerate(queries):
        mixed = []
        for number, query in enumerate(heads):
            scores = np.array(
                [query @ keys[past][number // group] for past in range(position + 1)]
            ) / np.sqrt(size)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            mixed.append(sum(w * values[past][number // group] for past, w in enumerate(weights)))
        outputs.append(tensors[f"{prefix}self_attn.o_proj.weight"] @ np.concatenate(mixed))
    return outputs


def layer(
    tensors: Tensors, prefix: str, xs: list[np.ndarray], config: Mapping[str, float]
) -> list[np.ndarray]:
    eps = config["rms_norm_eps"]
    normed = [rms_norm(x, tensors[f"{prefix}input_layernorm.weight"], eps) for x in xs]
    xs = [x + a for x, a in zip(xs, attention(tensors, prefix, normed, config), strict=True)]
    mlp = (tensors[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    gate_weight, up_weight, down_weight = mlp
    outputs = []
    for x in xs:
        y = rms_norm(x, tensors[f"{prefix}post_attention_layernorm.weight"], eps)
        gate = gate_weight @ y
        outputs.append(x + down_weight @ (gate / (1 + np.exp(-gate)) * (up_weight @ y)))
    return outputs


def reference_logits(
    tensors: Tensors, config: Mapping[str, float], rows: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """(text, audio) rows -> text logits [rows, vocab] and audio logits [rows, audio vocab],
    float64."""
    tensors = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    xs = [
        tensors["model.audio_embed.weight"][audio]
        if text == config["modality_pad_token_id"]
        else tensors["model.embed_tokens.weight"][text]
        for text, audio in rows
    ]
    for i in range(int(config["num_shared_layers"])):
        xs = layer(tensors, f"model.shared_block.layers.{i}.", xs, config)
    logits = []
    for branch in ("text", "audio"):
        states = xs
        for i in range(int(config["num_modality_layers"])):
            states = layer(tensors, f"model.{branch}_block.layers.{i}.", states, config)
        norm = tensors[f"model.{branch}_norm.weight"]
        normed = np.array([rms_norm(x, norm, config["rms_norm_eps"]) for x in states])
        logits.append(normed @ tensors[f"{branch}_lm_head.weight"].T)
    return logits[0], logits[1]
