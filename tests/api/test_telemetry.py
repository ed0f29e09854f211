"""No package that the program uses looks anybody up: in a network that consists of this machine and
of a name server that writes down what it is asked."""

import os
import subprocess
import sys
import time

import pytest

NAME_SERVER = """
import socket, threading, time
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("127.0.0.1", 53))
print("ready", flush=True)
def watch():
    while True:
        print("asked", udp.recvfrom(512)[0], flush=True)
threading.Thread(target=watch, daemon=True).start()
"""
LOUD = """
import onnxruntime, importlib.util, pathlib
folder = importlib.util.find_spec("silero_vad").submodule_search_locations[0]
onnxruntime.InferenceSession(str(pathlib.Path(folder) / "data" / "silero_vad_16k_op15.onnx"))
time.sleep(600)
"""
PROGRAM = """
from moss_engine.audio.voice_activity import load_detector
from moss_engine.recogniser.load import load_recogniser
load_detector(), load_recogniser("auto")
import gradio
from moss_engine.ui.server import launch
from moss_engine.ui.config import PageConfig
from tests.ui.page_support import FakeService
launch(FakeService(), PageConfig(port=7860))
print("running", flush=True)
time.sleep(600)
"""
SETTLE = 2.0  # times as long as a loud program takes to ask


def lonely(script: str, tmp_path) -> subprocess.Popen[str]:
    """A program in a network of its own."""
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    inside = (
        f"mount --bind {tmp_path}/resolv.conf /etc/resolv.conf && ip link set lo up && "
        f"exec {sys.executable} -c '{NAME_SERVER}{script}'"
    )
    quiet = ("ORT_DISABLE_TELEMETRY", "GRADIO_ANALYTICS_ENABLED", "HF_HUB_DISABLE_TELEMETRY")
    environment = {name: value for name, value in os.environ.items() if name not in quiet}
    process = subprocess.Popen(
        ["unshare", "-rnm", "bash", "-c", inside],
        env={**environment, "HOME": str(tmp_path), "PYTHONPATH": "."},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        process.kill()
        pytest.skip("this machine gives no network namespaces to its users")
    return process


def until(process: subprocess.Popen[str], word: str) -> list[str]:
    """Its lines up to one that begins with a word."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(word):
            return lines
    raise AssertionError(f"it ended after {lines}")


def test_the_program_looks_nobody_up(tmp_path):
    loud = lonely(LOUD, tmp_path)
    began_s = time.monotonic()
    try:
        assert b"microsoft" in until(loud, "asked")[-1].encode(), "the name server hears nobody"
    finally:
        loud.kill()
    patience_s = SETTLE * (time.monotonic() - began_s)
    program = lonely(PROGRAM, tmp_path)
    try:
        until(program, "running")
        os.set_blocking(program.stdout.fileno(), False)
        time.sleep(patience_s)
        with pytest.raises(BlockingIOError):  # nothing was printed, and nothing has ended
            os.read(program.stdout.fileno(), 1)
        assert program.poll() is None
    finally:
        program.kill()
