"""Fetching the published weights, from a hub on this machine that drops the line."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from moss_engine.api.errors import ConfigError, MossError
from scripts import disk, download
from scripts.download import PARTS

LARGE = bytes(range(256)) * 90_000  # 23 MB: the downloader writes pieces of 10 MB
FILES = {
    "MOSS-Speech": {
        "config.json": b'{"model_type": "moss_speech"}', "tokenizer.json": b"{}",
        "README.md": b"not wanted", "model.safetensors.index.json": b"{}",
        "model-00001-of-00002.safetensors": LARGE,
        "model-00002-of-00002.safetensors": LARGE[:5000], "modeling_moss_speech.py": b"import os",
    },
    "MOSS-Speech-Codec": {
        "config.json": b"{}", "preprocessor_config.json": b"{}", "model.safetensors": LARGE[:1000],
        "flow/config.yaml": b"a: 1", "flow/flow.pt": LARGE[:2000],
        "flow/flow-chunk-5.pt": LARGE[:3000], "flow/flow-chunk-25.pt": LARGE[:3000],
        "flow/hift.pt": LARGE[:400], "flow/campplus.onnx": LARGE[:500],
        "__pycache__/utils.pyc": b"code",
    },
}  # fmt: skip
WANTED = {"MOSS-Speech": 5, "MOSS-Speech-Codec": 7}


class FakeHub(http.server.BaseHTTPRequestHandler):
    """The calls of the hub's interface that a download makes. `drops` counts connections still to
    be cut; the file `spoil` comes with a wrong byte."""

    drops: int
    spoil: str
    ranges: list[str]
    revisions: set[str]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if found := re.fullmatch(r"/api/models/OpenMOSS-Team/([\w-]+)/tree/\w+", path):
            self.answer(json.dumps(listing(found[1])).encode(), "")
        elif found := re.fullmatch(r"/api/models/(OpenMOSS-Team/([\w-]+))/revision/\w+", path):
            sizes = {name: len(content) for name, content in FILES[found[2]].items()}
            files = [{"rfilename": name, "size": size} for name, size in sizes.items()]
            self.answer(json.dumps({"id": found[1], "siblings": files}).encode(), "")
        elif found := re.fullmatch(r"/OpenMOSS-Team/([\w-]+)/resolve/(\w+)/(.+)", path):
            repo, revision, name = found.groups()
            self.revisions.add(revision)
            content = FILES[repo][name]
            self.answer(b"x" + content[1:] if name == self.spoil else content, revision)
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def answer(self, content: bytes, revision: str) -> None:
        start = 0
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            self.ranges.append(wanted[0])
            start = int(wanted[1])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", revision)
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "GET":
            is_cut = len(content) > 1_000_000 and self.drops and not start
            type(self).drops -= bool(is_cut)
            self.wfile.write(content[start : len(content) * 2 // 3 if is_cut else None])
            self.close_connection |= bool(is_cut)

    def log_message(self, *args: object) -> None:
        """Quiet."""


def listing(repo: str) -> list[dict]:
    """The tree of a repository; all but small files are large ones to it."""
    entries = []
    for name, content in FILES[repo].items():
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entries.append({"type": "file", "path": name, "size": len(content), "oid": oid})
        if len(content) > 300:
            digest = hashlib.sha256(content).hexdigest()
            entries[-1]["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 1}
    return entries


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    FakeHub.drops, FakeHub.spoil, FakeHub.ranges, FakeHub.revisions = 0, "", [], set()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeHub) as server:
        serve = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        serve.start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        point_to(address, monkeypatch)
        yield address
        server.shutdown()


def point_to(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As HF_ENDPOINT does before the hub's package is imported."""
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)


def fetch(folder: Path, *options: str) -> None:
    places = ["--model", str(folder / "model"), "--codec", str(folder / "codec")]
    download.main([*places, *options])


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".cache" not in path.parts
    }


