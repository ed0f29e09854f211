"""Sound of the conversation as files."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from gradio.utils import is_allowed_file

from moss_engine.ui.conversation import NAME, cut_clip, write_clip
from tests.ui.page_support import no_room

TONE = (8000 * np.sin(np.arange(2400) / 10)).astype(np.int16)


def test_gradios_look_at_a_clip_makes_no_name_that_python_has_to_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clip, interned, intern = write_clip(tmp_path, TONE, 24_000), set[str](), sys.intern

    def noted(name: str) -> str:
        interned.add(name)
        return intern(name)

    monkeypatch.setattr(sys, "intern", noted)
    is_allowed_file(clip.path, [tmp_path / "kept"], [], [tmp_path])
    monkeypatch.undo()
    assert NAME in interned
    assert clip.path.parent.name in interned
    assert {name for name in interned if name.lower() == clip.path.parent.name.lower()} == {
        clip.path.parent.name
    }


def test_what_was_heard_of_a_clip_is_a_file_of_another_name(tmp_path: Path):
    clip = write_clip(tmp_path, TONE, 24_000)
    heard = cut_clip(clip, 1200)
    assert heard is not None
    assert heard.path != clip.path
    assert heard.seconds == pytest.approx(0.05)
    assert cut_clip(clip, 0) is None


def test_a_clip_for_which_there_is_no_room_leaves_nothing(tmp_path: Path):
    with no_room(), pytest.raises(OSError, match="File too large"):
        write_clip(tmp_path, TONE, 24_000)
    assert list(tmp_path.iterdir()) == []
