"""The start and the end of the program, and the folder for visitors' sound between them."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile

import pytest

from moss_engine.api.errors import ConfigError
from moss_engine.ui.entrance import process as process_of
from moss_engine.ui.entrance.process import BROKEN_OFF, breakable

HOLD = """
import sys
from moss_engine.ui.entrance.process import make_cache
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
    process_of.remove_left_behind(temporary)
    assert os.listdir(folder), "it is in use"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert os.listdir(folder)
    process_of.remove_left_behind(temporary)
    assert not os.path.exists(folder)


def test_folders_of_others_stay(temporary):
    (temporary / "moss-speech-mine").mkdir()
    (temporary / "other").mkdir()
    process_of.remove_left_behind(temporary)
    assert sorted(os.listdir(temporary)) == ["moss-speech-mine", "other"]


def test_without_a_place_for_files_the_remedy_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="TMPDIR"):
        process_of.make_cache()


def swallowed() -> None:
    """As by a library that takes it for a fault of its own."""
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def start(reached: list[str], fault: Exception | None = None) -> None:
    with breakable() as check:
        check()
        swallowed()
        reached.append("behind the press")
        if fault:
            raise fault
        check()
        reached.append("behind the check")


def only_pressed() -> None:
    with breakable():
        swallowed()


def test_a_swallowed_interrupt_ends_the_start_at_the_next_check():
    reached: list[str] = []
    with pytest.raises(SystemExit) as ended:
        start(reached)
    assert ended.value.code == BROKEN_OFF and reached == ["behind the press"]


def test_a_swallowed_interrupt_ends_the_start_behind_the_block():
    with pytest.raises(SystemExit) as ended:
        only_pressed()
    assert ended.value.code == BROKEN_OFF


def test_what_fails_after_an_interrupt_is_no_fault():
    with pytest.raises(SystemExit) as ended:
        start([], ImportError("partially initialised"))
    assert ended.value.code == BROKEN_OFF


def test_without_an_interrupt_nothing_changes():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ImportError), breakable():
        raise ImportError("missing")
    with breakable() as check:
        check()
    assert signal.getsignal(signal.SIGINT) is before


STARTING = """
import os, signal
from moss_engine.ui.entrance.process import breakable, make_cache
with breakable():
    print(make_cache(), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_sigterm_before_anybody_waits_for_it_leaves_no_folder(temporary):
    ended = subprocess.run(
        [sys.executable, "-c", STARTING],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert ended.returncode == 128 + signal.SIGTERM
    assert not os.path.exists(ended.stdout.strip())
