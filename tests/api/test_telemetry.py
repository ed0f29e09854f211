"""No package that the program uses looks anybody up: in a network that consists of this machine and
of a name server that writes down what it is asked."""

import os
import subprocess
import sys

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
PROGRAM = """
from moss_engine.audio.voice_activity import load_detector
from moss_engine.recogniser.load import load_recogniser
load_detector(), load_recogniser("auto")
asks_s = time.monotonic() + 9  # ONNX Runtime, where it is left to itself, asks after eight
import gradio
from moss_engine.ui.server import launch
from moss_engine.ui.config import PageConfig
from tests.ui.page_support import FakeService
launch(FakeService(), PageConfig(port=7860))
time.sleep(max(1, asks_s - time.monotonic()))
try:
    socket.getaddrinfo("the-end.invalid", 80)
except OSError as error:
    print("nobody answers", error, flush=True)
"""


def lonely(script: str, tmp_path) -> subprocess.Popen[str]:
    """A program in a network of its own."""
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
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


def test_the_program_looks_nobody_up(tmp_path):
    program = lonely(PROGRAM, tmp_path)
    try:
        asked = [line for line in program.stdout if line.startswith("asked")]
    finally:
        program.kill()
    assert asked, "the name server heard nobody, not even the program's own last question"
    assert all("the-end" in line for line in asked), asked