@pytest.mark.usefixtures("hub")
def test_what_is_read_comes_whole_and_nothing_else(tmp_path, capsys):
    fetch(tmp_path, "--yes")
    for repo, name in (("MOSS-Speech", "model"), ("MOSS-Speech-Codec", "codec")):
        found = contents(tmp_path / name)
        assert len(found) == WANTED[repo]
        assert found == {name: FILES[repo][name] for name in found}
    assert not list(tmp_path.rglob("*.py")) and not list(tmp_path.rglob("*.pyc"))
    assert FakeHub.revisions == {part.revision for part in PARTS}
    assert all(re.fullmatch("[0-9a-f]{40}", part.revision) for part in PARTS)
    said = capsys.readouterr().out
    places = [said.index(w) for w in ("To fetch: 23.0", "states a licence", "Checking", "doctor")]
    assert places == sorted(places)
    fetch(tmp_path, "--yes")
    said = capsys.readouterr().out
    assert "To fetch: 0.00 MB" in said and said.count("there already") == 12


@pytest.mark.usefixtures("hub")
def test_a_broken_download_goes_on_where_it_stopped(tmp_path):
    FakeHub.drops, place = 1, tmp_path / "model" / "model-00001-of-00002.safetensors"
    for _ in range(3):
        if not place.exists():
            with contextlib.suppress(MossError):  # the hub's package may try again by itself
                fetch(tmp_path, "--yes", "--only", "model")
    assert place.read_bytes() == LARGE
    assert any(not wanted.startswith("bytes=0-") for wanted in FakeHub.ranges)


def test_without_a_yes_nothing_comes(hub, tmp_path):
    """The command, from a mirror that it is given."""
    command = [sys.executable, "-m", "scripts.download", "--model", str(tmp_path / "model")]
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 1 and "add --yes" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "states a licence" in done.stdout and not (tmp_path / "model").exists()


def test_a_network_that_goes_away_is_not_blamed_on_the_owner(monkeypatch, tmp_path):
    words = "check the network and run the command again"
    waits = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", waits.append)
    point_to("http://127.0.0.1:9", monkeypatch)
    with pytest.raises(MossError, match=words):
        fetch(tmp_path, "--yes")
    assert waits == [], "it is not said at once"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(MossError, match=words):
        fetch(tmp_path, "--yes")


@pytest.mark.usefixtures("hub")
def test_a_damaged_file_is_removed_and_named(tmp_path):
    FakeHub.spoil = "flow/hift.pt"
    words = r"hift\.pt in .* came damaged and was removed; run the command again"
    with pytest.raises(MossError, match=words):
        fetch(tmp_path, "--yes", "--only", "codec")
    assert not (tmp_path / "codec/flow/hift.pt").exists()


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_disk_that_takes_no_more_is_not_the_networks_fault(number, tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("huggingface_hub._snapshot_download.hf_hub_download", refuse)
    with pytest.raises(ConfigError, match=r"model cannot be written .*name .*--model"):
        fetch(tmp_path, "--yes")


@pytest.mark.usefixtures("hub")
def test_every_disk_is_asked_for_what_its_own_folder_needs(tmp_path, monkeypatch):
    """Before anything comes."""
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ConfigError, match=r"needs 0\.02 GB more .* and 0\.00 GB are free"):
        fetch(tmp_path, "--yes")
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second disk here")
    free = {True: 1000, False: 10**12}
    usage = lambda path: SimpleNamespace(free=free[path == other])  # noqa: E731
    monkeypatch.setattr(disk.shutil, "disk_usage", usage)
    with pytest.raises(
        ConfigError, match=r"needs 0\.00 GB more in /dev/shm.* and 0\.00 GB are free"
    ):
        fetch(tmp_path, "--yes", "--codec", str(other / "moss-speech-nowhere" / "codec"))
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("hub")
def test_a_repository_that_lacks_a_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.delitem(FILES["MOSS-Speech-Codec"], "flow/hift.pt")
    with pytest.raises(MossError, match=r"offers no file flow/hift\.pt"):
        fetch(tmp_path, "--yes")
