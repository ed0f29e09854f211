"""The full-size network with random weights on this GPU, against the most that the GPU can do.

It reports the bytes that a decode step reads and this GPU's own rates, then the parts that were
asked for: decode and prefill in every number format, the others in the first one only.

    decode      one row for each of many sequences
    prefill     prompts of several lengths, alone and on cached rows
    question    from 4 s of speech to the first sound of the answer, for one visitor, and for 16
                who talk and listen at the same time
    listeners   many at a time through the whole service, who hear replies out and ask again
    baselines   what a user would run instead: transformers, plain and compiled PyTorch

--codec moss is the published codec (flow and HiFT), bigvgan a stand-in that costs less; without an
encoder, it is asked no `question`. Every figure is written as soon as it is there.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from moss_engine.api.events import AudioChunk
from moss_engine.api.request import Request
from moss_engine.api.service import taken
from moss_engine.codec.base import SpeechCodec
from moss_engine.heap import freeze_gc_heap
from moss_engine.models.config import PUBLISHED, ModelConfig
from moss_engine.runtime.base import ScheduledBatch
from moss_engine.runtime.make import resolve_device
from moss_engine.service.local import LocalService
from scripts.bench import gpu
from scripts.bench.common import Report, levels, names_of, spread, whole_numbers
from scripts.bench.gpu import BLOCKS_EACH, CONTEXT_ROWS, measure
from scripts.bench.listeners import Load, closed_loop, load_line
from scripts.bench.random_weights import CODECS, fixed_requests, make_codec, random_service
from scripts.command import count

if TYPE_CHECKING:
    from moss_engine.runtime.cuda.runtime import CudaRuntime

IN_EVERY_FORMAT = ("decode", "prefill")
IN_SERVICE = ("question", "listeners")
PARTS = (*IN_EVERY_FORMAT, *IN_SERVICE, "baselines")
FILLS = ((512, 0), (64, 2000), (64, 0), (128, 0), (256, 0))
"""The prefills that are timed: how many new rows on how many cached ones."""
SPEECH_S, QUESTIONS = 4, 12
TALKERS, TURNS, TALK_S = 16, 2, 8


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--parts", type=names_of(PARTS), default=["decode", "prefill", "question", "listeners"],
        metavar="PART,...", help="what to measure (all but baselines)")  # fmt: skip
    add("--dtype", type=names_of(gpu.FORMATS), default=["bfloat16"], metavar="NAME,...",
        help=f"number formats, of {', '.join(gpu.FORMATS)} (bfloat16)")  # fmt: skip
    add("--kv-cache-dtype", choices=("auto", "int8"), default="auto",
        help="as in the program's options (auto)")  # fmt: skip
    add("--batches", type=whole_numbers, default=[1, 2, 4, 8, 16, 32, 64], metavar="N,...",
        help="sequences of a decode step (1,2,4,8,16,32,64)")  # fmt: skip
    add("--max-step-rows", type=count, default=512, metavar="N", help="rows of one step (512)")
    add("--codec", choices=tuple(CODECS), default="moss", help="what speaks (moss)")
    add("--together", type=count, default=16, metavar="N", help="replies of one codec run (16)")
    add("--prompt-rows", type=count, default=96, metavar="N", help="rows of every prompt (96)")
    add("--codes", type=count, default=75, metavar="N", help="codes of every reply (75: 6 s)")
    add("--listeners", type=levels, default=[(1, 8), (16, 32), (64, 128)],
        metavar="N:REPLIES,...",
        help="listeners at a time and replies in all; each hears a reply out and asks again "
             "(1:8,16:32,64:128)")  # fmt: skip


def run(args: argparse.Namespace, report: Report) -> None:
    if args.codec == "bigvgan" and "question" in args.parts:
        args.parts.remove("question")
    device, config = resolve_device("cuda"), PUBLISHED
    ceilings, kv_int8 = gpu.measure_ceilings(), args.kv_cache_dtype == "int8"
    torch.cuda.empty_cache()
    report.add(
        **gpu.device_values(device),
        layers=config.num_layers,
        context_rows=CONTEXT_ROWS,
        ceilings=asdict(ceilings),
        kv_cache_dtype=args.kv_cache_dtype,
        card={dtype: card(gpu.Needs(config, dtype, kv_int8)) for dtype in args.dtype},
    )
    report.say(report.text())
    if set(args.parts) & {*IN_EVERY_FORMAT, *IN_SERVICE}:
        formats = args.dtype if set(args.parts) & set(IN_EVERY_FORMAT) else args.dtype[:1]
        for dtype in formats:
            measure_format(args, gpu.Needs(config, dtype, kv_int8), ceilings, report, device)
            torch.cuda.empty_cache()
    if "baselines" in args.parts:
        from scripts.bench.baselines import measure_baselines

        measure_baselines(config, ceilings, report)


def card(needs: gpu.Needs) -> dict[str, float]:
    """What one decode step of one sequence reads, with both branches and both heads."""
    weight_gb, kv_kb_a_row = needs.weight_bytes() / 1e9, needs.kv_row_bytes() / 1e3
    return {"weight_gb": weight_gb, "kv_kb_a_row": kv_kb_a_row}


def room(args: argparse.Namespace, *, serves: bool) -> tuple[int, int]:
    """How many places and KV rows a runtime needs for what is measured."""
    places = max(2, *args.batches)
    rows = max(4096, max(args.batches) * BLOCKS_EACH * 16)
    if serves:
        places = max(places, *(many for many, _ in args.listeners))
        rows = max(rows, (places + 1) * -(-(args.prompt_rows + args.codes) // 16) * 16)
    return places, rows


def measure_format(
    args: argparse.Namespace,
    needs: gpu.Needs,
    ceilings: gpu.Ceilings,
    report: Report,
    device: torch.device,
) -> None:
    """Measure what is asked for in one number format; nothing of it stays in memory."""
    config, dtype, kv_int8 = needs.config, needs.dtype, needs.kv_int8
    serves = dtype == args.dtype[0] and bool(set(args.parts) & set(IN_SERVICE))
    places, kv_rows = room(args, serves=serves)
    step_rows = max(args.max_step_rows, places)
    runtime = gpu.make_runtime(
        config, places, kv_rows, dtype, step_rows, device=device, kv_int8=kv_int8
    )
    allocated_gib = torch.cuda.memory_allocated() / 2**30
    report.values.setdefault("allocated_gib", {})[dtype] = allocated_gib
    report.say(f"{dtype}: runtime of {places} places ready, {allocated_gib:.2f} GiB")
    if "decode" in args.parts:
        measure_decode(runtime, needs, ceilings, args.batches, report)
    if "prefill" in args.parts:
        measure_prefill(runtime, needs, ceilings, report)
    if serves:
        codec = make_codec(args.codec, args.together, device)
        report.say(f"the codec is ready: {CODECS[args.codec]}")
        measure_service(args, config, runtime, codec, report)
    runtime.close()


def measure_decode(
    runtime: CudaRuntime,
    needs: gpu.Needs,
    ceilings: gpu.Ceilings,
    batches: list[int],
    report: Report,
) -> None:
    """Decode steps with both heads' logits, and as served, against the least time they can take."""
    config, dtype = needs.config, needs.dtype
    for batch in batches:
        step = ScheduledBatch(tuple(gpu.sequence(config, i, CONTEXT_ROWS, 1) for i in range(batch)))
        logits = runtime.forward(step)
        assert bool(logits.text.isfinite().all()) and bool(logits.audio.isfinite().all())
        limit_ms = needs.decode_ms(ceilings, batch, CONTEXT_ROWS)
        name = f"decode step, batch {batch}"
        measure(report, name, "device", runtime.decode_again(batch), limit_ms, dtype)
        for how, text_logits in (("rows drawn", True), ("speaking, rows drawn", False)):
            runtime.step(step, gpu.sampling(config, batch, text_logits=text_logits))
            again = runtime.decode_again(batch, text_logits=text_logits, draw=True)
            least_ms = needs.decode_ms(ceilings, batch, CONTEXT_ROWS, text_logits=text_logits)
            measure(report, f"{name}, {how}", "device", again, least_ms, dtype)
        again = lambda: runtime.forward(step)  # noqa: B023, E731
        measure(report, f"forward of one row, batch {batch}", "wall", again, limit_ms, dtype)


