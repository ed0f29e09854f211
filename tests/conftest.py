"""Fixtures that several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in every run: what fails on one machine fails on all of them.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Threads of a tiny network only wait for each other."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete checkpoint folder with random weights; not to be changed (copy it first)."""
    from tests.fixtures.make_tiny_checkpoint import write_checkpoint

    folder = tmp_path_factory.mktemp("checkpoint") / "tiny-random"
    write_checkpoint(folder)
    return folder
