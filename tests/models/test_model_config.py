"""`config.json`: what a checkpoint may leave out, and what it must not say."""

import json

import pytest

from moss_engine.api.errors import CheckpointError
from moss_engine.models.config import PUBLISHED, ModelConfig, assumed

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
    ("changes", "word"),
    [
        ({"eos_token_id": [1, 2]}, "eos_token_id"),
        ({"pad_token_id": 151645}, "equal"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
        ({"sosp_token_id": "left out"}, "sosp_token_id"),
        ({"vocab_size": 151681, "pad_token_id": None}, "pad_token_id"),
    ],
)
def test_contradictions_and_other_vocabularies_are_refused(tmp_path, changes, word):
    with pytest.raises(CheckpointError, match=word):
        read(tmp_path, **changes)


def test_what_is_assumed_can_be_told():
    assert assumed(VALUES) == {}
    found = assumed({**VALUES, "pad_token_id": None, "eos_token_id": [151643, 151645]})
    assert found == {"pad_token_id": 151643, "eos_token_id": 151645}
