"""Programs that others wrote, unchanged in front of this one: an address and a key is all they get.

Those of clients.md. Each is run by a Python that has its package (`--python`, several with commas
between them), or by Node in a folder whose node_modules have it (`--node`), over the program in a
process of its own, whose answers a scripted chat server thinks of; for Node it is served by https
and wss, since the realtime client there speaks to nothing else. Names of models and voices are
those that the packages have built in.

    version   of the package
    works     whether it came to its end; `error` is its last line otherwise
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import soundfile

from moss_engine.config import REPO_ROOT
from scripts.bench.common import Report
from scripts.bench.program import running

LIST = Path(__file__).with_suffix(".md")
SPOKEN = REPO_ROOT / "assets" / "samples" / "good_morning.flac"
LIMIT_S = 120
CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 2 -nodes "
    "-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
).split()


@dataclass(frozen=True)
class Stock:
    """What is done with `package`; RECORDING in it is a WAV file."""

    package: str
    language: str
    code: str


def programs(language: str) -> dict[str, Stock]:
    """Those of clients.md in "python" or "js", by name."""
    found = re.findall(r"## (\w+)\n\n(\S+)\n\n```(\w+)\n(.*?)```", LIST.read_text("utf-8"), re.S)
    return {name: Stock(*parts) for name, *parts in found if parts[1] == language}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--python", default=sys.executable, metavar="PATHS", help="Pythons with the packages"
    )
    parser.add_argument("--node", type=Path, metavar="FOLDER", help="with node_modules")
    parser.add_argument("--port", type=int, default=7872)


def run(args: argparse.Namespace, report: Report) -> None:
    pythons = args.python.split(",")
    with tempfile.TemporaryDirectory() as place, thinking() as brain:
        folder, options = Path(place), ("--brain", brain, "--brain-model", "any")
        recording = folder / "question.wav"
        soundfile.write(recording, *soundfile.read(SPOKEN, dtype="int16"), subtype="PCM_16")
        given = {"OPENAI_API_KEY": "none", "RECORDING": str(recording)}
        environment = {**os.environ, **given}
        environment.pop("PYTHONPATH", None)

        def tell(name: str, found: dict[str, Any]) -> None:
            report.say(f"{name}: {found}")
            report.add(**{name: found})

        with running(args.port, *options) as page:
            environment["OPENAI_BASE_URL"] = f"{page.url}/v1"
            for name, stock in programs("python").items():
                tell(name, by_python(stock, pythons, environment))
        if args.node is None:
            return
        cert, key = folder / "cert.pem", folder / "key.pem"
        subprocess.run([*CERTIFICATE, "-keyout", key, "-out", cert], check=True)
        with running(args.port, *options, "--tls-cert", str(cert), "--tls-key", str(key)) as page:
            environment["OPENAI_BASE_URL"] = f"{page.url}/v1"
            environment["NODE_EXTRA_CA_CERTS"] = str(cert)
            for name, stock in programs("js").items():
                tell(name, by_node(stock, args.node, environment))


def by_python(stock: Stock, pythons: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """How a program ended, in the first Python that has its package."""
    tell = f"import importlib.metadata as m; print(m.version({stock.package!r}))"
    for python in pythons:
        version = subprocess.run([python, "-c", tell], capture_output=True, text=True)
        if version.returncode == 0:
            code = f"import os\nRECORDING = os.environ['RECORDING']\n{stock.code}"
            found = {"package": stock.package, "version": version.stdout.strip()}
            return {**found, **ended([python, "-c", code], environment)}
    return {"package": stock.package, "works": None, "error": "not installed"}


def by_node(stock: Stock, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    about = folder / "node_modules" / stock.package / "package.json"
    version = json.loads(about.read_text(encoding="utf-8"))["version"]
    command = ["node", "--input-type=module", "-e", stock.code]
    found = {"package": f"npm {stock.package}", "version": version}
    return {**found, **ended(command, environment, folder)}


def ended(
    command: list[str], environment: dict[str, str], folder: Path | None = None
) -> dict[str, Any]:
    try:
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return {"works": False, "error": f"no end after {LIMIT_S} s"}
    if done.returncode == 0:
        return {"works": True}
    return {"works": False, "error": (done.stderr.strip().splitlines() or [""])[-1]}


@contextmanager
def thinking() -> Iterator[str]:
    """The address of a chat server that calls the first function it is offered, and repeats what
    came of it; without one it says hello."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            last = asked["messages"][-1]
            delta: dict[str, Any] = {"content": "Hello there."}
            if last["role"] == "tool":
                delta = {"content": last["content"]}
            elif asked.get("tools"):
                name = asked["tools"][0]["function"]["name"]
                call = {"name": name, "arguments": '{"city": "Rome"}'}
                delta = {"tool_calls": [{"index": 0, "id": "call_1", "function": call}]}
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            event = json.dumps({"choices": [{"delta": delta}]})
            self.wfile.write(f"data: {event}\n\ndata: [DONE]\n\n".encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