def measure_prefill(
    runtime: CudaRuntime, needs: gpu.Needs, ceilings: gpu.Ceilings, report: Report
) -> None:
    """Wall times of prefill, each after a rest; the longest also one after another."""
    for rows, cached in FILLS:
        part = gpu.sequence(needs.config, 0, cached, rows, (cached + rows) // 16 + 1)
        run = lambda: runtime.forward(ScheduledBatch((part,)))  # noqa: B023, E731
        limit_ms, dtype = needs.fill_ms(ceilings, rows, cached), needs.dtype
        name = f"prefill {rows} rows on {cached} cached"
        measure(report, name, "wall", run, limit_ms, dtype, gpu.REST_S)
        if rows == max(FILLS)[0]:
            measure(report, f"{name}, one after another", "wall", run, limit_ms, dtype)


def measure_service(
    args: argparse.Namespace,
    config: ModelConfig,
    runtime: CudaRuntime,
    codec: SpeechCodec,
    report: Report,
) -> None:
    """Measure questions and listeners through the whole service; closes the runtime."""
    service = random_service(config, runtime, codec, args.prompt_rows, args.codes)
    service.start()
    try:
        asyncio.run(one_level(args, service, -1, 1, 1))  # compiles what is compiled at first use
        freeze_gc_heap()  # as the program does
        if "question" in args.parts:
            report.add(**asyncio.run(questions(service, args.codes)))
        if "listeners" in args.parts:
            setup = {name: getattr(args, name) for name in ("prompt_rows", "codes", "together")}
            streams: dict[str, Any] = {"codec": CODECS[args.codec], "setup": setup, "load": []}
            for number, level in enumerate(args.listeners):
                load = asyncio.run(one_level(args, service, number, *level))
                streams["load"].append(asdict(load))
                streams["memory_gib"] = torch.cuda.max_memory_reserved() / 2**30
                report.say(load_line(load))
                report.add(streams=streams)
    finally:
        service.close()


async def one_level(
    args: argparse.Namespace, service: LocalService, number: int, many: int, replies: int
) -> Load:
    """One level of load, whose listeners start spread over a reply's length."""
    make = fixed_requests(args.codes, number)
    ramp_s = float(args.codes / service.codec.code_rate_hz)
    return await closed_loop(service.submit, make, many, replies, hears_out=True, ramp_s=ramp_s)


async def questions(service: LocalService, num_codes: int) -> dict[str, float]:
    """Milliseconds to the first sound: of questions one after another, whose answers are stopped
    there, and of TALKERS at the same time, who hear their answers out."""
    make, heard = fixed_requests(num_codes, 1000), []
    for number in range(QUESTIONS + 2):
        heard.append(await answer_ms(service, make(0, number), out=False))
        await asyncio.sleep(0.05)
    make, chance = fixed_requests(num_codes, 1001), random.Random(0)

    async def talk(index: int) -> list[float]:
        found = []
        for number in range(TURNS):
            await asyncio.sleep(chance.uniform(0, TALK_S))
            found.append(await answer_ms(service, make(index, number), out=True))
        return found

    talked = await asyncio.gather(*(talk(index) for index in range(TALKERS)))
    return {
        "speech_in_4_s_first_sound_p50_ms": round(statistics.median(heard[2:]), 1),
        "speech_in_4_s_first_sound_worst_ms": round(max(heard[2:]), 1),
        "talkers": TALKERS,
        **spread("talkers_first_sound", list(chain(*talked))),
    }


async def answer_ms(service: LocalService, request: Request, *, out: bool) -> float:
    """Milliseconds from SPEECH_S of recorded sound to the first samples of the reply, which is then
    stopped, or heard `out`."""
    wave = np.random.RandomState(0).standard_normal(SPEECH_S * 16_000).astype(np.float32) * 0.1
    start_s, first_s, heard_s = time.monotonic(), 0.0, 0.0
    codes = await service.encode(wave, 16_000)
    assert len(codes) == SPEECH_S * 12.5
    reply = await service.submit(request)
    async for event in taken(reply):
        if isinstance(event, AudioChunk):
            first_s = first_s or time.monotonic()
            heard_s += len(event.samples) / event.sample_rate_hz
            if not out:
                reply.cancel()
                break
    await asyncio.sleep(max(0.0, first_s + heard_s - time.monotonic()) if out else 0.0)
    return (first_s - start_s) * 1e3
