"""The files of assets/deploy that put replicas on a cluster, as Ray Serve reads them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from moss_engine.config import EngineConfig, TalkConfig
from moss_engine.options import from_values

schema = pytest.importorskip("ray.serve.schema", reason="ray is not installed")
ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "assets" / "deploy"


SERVE = yaml.safe_load((DEPLOY / "serve.yaml").read_text(encoding="utf-8"))
RAY_SERVICE = yaml.safe_load((DEPLOY / "rayservice.yaml").read_text(encoding="utf-8"))["spec"]
IN_RAY_SERVICE = yaml.safe_load(RAY_SERVICE["serveConfigV2"])
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")


@pytest.mark.parametrize("config", [SERVE, IN_RAY_SERVICE], ids=["serve", "rayservice"])
def test_serve_takes_the_configuration_and_the_program_its_options(config):
    assert set(config) <= set(schema.ServeDeploySchema.model_fields), "Serve ignores other names"
    assert set(config["applications"][0]) <= set(schema.ServeApplicationSchema.model_fields)
    (app,) = schema.ServeDeploySchema.model_validate(config).applications
    from moss_engine.cluster.serve.deployment import NAME

    assert app.name == NAME and app.import_path == "moss_engine.cluster.serve.deployment:app"
    known = {field.name for field in fields(TalkConfig)}
    values = {k: v for k, v in app.args.items() if k not in ("replicas", "actor_options")}
    from_values(TalkConfig, {k: v for k, v in values.items() if k in known})
    from_values(EngineConfig, {k: v for k, v in values.items() if k not in known})


def test_the_image_sets_for_ray_what_the_program_does():
    from moss_engine.cluster.serve.connect import SETTINGS

    words = " ".join(re.findall(r"^ENV (.*)$", CONTAINERFILE, re.MULTILINE)).split()
    assert SETTINGS.items() <= dict(word.split("=", 1) for word in words).items()


def test_the_version_of_ray_is_the_one_that_is_installed():
    locked = (ROOT / "uv.lock").read_text(encoding="utf-8")
    found = re.search(r'^name = "ray"\nversion = "(\S+)"', locked, re.MULTILINE)
    assert found is not None and RAY_SERVICE["rayClusterConfig"]["rayVersion"] == found[1]


def test_a_worker_has_what_its_replica_asks_for():
    (app,) = IN_RAY_SERVICE["applications"]
    (group,) = RAY_SERVICE["rayClusterConfig"]["workerGroupSpecs"]
    (worker,) = group["template"]["spec"]["containers"]
    asked, limits = app["args"]["actor_options"], worker["resources"]["limits"]
    assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert app["args"]["replicas"] * asked["num_gpus"] <= group["replicas"] * int(
        limits["nvidia.com/gpu"]
    )
    assert asked["num_cpus"] <= int(limits["cpu"])
    # KubeRay's own probe of a worker asks for a proxy, which does not run.
    assert IN_RAY_SERVICE["proxy_location"] == "Disabled"
    assert worker["readinessProbe"]["httpGet"]["path"] == "/api/healthz"


def test_the_program_starts_from_what_the_image_copies(tmp_path):
    for line in re.findall(r"^COPY (.+)$", CONTAINERFILE, re.MULTILINE):
        *sources, target = line.split()
        for source in sources:
            to = tmp_path / source if target == "./" else tmp_path / target
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, to, dirs_exist_ok=True)
            else:
                shutil.copy(ROOT / source, to)
    (command,) = re.findall(r"^CMD (.+)$", CONTAINERFILE, re.MULTILINE)
    _, *arguments = json.loads(command)
    code = "import app; from moss_engine.serve import parse_configs as p; print(p()[0].checkpoint)"
    assert arguments.pop(0) == "app.py"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    run = [sys.executable, "-c", code, *arguments]
    told = subprocess.check_output(run, cwd=tmp_path, env=environment, text=True).strip()
    assert Path(told).is_dir() and Path(told).is_relative_to(tmp_path)
