"""The published size with random weights on a GPU behind /v1/realtime, in a process of its own:

    python -m scripts.bench.full_size_program --port 7871

It listens with the published encoder, with --transcribe also with the recogniser, and answers every
turn with NUM_CODES codes. Like the page's server it compresses nothing on its WebSockets.
"""

from __future__ import annotations

import argparse
import sys

import uvicorn

from moss_engine.api.modes import Mode
from moss_engine.build import find_detector
from moss_engine.endpoints.access import Access
from moss_engine.endpoints.app import make_app
from moss_engine.endpoints.server import Server
from moss_engine.heap import freeze_gc_heap, tune_malloc
from moss_engine.recogniser.load import load_recogniser
from moss_engine.recogniser.worker import RecogniserWorker
from moss_engine.service.recordings import Transcriber
from moss_engine.ui.config import SWITCH_S
from scripts.bench.random_weights import published_service

PLACES = 16
PROMPT_ROWS, NUM_CODES = 96, 50
KV_ROWS = 16_384
SPEECH = Mode("speech", "Speech", "speech", "speech", "", False, True, None, history=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--transcribe", action="store_true")
    args = parser.parse_args()
    tune_malloc()
    sys.setswitchinterval(SWITCH_S)
    transcriber = None
    if args.transcribe:
        recogniser, why_not = load_recogniser("moonshine")
        assert recogniser is not None, why_not
        transcriber = Transcriber(RecogniserWorker(recogniser), find_detector())
    service = published_service(
        PLACES, KV_ROWS, PROMPT_ROWS, NUM_CODES, modes=(SPEECH,), transcriber=transcriber
    )
    service.start()
    server = Server(service, service.info, "moss", Access(open_to_all=True))
    freeze_gc_heap()
    uvicorn.run(
        make_app(server), host="127.0.0.1", port=args.port, log_level="warning",
        ws_per_message_deflate=False,
    )  # fmt: skip


if __name__ == "__main__":
    main()
