"""The published size with random weights on a GPU behind /v1/realtime, in a process of its own:

    python -m scripts.bench.full_size_program --port 7871

It listens with the published encoder, as --transcribe with the recogniser, too, and answers every
turn with NUM_CODES codes.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import uvicorn

from moss_engine.api.info import ServiceInfo
from moss_engine.api.modes import Mode
from moss_engine.api.request import Sampling
from moss_engine.build import find_detector
from moss_engine.codec.base import samples_per_code
from moss_engine.endpoints.access import Access
from moss_engine.endpoints.app import make_app
from moss_engine.endpoints.server import Server
from moss_engine.heap import freeze_gc_heap, tune_malloc
from moss_engine.models.config import PUBLISHED
from moss_engine.recogniser.load import load_recogniser
from moss_engine.recogniser.worker import RecogniserWorker
from moss_engine.runtime.make import resolve_device
from moss_engine.service.local import LocalService, ServiceCore
from moss_engine.service.recordings import Hearing
from moss_engine.ui.config import SWITCH_S
from scripts.bench import gpu
from scripts.bench.full_size import make_codec
from scripts.bench.random_weights import SAMPLED, random_service

PLACES, TOGETHER = 16, 16
PROMPT_ROWS, NUM_CODES = 96, 50
KV_ROWS = 16_384
SPEECH = Mode("speech", "Speech", "speech", "speech", "", False, True, None, history=True)


def info_of(core: ServiceCore) -> ServiceInfo:
    config = core.config
    return ServiceInfo(
        runtime=core.engine.runtime.info,
        modes=(SPEECH,),
        voices=core.voices,
        # the end marker cannot cut an answer short
        sampling=Sampling(SAMPLED, SAMPLED, max_rows=NUM_CODES, min_rows=NUM_CODES + 2, seed=0),
        sample_rate_hz=core.codec.sample_rate_hz,
        samples_per_code=samples_per_code(core.codec),
        ids=PUBLISHED.special,
        pieces=(),
        max_text_chars=config.max_text_chars,
        max_speech_s=config.max_speech_s,
        max_sessions=config.max_sessions,
        max_waiting=config.max_waiting,
        kv_rows=config.kv_rows,
        run_ahead_s=config.run_ahead_s,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--transcribe", action="store_true")
    args = parser.parse_args()
    tune_malloc()
    sys.setswitchinterval(SWITCH_S)
    device = resolve_device("cuda")
    runtime = gpu.make_runtime(PUBLISHED, PLACES, KV_ROWS, "bfloat16", 512, device=device)
    codec = make_codec("moss", TOGETHER, device)
    core = random_service(PUBLISHED, runtime, codec, PROMPT_ROWS, NUM_CODES)
    info, hearing = info_of(core), None
    if args.transcribe:
        recogniser, why_not = load_recogniser("moonshine")
        assert recogniser is not None, why_not
        hearing = Hearing(RecogniserWorker(recogniser), find_detector())
        info = replace(info, recogniser=hearing.name)
    service = LocalService(core, info, None, hearing)
    service.start()
    server = Server(service, info, "moss", Access(open_to_all=True))
    freeze_gc_heap()
    uvicorn.run(make_app(server), host="127.0.0.1", port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
