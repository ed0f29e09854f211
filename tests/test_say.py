"""`moss-say`: the file holds what the service made, and what goes wrong is a sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from moss_engine import say
from moss_engine.api.errors import (
    ConfigError,
    ForeignTextError,
    MossError,
    ParameterError,
    UnsupportedModeError,
)
from moss_engine.api.events import FinishReason
from moss_engine.api.modes import Mode
from moss_engine.api.request import Request, Sampling, Speech, Text
from moss_engine.api.service import hear, request_of
from moss_engine.audio.file import read_audio
from moss_engine.audio.pcm import write_wav
from moss_engine.text.language import check_language
from tests.fakes import GREEDY
from tests.service.service_support import served
from tests.ui import page_support

SPEAK = Mode("speech", "Speech", "text", "speech", "", False, True, None)
LISTEN = Mode("listen", "Listen", "speech", "speech", "", False, False, None, own_system=True)
WRITE = Mode("text", "Write", "text", "text", "", False, False, None)
INFO = dataclasses.replace(
    page_support.INFO,
    modes=(SPEAK, LISTEN, WRITE),
    sampling=Sampling(text=GREEDY, audio=GREEDY, max_rows=32, min_rows=0, seed=0),
    voices=("plain",),
)


@pytest.fixture
def service():
    with served(info=INFO) as service:
        yield service


def asking(content, mode: Mode, **options) -> Request:
    return request_of(INFO, content, "say", mode=mode.name, **options)


async def test_the_file_holds_what_was_spoken(service, tmp_path, capsys):
    request = asking(Text("hello"), SPEAK, seed=7)
    metrics, reason = await say.speak(service, request, tmp_path / "a.wav")
    assert request.mode == "speech" and request.sampling.seed == 7
    assert reason is FinishReason.STOP
    assert capsys.readouterr().out == "ab\n"
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        pcm = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
    expected = np.repeat(np.array([7, 8, 9], dtype=np.float32) / 100, 960)
    assert np.abs(pcm / 32767 - expected).max() < 1e-4
    assert metrics.audio_s == pytest.approx(3 * 960 / 24_000)
    named = {line.split()[0] for line in say.table(metrics).splitlines()}
    known = dataclasses.asdict(metrics).items()
    assert {"ttfa_ms", "rtf"} <= named == {name for name, value in known if value is not None}


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/dev/full", r"cannot be written \(No space left on device\); name another file"),
        ("/missing/a.wav", r"cannot be written \(No such file or directory\); name another file"),
    ],
)
async def test_a_full_disk_and_a_folder_that_is_not_there_are_named(service, path, sentence):
    if path == "/dev/full" and not Path(path).exists():
        pytest.skip("this system has no disk that is always full")
    with pytest.raises(MossError, match=f"{path} {sentence} with --out"):
        await say.speak(service, asking(Text("hello"), SPEAK), Path(path))


async def test_text_that_nobody_takes_is_no_fault_of_the_file(service, tmp_path, monkeypatch):
    read_end, write_end = os.pipe()
    os.close(read_end)
    with contextlib.suppress(BrokenPipeError), os.fdopen(write_end, "w") as unread:
        monkeypatch.setattr("sys.stdout", unread)
        with pytest.raises(ConfigError, match=r"Standard output takes no text \(Broken pipe\)"):
            await say.speak(service, asking(Text("hello"), SPEAK), tmp_path / "a.wav")


async def test_what_is_refused_leaves_the_file_as_it_was(service, tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(b"of before")
    with pytest.raises(MossError, match="send a shorter text"):
        await say.speak(service, asking(Text("hello " * 2000), SPEAK), path)
    assert path.read_bytes() == b"of before"


@pytest.mark.parametrize(
    ("name", "hears", "speaks", "expected"),
    [
        (None, False, True, "speech"),
        (None, True, True, "listen"),
        ("speech", False, True, "speech"),
        ("text", False, False, "text"),
    ],
)
def test_the_mode_follows_from_what_is_given(name, hears, speaks, expected):
    assert say.choose_mode(INFO, name, hears=hears, speaks=speaks).name == expected


@pytest.mark.parametrize(
    ("name", "hears", "speaks", "error", "sentence"),
    [
        ("speech", True, True, ConfigError, "not --speech"),
        ("listen", False, True, ConfigError, "with --speech"),
        ("text", False, True, ConfigError, "omit --out"),
        ("nothing", False, True, UnsupportedModeError, "choose one of speech, listen, text"),
    ],
)
def test_a_mode_that_does_not_fit_is_refused(name, hears, speaks, error, sentence):
    with pytest.raises(error, match=sentence):
        say.choose_mode(INFO, name, hears=hears, speaks=speaks)


def test_a_checkpoint_without_ears_says_what_has_them():
    deaf = dataclasses.replace(INFO, modes=(SPEAK, WRITE))
    with pytest.raises(UnsupportedModeError, match=r"scripts\.download"):
        say.choose_mode(deaf, None, hears=True, speaks=True)


async def test_a_recording_is_answered(service, tmp_path):
    write_wav(tmp_path / "question.wav", np.full(24_000, 3277, np.int16), 24_000)
    content = await hear(service, *read_audio(tmp_path / "question.wav"))
    assert content == Speech((10,) * 25)
    request = asking(content, LISTEN, system="Be brief.")
    assert [message.role for message in request.messages] == ["system", "user"]
    metrics, reason = await say.speak(service, request, tmp_path / "answer.wav")
    assert reason is FinishReason.STOP and metrics.audio_s > 0
    args = say.parse(["hello", "--system", "Be brief."])[0]
    with pytest.raises(ParameterError, match="--system"):
        await say.answer(service, args)


async def test_text_needs_no_file(service, capsys):
    _, reason = await say.speak(service, asking(Text("hello"), WRITE), None)
    assert reason is FinishReason.STOP and capsys.readouterr().out == "ab\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "either a text or a recording"),
        (["hi", "--speech", "a.wav"], "either a text or a recording"),
        (["hi", "--out", "-"], "name one with --out"),
        (["hi", "--out", "a.MP3"], r"a\.MP3 would hold a WAV file; let its name end in \.wav"),
        (["--speech", "/missing.wav"], r"There is no file /missing\.wav; name a recording"),
    ],
)
def test_what_cannot_be_meant_is_named_before_anything_is_loaded(arguments, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        say.main([*arguments, "--checkpoint", str(tmp_path)])


async def test_a_text_that_the_voice_cannot_read_is_said_before_it_tries(service):
    french = "Je ne sais pas où est la gare."
    with pytest.raises(ForeignTextError, match=r"looks like French.*--anyway"):
        await say.answer(service, say.parse([french])[0])
    check_language(SPEAK, "I do not know where the station is.", "no")
    own_words = dataclasses.replace(SPEAK, spell_out=False)  # MOSS-Speech speaks Chinese, too
    check_language(own_words, "今天天气很好。", "no")


def test_too_few_files_are_a_sentence():
    code = "from moss_engine import programs; programs.say()"
    limited = ["bash", "-c", 'ulimit -n 32; exec "$0" -c "$1"', sys.executable, code]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1) and "ulimit -n" in done.stderr


def test_ctrl_c_while_a_program_is_loaded_is_no_traceback():
    """Most of its first moments are the import of the package itself."""
    code = (
        "import importlib, signal, time; from moss_engine import programs;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"  # whoever runs the tests
        "importlib.import_module = lambda _: (signal.raise_signal(signal.SIGINT), time.sleep(9));"
        "programs.say()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")
