"""What a started service on a CPU leaves unloaded: PyTorch's compiler takes 75 MB and seconds."""

from __future__ import annotations

import subprocess
import sys

from moss_engine.config import REPO_ROOT

BUILD = """
import sys
from moss_engine.build import build_service
from moss_engine.config import EngineConfig
build_service(EngineConfig(device="cpu"))
print(sorted({"sympy", "torch._dynamo", "torch._inductor"} & sys.modules.keys()))
"""


def test_building_the_service_loads_no_compiler() -> None:
    command = [sys.executable, "-c", BUILD]
    done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
