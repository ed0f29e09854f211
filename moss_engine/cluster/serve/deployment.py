"""The replica as a deployment of Ray Serve, and the application that a configuration file names."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
import os
import pickle
import socket
import threading
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from moss_engine.api.errors import ConfigError
from moss_engine.cluster.fleet import Card
from moss_engine.cluster.replica import ReplicaServer, fingerprint
from moss_engine.config import EngineConfig, TalkConfig
from moss_engine.heap import freeze_gc_heap, tune_malloc
from moss_engine.options import from_values

log = logging.getLogger(__name__)

NAME = "moss-speech"
ROUTER: Any = "moss_engine.cluster.serve.router:NamedReplicaRouter"
DRAIN_S = 20.0
"""Time that a replica gets when Serve stops it, in which pages move its replies elsewhere."""


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """The call was meant for a replica that is gone, and reached this one."""


class Replica:
    """`ReplicaServer` for Ray Serve. The first argument of every call names the replica that is
    meant. `engine` and `talk` are options of those configs, `clones_voices` that of the page."""

    async def __init__(
        self, engine: Mapping[str, Any], talk: Mapping[str, Any], clones_voices: bool
    ) -> None:
        config, talk_config = from_values(EngineConfig, engine), from_values(TalkConfig, talk)
        with ThreadPoolExecutor(1, initializer=_last_in_line) as thread:
            self._service = await asyncio.get_running_loop().run_in_executor(
                thread, _built, config, talk_config, clones_voices
            )
        self._service.start()  # its threads are as urgent as this one
        info = await self._service.describe()
        self._name = serve.get_replica_context().replica_id.unique_id
        folders = [config.checkpoint, *([config.codec] if config.codec else [])]
        card = Card(self._name, fingerprint(info, folders), socket.gethostname(), os.getpid())
        self._server = ReplicaServer(self._service, info, card)
        freeze_gc_heap()
        log.info("replica %s serves %s", self._name, config.checkpoint)

    def __del__(self) -> None:
        if hasattr(self, "_service"):  # else it could not be built
            self._service.close()

    async def card(self) -> Card:
        return self._server.card

    async def news(self, name: str, page: str) -> AsyncGenerator[bytes | Elsewhere, None]:
        """See `Remote.news`. Pickled here, as Ray's own pickler calls a Python function for every
        object."""
        if name != self._name:
            yield Elsewhere()
            return
        async with aclosing(self._server.news(page)) as news:
            async for told in news:
                yield pickle.dumps(told, pickle.HIGHEST_PROTOCOL)

    async def invoke(self, name: str, method: str, *arguments: Any) -> Any:
        """What a method of the server answers: `ask`, `note` or `call`."""
        if name != self._name:
            return Elsewhere()
        answer = getattr(self._server, method)(*arguments)
        return await answer if inspect.isawaitable(answer) else answer

    async def check_health(self) -> None:
        """Serve replaces a replica whose threads ended or hang."""
        stats = await self._server.stats()
        if stats.state in ("faulted", "stalled"):
            raise RuntimeError(f"the service is {stats.state}")


def _last_in_line() -> None:
    """Give this thread the lowest priority: a replica that starts must not slow down replies of
    those that run."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


def _built(config: EngineConfig, talk: TalkConfig, clones_voices: bool) -> Any:
    from moss_engine.build import build_service

    tune_malloc()
    return build_service(config, talk, clones_voices=clones_voices)


def application(
    num_replicas: int,
    engine: EngineConfig,
    talk: TalkConfig,
    *,
    clones_voices: bool,
    actor_options: Mapping[str, Any],
) -> Application:
    """`num_replicas` services with these options; `actor_options` are the resources of one, as Ray
    knows them."""
    most = engine.max_sessions + engine.max_waiting
    deployment = as_deployment(Replica, num_replicas, most, actor_options)
    return deployment.bind(plain_values(engine), plain_values(talk), clones_voices)


def as_deployment(
    replica: type, num_replicas: int, most: int, actor_options: Mapping[str, Any]
) -> serve.Deployment:
    """A class with the methods of `Replica`, which has at most so many replies, as a deployment."""
    make: Any = serve.deployment(
        name=NAME,
        num_replicas=num_replicas,
        ray_actor_options=dict(actor_options),
        # Admission is the page's; here is room for its watches and notes, too.
        max_ongoing_requests=2 * most + 1000,
        health_check_period_s=2.0,
        health_check_timeout_s=20.0,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=DRAIN_S,
        # A line for each of the ten notes a second that every page sends is no log.
        logging_config={"log_level": "WARNING", "enable_access_log": False},
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),
    )
    return make(replica)


def app(arguments: dict[str, Any]) -> Application:
    """What `import_path` of a Serve configuration file names; `args` there are the options of
    app.py, with underscores, and `replicas`, `own_voice` and `actor_options`."""
    values = dict(arguments)
    num_replicas, clones_voices = int(values.pop("replicas", 1)), values.pop("own_voice", False)
    actor_options = values.pop("actor_options", {"num_gpus": 1})
    known = {f.name for f in dataclasses.fields(TalkConfig)}
    talk = from_values(TalkConfig, {name: values.pop(name) for name in known & set(values)})
    engine = from_values(EngineConfig, values)
    if not actor_options.get("num_gpus"):
        from moss_engine.build import settled

        engine = settled(dataclasses.replace(engine, device="cpu"))
    if num_replicas < 1:
        raise ConfigError(f"replicas is {num_replicas}; give 1 or more.")
    return application(
        num_replicas, engine, talk, clones_voices=clones_voices, actor_options=actor_options
    )


def plain_values(config: Any) -> dict[str, Any]:
    """The options of a config as Serve stores them: no paths."""
    values = dataclasses.asdict(config)
    return {
        name: str(value.resolve()) if isinstance(value, Path) else value
        for name, value in values.items()
    }
