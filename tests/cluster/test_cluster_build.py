"""What the options ask for, and what cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from moss_engine.api.errors import ConfigError, MissingPackageError
from moss_engine.build import settled
from moss_engine.cluster.build import open_fleet
from moss_engine.cluster.fingerprint import fingerprint
from moss_engine.config import ClusterConfig, EngineConfig, TalkConfig
from moss_engine.options import from_values
from tests.cluster.cluster_support import INFO


def test_without_ray_the_option_says_what_to_install(monkeypatch):
    monkeypatch.setattr("moss_engine.cluster.build.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'ray\[serve\]"):
        open_fleet(EngineConfig(), TalkConfig(), ClusterConfig(replicas=2))


def test_a_cluster_is_started_or_joined():
    with pytest.raises(ConfigError, match="give one of them"):
        open_fleet(EngineConfig(), TalkConfig(), ClusterConfig(replicas=2, ray_address="auto"))
    assert not ClusterConfig().is_wanted and ClusterConfig(replicas=1).is_wanted


def test_options_of_a_file_are_those_of_the_program(tmp_path):
    config = from_values(EngineConfig, {"checkpoint": str(tmp_path), "max_sessions": 7})
    assert (config.checkpoint, config.max_sessions) == (tmp_path, 7)
    with pytest.raises(ConfigError, match="no option max_session;"):
        from_values(EngineConfig, {"max_session": 7})


def test_replicas_of_other_weights_or_numbers_are_told_apart(tmp_path):
    (tmp_path / "codec").mkdir()
    weights = tmp_path / "codec" / "weights.bin"
    weights.write_bytes(b"a" * 9000)
    before = fingerprint(INFO, [tmp_path])
    assert fingerprint(INFO, [tmp_path]) == before
    other = replace(INFO, runtime=replace(INFO.runtime, dtype="bfloat16"))
    assert fingerprint(other, [tmp_path]) != before
    weights.write_bytes(b"a" * 8999 + b"b")
    assert fingerprint(INFO, [tmp_path]) != before


def test_replicas_on_a_cpu_do_not_choose_their_number_format_themselves(monkeypatch):
    chosen = iter(["int8", torch.float32])
    monkeypatch.setattr("moss_engine.build.resolve_dtype", lambda config, device: next(chosen))
    config = EngineConfig(device="cpu")
    assert [settled(config).dtype, settled(config).dtype] == ["int8", "float32"]
    assert settled(replace(config, dtype="float32")).dtype == "float32"
