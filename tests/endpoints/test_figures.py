"""What /metrics tells."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from moss_engine.api.errors import BusyError, TextEmptyError
from moss_engine.api.info import ClusterStats, ReplicaStats
from moss_engine.endpoints.figures import Figures
from tests.endpoints.endpoint_support import MODEL
from tests.ui.page_support import Script, until

DEPLOY = Path(__file__).resolve().parents[2] / "assets" / "deploy"
ASKED = {"model": MODEL, "input": "Hello there.", "response_format": "pcm"}
NAME = re.compile(r"\b(?:moss_speech|process)_\w+")


def read(url: str) -> dict[tuple[str, tuple], float]:
    """Every sample by its name and labels."""
    answer = httpx.get(f"{url}/metrics")
    assert answer.status_code == 200 and "text/plain" in answer.headers["content-type"]
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(samples, name: str, **labels: str) -> float:
    return samples.get((f"moss_speech_{name}", tuple(sorted(labels.items()))), 0.0)


def speak(url: str) -> httpx.Response:
    return httpx.post(f"{url}/v1/audio/speech", json=ASKED)


def test_a_reply_is_counted_with_its_figures(url, service):
    before = read(url)
    assert speak(url).status_code == 200
    assert until(lambda: value(read(url), "listeners") == 0)
    after = read(url)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert grown("replies_total", outcome="stop") == 1
    assert grown("audio_seconds_total") == pytest.approx(service.script.seconds)
    for name in ("queue_wait_seconds", "prefill_seconds", "ttfa_seconds", "rtf"):
        assert grown(f"{name}_count") == 1
    assert grown("chunk_lateness_seconds_count") == 5  # six chunks; the first is never late
    assert 0.01 < grown("ttfa_seconds_sum") < 2


def test_a_gap_is_counted(url, service):
    """The other chunks have half a second each to come in time."""
    service.script = Script(seconds=1.8, chunk_s=0.6, rtf=0.05, stall_s=1.4)
    before = value(read(url), "underruns_total")
    speak(url)
    assert until(lambda: value(read(url), "underruns_total") == before + 1)


def test_who_leaves_early_is_counted_as_such(url, service):
    service.script = Script(seconds=20.0, rtf=0.5)
    assert until(lambda: value(read(url), "listeners") == 0)  # who left before was counted
    before = value(read(url), "replies_total", outcome="cancelled")
    with httpx.stream("POST", f"{url}/v1/audio/speech", json=ASKED) as answer:
        parts = answer.iter_raw()
        next(parts)
        assert value(read(url), "listeners") == 1
    assert until(lambda: value(read(url), "replies_total", outcome="cancelled") == before + 1)
    assert value(read(url), "listeners") == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v1/audio/speech", {**ASKED, "mode": "none"}, 400, "E_MODE"),
        ("POST", "/v1/audio/speech", {**ASKED, "input": "Доброе утро вам"}, 400, "E_LANGUAGE"),
        ("POST", "/v1/audio/speech", {**ASKED, "input": " "}, 400, "E_TEXT_EMPTY"),
        ("GET", "/v1/nothing", None, 404, "not_found"),
        ("GET", "/v1/audio/speech", None, 405, "method_not_allowed"),
        ("GET", "/v1/realtime", None, 400, "no_websocket"),
    ],
)
def test_every_refusal_is_counted_once(url, service, method, path, body, status, code):
    if code == "E_TEXT_EMPTY":
        service.script = Script(error=TextEmptyError("There is nothing to say; type a sentence."))
    before = value(read(url), "refusals_total", code=code)
    answer = httpx.request(method, f"{url}{path}", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert status == 400 or "docs/api.md lists what there is" in error["message"]
    assert answer.headers.get("allow") == ("POST" if status == 405 else None)
    assert value(read(url), "refusals_total", code=code) == before + 1


def test_the_state_of_the_service_is_told(url, service):
    samples = read(url)
    assert value(samples, "ready") == 1 and value(samples, "places", state="max_running") == 4
    assert value(samples, "kv_blocks", state="free") == 984
    service.drained = True
    assert value(read(url), "ready") == 0


def asked_for() -> set[str]:
    """What the dashboard and the alerts name."""
    board = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text(encoding="utf-8"))
    expressions = [t["expr"] for panel in board["panels"] for t in panel["targets"]]
    expressions += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return {name for expression in expressions for name in NAME.findall(expression)}


def test_dashboard_and_alerts_ask_for_what_there_is(url, service):
    speak(url)
    service.script = Script(error=BusyError("All places are taken; try again."))
    speak(url)
    there = {name for name, _ in read(url)}
    assert len(asked_for()) > 10 and not asked_for() - there


def test_replicas_that_are_gone_are_told_no_more():
    figures = Figures()

    def told(cluster: ClusterStats | None) -> str:
        figures.take(cluster)
        return generate_latest(figures.registry).decode()

    assert "moss_speech_replica_replies{" not in told(None)
    a, b = (ReplicaStats(name, "ready", 2, 1, 4, 9) for name in "ab")
    both = told(ClusterStats((a, b), 7, 6, 1))
    assert 'moss_speech_replica_replies{replica="b",state="running"} 2.0' in both
    assert 'moss_speech_replica_kv_blocks{replica="a"} 9.0' in both
    assert 'moss_speech_cluster_replies{what="resumed"} 1.0' in both
    assert 'replica="b"' not in told(ClusterStats((a,), 7, 6, 1))
