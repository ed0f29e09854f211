"""Fetching the published weights, from a hub on this machine that drops the line."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from moss_engine.api.errors import ConfigError, MossError
from scripts import download
from scripts.download import PARTS, Part, RemoteFile, is_complete, wanted_files

ROOT = Path(__file__).resolve().parents[2]
LARGE = bytes(range(256)) * 90_000  # 23 MB: the downloader writes pieces of 10 MB
FILES = {
    "MOSS-Speech": {
        "config.json": b'{"model_type": '
                       b'"moss_speech"}', "tokenizer.json": b"{}", "README.md": b"not wanted",
        "model.safetensors.index.json": b"{}", "model-00001-of-00002.safetensors": LARGE,
        "model-00002-of-00002.safetensors": LARGE[:5000], "modeling_moss_speech.py": b"import os",
    },
    "MOSS-Speech-Codec": {
        "config.json": b"{}", "preprocessor_config.json": b"{}", "model.safetensors": LARGE[:1000],
        "flow/config.yaml": b"a: 1", "flow/flow.pt": LARGE[:2000],
        "flow/flow-chunk-5.pt": LARGE[:3000],
        "flow/flow-chunk-25.pt": LARGE[:3000], "flow/hift.pt": LARGE[:400],
        "flow/campplus.onnx": LARGE[:500],
        "__pycache__/utils.pyc": b"code",
    },
}  # fmt: skip
WANTED = {"MOSS-Speech": 5, "MOSS-Speech-Codec": 8}


class FakeHub(http.server.BaseHTTPRequestHandler):
    """The two calls of the hub's interface that a download makes. `drops` counts connections still
    to be cut."""

    drops = 0
    ranges: list[str]
    revisions: set[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if found := re.fullmatch(r"/api/models/OpenMOSS-Team/([\w-]+)/revision/(\w+)", path):
            self.answer(json.dumps(listing(*found.groups())).encode(), "application/json")
        elif found := re.fullmatch(r"/OpenMOSS-Team/([\w-]+)/resolve/(\w+)/(.+)", path):
            repo, revision, name = found.groups()
            type(self).revisions.add(revision)
            self.send_file(FILES[repo][name], revision)
        else:
            self.send_error(404)

    def send_file(self, content: bytes, revision: str) -> None:
        start = 0
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            type(self).ranges.append(wanted[0])
            start = int(wanted[1])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", revision)
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if len(content) > 1_000_000 and type(self).drops and not start:
            type(self).drops -= 1
            self.wfile.write(content[: len(content) * 2 // 3])
            self.close_connection = True
            return
        self.wfile.write(content[start:])

    def answer(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        """Quiet."""


def listing(repo: str, revision: str) -> dict:
    siblings = [
        {
            "rfilename": name,
            "size": len(content),
            "blobId": "0" * 40,
            **(
                {
                    "lfs": {
                        "sha256": hashlib.sha256(content).hexdigest(),
                        "size": len(content),
                        "pointerSize": 1,
                    }
                }
                if len(content) > 300
                else {}
            ),
        }
        for name, content in FILES[repo].items()
    ]
    return {
        "id": f"OpenMOSS-Team/{repo}",
        "modelId": f"OpenMOSS-Team/{repo}",
        "sha": revision,
        "siblings": siblings,
        "private": False,
        "tags": [],
        "downloads": 0,
        "likes": 0,
    }


@pytest.fixture
def hub():
    FakeHub.drops, FakeHub.ranges, FakeHub.revisions = 0, [], set()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeHub) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def run(endpoint: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "scripts.download",
        "--model",
        str(folder / "model"),
        "--codec",
        str(folder / "codec"),
        *arguments,
    ]
    environment = {
        "HF_ENDPOINT": endpoint,
        "PATH": "",
        "HOME": str(folder),
        "HF_HUB_DOWNLOAD_TIMEOUT": "5",
        "HF_HUB_DISABLE_XET": "1",
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        stdin=subprocess.DEVNULL,
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".cache" not in path.parts
    }


def test_what_is_read_comes_whole_and_nothing_else(hub, tmp_path):
    done = run(hub, tmp_path, "--yes")
    assert done.returncode == 0, done.stderr
    for repo, name in (("MOSS-Speech", "model"), ("MOSS-Speech-Codec", "codec")):
        found = contents(tmp_path / name)
        assert len(found) == WANTED[repo] and found == {
            n: c for n, c in FILES[repo].items() if n in found
        }
    assert not list(tmp_path.rglob("*.py")) and not list(tmp_path.rglob("*.pyc"))
    assert FakeHub.revisions == {part.revision for part in PARTS}
    said = done.stdout
    assert (
        said.index("To fetch: 23.0")
        < said.index("states a licence")
        < said.index("Checking")
        < said.index("doctor")
    )

    again = run(hub, tmp_path, "--yes")
    assert (
        again.returncode == 0
        and "To fetch: 0.00 MB" in again.stdout
        and again.stdout.count("there already") == 13
    )


def test_a_broken_download_goes_on_where_it_stopped(hub, tmp_path):
    FakeHub.drops = 1
    for _ in range(3):
        done = run(hub, tmp_path, "--yes", "--only", "model")
        if done.returncode == 0:
            break
        assert "run the command again" in done.stderr
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "model")["model-00001-of-00002.safetensors"] == LARGE
    assert any(not wanted.startswith("bytes=0-") for wanted in FakeHub.ranges), (
        "it began again from the start"
    )


def test_a_network_that_goes_away_is_not_blamed_on_the_owner(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(MossError, match="check the network and run the command again"):
        download.HuggingFace().fetch("OpenMOSS-Team/MOSS-Speech", "f" * 40, "a.bin", tmp_path)


def test_a_place_that_takes_no_files_is_named_with_the_option(hub, tmp_path):
    (tmp_path / "model").write_text("a file")
    done = run(hub, tmp_path, "--yes")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"{tmp_path / 'model'} cannot be written (" in done.stderr
    assert "--model" in done.stderr and "network" not in done.stderr


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_a_disk_that_takes_no_more_is_not_the_networks_fault(number, tmp_path):
    def write() -> None:
        raise OSError(number, os.strerror(number), str(tmp_path))

    class Full(Shelf):
        def fetch(self, repo: str, revision: str, name: str, folder: Path) -> None:
            download.HuggingFace()._try(write, repo)

    with pytest.raises(ConfigError, match=r"MOSS-Speech cannot be written .*name .*--model"):
        download.download(Full(), parts(tmp_path), "x", lambda _: True)


def test_every_disk_is_asked_for_what_its_own_folder_needs(tmp_path, monkeypatch):
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second disk here")

    def usage(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=1000 if path == other else 10**12)

    monkeypatch.setattr(download.shutil, "disk_usage", usage)
    model, codec = parts(tmp_path)
    codec = dataclasses.replace(codec, folder=other / "moss-speech-nowhere" / "codec")
    with pytest.raises(ConfigError, match=r"/dev/shm has 0\.00 MB free and 0\.0. MB are needed"):
        download.download(Shelf(), (model, codec), "x", lambda _: False)


def test_without_a_yes_nothing_comes(hub, tmp_path):
    done = run(hub, tmp_path)
    assert done.returncode == 1 and "add --yes" in done.stderr and "states a licence" in done.stdout
    assert not (tmp_path / "model").exists() and "Traceback" not in done.stderr


def test_a_hub_out_of_reach_is_one_sentence(tmp_path):
    done = run("http://127.0.0.1:9", tmp_path, "--yes")
    assert (
        done.returncode == 1
        and "check the network" in done.stderr
        and "Traceback" not in done.stderr
    )


class Shelf:
    """A hub as a dict; `spoil` names a file that comes with a wrong byte."""

    def __init__(self, spoil: str | None = None) -> None:
        self.spoil, self.fetched = spoil, []

    def list_files(self, repo: str, revision: str) -> list[RemoteFile]:
        return [
            RemoteFile(
                name,
                len(content),
                hashlib.sha256(content).hexdigest() if len(content) > 300 else None,
            )
            for name, content in FILES[repo.partition("/")[2]].items()
        ]

    def fetch(self, repo: str, revision: str, name: str, folder: Path) -> None:
        content = FILES[repo.partition("/")[2]][name]
        self.fetched.append(name)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x" + content[1:] if name == self.spoil else content)


def parts(folder: Path) -> tuple[Part, ...]:
    return tuple(Part(p.name, p.revision, folder / p.name, p.patterns) for p in PARTS)


def test_a_damaged_file_is_removed_and_named(tmp_path):
    with pytest.raises(
        MossError, match=r"flow\.pt came damaged and was removed; run the command again"
    ):
        download.download(Shelf(spoil="flow/flow.pt"), parts(tmp_path), "x", lambda _: True)
    assert not (tmp_path / "MOSS-Speech-Codec/flow/flow.pt").exists()
    shelf = Shelf()
    assert download.download(shelf, parts(tmp_path), "x", lambda _: True)
    assert (
        "model-00001-of-00002.safetensors" not in shelf.fetched and "flow/flow.pt" in shelf.fetched
    )


def test_no_is_no(tmp_path):
    shelf = Shelf()
    assert not download.download(shelf, parts(tmp_path), "x", lambda _: False)
    assert not shelf.fetched and not list(tmp_path.iterdir())


def test_too_little_space_is_said_before_anything_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    shelf = Shelf()
    with pytest.raises(ConfigError, match=r"0\.00 MB free and 23\.0. MB are needed"):
        download.download(shelf, parts(tmp_path), "x", lambda _: True)
    assert not shelf.fetched


def test_a_repository_that_lacks_a_file_is_refused():
    offered = [
        file for file in Shelf().list_files("x/MOSS-Speech-Codec", "") if "hift" not in file.name
    ]
    with pytest.raises(MossError, match="hift"):
        wanted_files(PARTS[1], offered)


def test_revisions_are_pinned():
    assert all(re.fullmatch("[0-9a-f]{40}", part.revision) for part in PARTS)
    assert all(part.folder.is_relative_to(download.CHECKPOINTS) for part in PARTS)


def test_a_file_of_another_size_is_not_complete(tmp_path):
    (tmp_path / "a").write_bytes(b"12")
    assert is_complete(RemoteFile("a", 2, None), tmp_path) and not is_complete(
        RemoteFile("a", 3, None), tmp_path
    )
