"""The network against an independent one, and the configurations that are read or refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from moss_engine.api.errors import CheckpointError
from moss_engine.models.checkpoint import FILE_NAME, save_tensors
from moss_engine.models.config import PUBLISHED, ModelConfig
from moss_engine.models.network import MossSpeech, causal_attend, load_model
from tests.fixtures.golden import make as golden
from tests.fixtures.make_tiny_checkpoint import make_config, make_tensors, make_tokenizer


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return make_config(make_tokenizer().get_vocab_size())


@pytest.fixture(scope="module")
def tensors(config: ModelConfig) -> dict[str, torch.Tensor]:
    return make_tensors(config)


@pytest.fixture(scope="module")
def model(config: ModelConfig, tensors: dict[str, torch.Tensor]) -> MossSpeech:
    model = MossSpeech(config).requires_grad_(False)
    model.load_state_dict(tensors, strict=True)
    return model


def logits_of(model: MossSpeech, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    states = model(torch.from_numpy(rows), torch.arange(len(rows)), causal_attend)
    return model.text_lm_head(states.text), model.audio_lm_head(states.audio)


def test_network_gives_the_golden_logits(model: MossSpeech) -> None:
    wanted = golden.make()
    text, audio = logits_of(model, wanted["rows"])
    np.testing.assert_allclose(text.numpy(), wanted["text"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(audio.numpy(), wanted["audio"], rtol=1e-4, atol=1e-4)


def test_the_channel_that_does_not_count_never_enters(
    config: ModelConfig, model: MossSpeech
) -> None:
    rows = np.array(golden.golden_rows())
    other = rows.copy()
    is_audio = rows[:, 0] == config.modality_pad_token_id
    other[~is_audio, 1] = 10**6  # far outside the table: not even looked up
    for ours, theirs in zip(logits_of(model, rows), logits_of(model, other), strict=True):
        assert torch.equal(ours, theirs)


def test_load_model_keeps_the_checkpoint_values(
    tiny_checkpoint: Path, tensors: dict[str, torch.Tensor]
) -> None:
    model = load_model(tiny_checkpoint)
    name = "model.shared_block.layers.1.mlp.up_proj.weight"
    weight = model.state_dict()[name]
    assert (
        weight.device.type == "cpu" and weight.dtype == torch.float32 and not weight.requires_grad
    )
    step = tensors[name].abs().amax(1, keepdim=True) / 127
    assert ((weight - tensors[name]).abs() <= 0.51 * step).all()  # the nearest of 255 values
    assert (
        load_model(tiny_checkpoint, dtype=torch.bfloat16).text_lm_head.weight.dtype
        == torch.bfloat16
    )


@pytest.mark.parametrize(
    ("head", "table"),
    [
        ("text_lm_head.weight", "model.embed_tokens.weight"),
        ("audio_lm_head.weight", "model.audio_embed.weight"),
    ],
)
def test_tied_head_is_refused(
    head: str, table: str, tiny_checkpoint: Path, tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    save_tensors(tmp_path / FILE_NAME, {**tensors, head: tensors[table].clone()})
    shutil.copy(tiny_checkpoint / "config.json", tmp_path)
    with pytest.raises(CheckpointError, match=f"{head} equals {table}.*untied"):
        load_model(tmp_path)


VALUES = {
    "model_type": "moss_speech",
    "num_hidden_layers": 36,
    **{name: getattr(PUBLISHED, name) for name in PUBLISHED.__dataclass_fields__},
}


def read(tmp_path, **changes):
    values = {k: v for k, v in {**VALUES, **changes}.items() if v != "left out"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    return ModelConfig.from_file(tmp_path / "config.json")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pad_token_id": "left out"},
        {"pad_token_id": None, "audio_pad_token_id": "left out"},
        {"eos_token_id": [151645, 151643]},
        {"eos_token_id": "left out"},
        {"rope_scaling": {}},
        {"rope_scaling": None},
    ],
)
def test_what_the_published_vocabulary_settles_may_be_left_out(tmp_path, changes):
    assert read(tmp_path, **changes) == PUBLISHED


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_theta": None}, "rope_theta is missing"),
        ({"rope_theta": "1e6"}, "rope_theta is missing or not a number"),
        ({"hidden_size": -32}, "hidden_size must be positive"),
        ({"hidden_size": 1 << 30}, "hidden_size is above"),
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"num_hidden_layers": 4}, "num_hidden_layers"),
        ({"eosp_token_id": 40_000}, "eosp_token_id lies outside"),
        ({"sosp_token_id": 151645}, "two of the special text ids are equal"),
        ({"sosp_token_id": "left out"}, "sosp_token_id"),
        ({"eos_token_id": [1, 2]}, "eos_token_id"),
        ({"vocab_size": 151681, "pad_token_id": None}, "pad_token_id"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
        ({"model_type": "qwen3"}, "model_type"),
    ],
)
def test_contradictions_and_other_networks_are_refused(tmp_path, changes, words):
    with pytest.raises(CheckpointError, match=words):
        read(tmp_path, **changes)
