"""Files that would hang or exhaust a reader are refused in a sentence."""

import os

import pytest

from moss_engine.api.errors import CheckpointError, EngineFileError
from moss_engine.api.small_files import MAX_BYTES, read_json
from moss_engine.codec.files import read_tensors, read_yaml
from moss_engine.models.tensor_file import read_header

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize("read", [read_json, read_yaml, read_tensors, read_header])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(read, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="pipe"):
        read(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[" * 100_000, "too deeply"),
        (b'{"a": ' * 100_000, "too deeply"),
        (b" " * (MAX_BYTES + 1), "larger than"),
        (b"\xff", "cannot be read"),
        (b"[]", "no JSON object"),
        (b"{", "cannot be read"),
    ],
)
def test_json_that_is_no_small_object_is_refused(data, words, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=words):
        read_json(path)


def test_what_is_missing_is_said_in_the_callers_words(tmp_path):
    with pytest.raises(EngineFileError, match="build it"):
        read_json(tmp_path / "none", missing="Nothing is there; build it.", error=EngineFileError)


@pytest.mark.parametrize(
    "text", [LAUGHS, "a: &a [*a]", "a: " + "[" * 2000, "a: " + "x" * (2 * 1024 * 1024)]
)
def test_yaml_that_stands_for_too_much_is_refused(text, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.yaml"):
        read_yaml(path)
