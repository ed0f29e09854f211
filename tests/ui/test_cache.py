"""Visitors' sound is gone with the process, however that ends."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from moss_engine.api.errors import ConfigError
from moss_engine.ui.entrance import cache

HOLD = """
import sys
from moss_engine.ui.entrance.cache import make_cache
folder = make_cache()
(folder / "sound.wav").write_bytes(b"RIFF")
print(folder, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_a_killed_process_left_is_removed_at_the_next_start(temporary):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    (folder,) = [process.stdout.readline().strip()]
    cache.remove_left_behind(temporary)
    assert os.listdir(folder), "it is in use"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert os.listdir(folder)
    cache.remove_left_behind(temporary)
    assert not os.path.exists(folder)


def test_folders_of_others_stay(temporary):
    (temporary / "moss-speech-mine").mkdir()
    (temporary / "other").mkdir()
    cache.remove_left_behind(temporary)
    assert sorted(os.listdir(temporary)) == ["moss-speech-mine", "other"]


def test_without_a_place_for_files_the_remedy_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="TMPDIR"):
        cache.make_cache()
