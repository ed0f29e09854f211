"""Start a Ray cluster on this machine, or join one that is running."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import socket
import tempfile
from pathlib import Path

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve import Application
from ray.serve.exceptions import RayServeException

from moss_engine.api.errors import ConfigError
from moss_engine.cluster.serve.deployment import NAME, application
from moss_engine.cluster.serve.handle import HandleFleet
from moss_engine.config import EngineConfig, TalkConfig

REPO_ROOT = Path(__file__).resolve().parents[3]
CONNECT_S = 1.0
STORE_BYTES = 200 * 1024 * 1024
"""Size of Ray's object store; nothing here is large enough to go there."""
SETTINGS = {
    "RAY_max_direct_call_object_size": str(2 * 1024 * 1024),
    "RAY_worker_niceness": "0",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
}
"""Messages up to that size are sent directly and not through Ray's object store, which takes
longer. Replicas run at normal priority: Ray treats its workers as background work, which stands
still on a busy machine. Their calls stay on one thread, as changing threads means waiting while an
engine keeps Python busy."""


def start_fleet(
    num_replicas: int,
    engine: EngineConfig,
    talk: TalkConfig,
    *,
    clones_voices: bool = False,
    temp_dir: Path | None = None,
) -> HandleFleet:
    """A cluster on this machine, which ends with this process: one replica a GPU, where there are
    some and `engine.device` is not cpu.

    Blocks until all replicas are ready; raises ConfigError for more of them than GPUs, and where
    one cannot start.
    """
    start_machine(num_replicas, None if engine.device != "cpu" else 0, temp_dir)
    num_gpus = int(ray.cluster_resources().get("GPU", 0))
    if 0 < num_gpus < num_replicas:
        ray.shutdown()
        raise ConfigError(
            f"--replicas {num_replicas} needs as many GPUs, and there are {num_gpus}; ask for "
            "fewer, or for --device cpu."
        )
    resources = {"num_cpus": 1, "num_gpus": 1 if num_gpus else 0}
    return serve_here(
        application(
            num_replicas, engine, talk, clones_voices=clones_voices, actor_options=resources
        )
    )


def start_machine(num_replicas: int, num_gpus: int | None, temp_dir: Path | None = None) -> None:
    """Ray and Serve on this machine alone, with `num_gpus` (None: all that there are). Ray's files
    go to `temp_dir`, whose path must be short, or to a folder that goes with this process. Raises
    ConfigError."""
    _prepare()
    try:
        ray.init(
            num_cpus=max(num_replicas, os.cpu_count() or 1),
            num_gpus=num_gpus,
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            log_to_driver=False,
            logging_level=logging.WARNING,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(temp_dir or _own_folder()),
        )
    except Exception as error:  # the class that Ray raises where a part of it is not up in time
        raise ConfigError(
            f"Ray did not start ({_first_line(error)}); start again when the machine is less busy, "
            "or look into what Ray wrote above."
        ) from None
    serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})


def serve_here(app: Application) -> HandleFleet:
    """The replicas of an application on the machine that was started; raises ConfigError."""
    try:
        handle = serve.run(app, name=NAME, route_prefix=None)
    except RuntimeError as error:
        shut_down()
        raise ConfigError(f"The replicas did not start: {error}") from None
    return HandleFleet(handle, shut_down)


def join_fleet(address: str) -> HandleFleet:
    """The replicas of a running cluster, where `serve deploy` put them; raises ConfigError where
    there are none. The cluster's head ends this process with itself, a minute later."""
    _prepare()
    try:
        if ":" in address:
            _require_listener(address)  # Ray would find out in two minutes
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"No Ray cluster answers at {address} ({_first_line(error)}); start one with "
            "`ray start --head`, or name another --ray-address."
        ) from None
    try:
        return HandleFleet(serve.get_app_handle(NAME), ray.shutdown)
    except (RayServeException, RayError) as error:
        ray.shutdown()
        raise ConfigError(
            f"The cluster at {address} runs no {NAME} ({_first_line(error)}); put it there with "
            "`serve deploy assets/deploy/serve.yaml`."
        ) from None


def _require_listener(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, ValueError):
        raise ConnectionError("nobody listens there") from None


def shut_down() -> None:
    """End the cluster that this process started."""
    serve.shutdown()
    ray.shutdown()


def _own_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="moss"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _prepare() -> None:
    """Replicas import this program from where it lies here, whatever the working folder is. Serve
    says only what goes wrong."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    paths = [str(REPO_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
