"""Fixtures that several test files share."""

from __future__ import annotations

import random
import secrets
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, however slow: what fails on one machine fails on all of them.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

FIRST = "project ui endpoints cluster api".split()
"""Folders whose tests take and wait longest: where several run at a time, these are begun first, so
that at the end there are only short ones to share."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What plays and records in real time beside other tests may fail once; its first failure is
    counted in the summary ("rerun")."""
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
            if "browser" in item.fixturenames:
                item.add_marker(pytest.mark.flaky(reruns=1))
    if hasattr(config, "workerinput"):
        items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    return FIRST.index(folder) if folder in FIRST else len(FIRST)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Threads of a tiny network only wait for each other."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def drawn_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seeds in every run: one in fifty replies of random networks has no sound."""
    monkeypatch.setattr(secrets, "randbelow", random.Random(1).randrange)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete checkpoint folder with random weights; not to be changed (copy it first)."""
    from tests.fixtures.make_tiny_checkpoint import write_checkpoint

    folder = tmp_path_factory.mktemp("checkpoint") / "tiny-random"
    write_checkpoint(folder)
    return folder
