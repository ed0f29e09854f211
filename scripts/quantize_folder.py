"""`python -m scripts.quantize --bits`: from a checkpoint folder to one in 8 or 4 bits."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.tokens import Row
from moss_engine.config import EngineConfig
from moss_engine.export.calibration import compare, input_products, logits_of
from moss_engine.export.low_bits import (
    Rounded,
    choose_bits,
    matrices,
    require_source,
    round_matrix,
    write_folder,
)
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import bits_of_format, parts_of
from moss_engine.models.network import MossSpeech, load_model
from moss_engine.runtime.make import make_runtime, resolve_device
from moss_engine.text.processor import load_processor
from scripts.disk import require_folder, writing_to
from scripts.quantize import conversations

Report = dict[str, float | int | str]
ELSEWHERE = "make it writable and free some space, or name another folder with --out"
TESTED = 10
"""One conversation in so many is kept for the comparison."""


def quantize_folder(
    folder: Path,
    out: Path,
    bits: int,
    texts: list[str],
    reply_rows: int,
    device_name: str,
    *,
    plain: bool = False,
    wide: float = 0.1,
) -> Report:
    """Write `out` with 8 or 4 bits and say what that loses; `texts` are the calibration prompts.

    Raises ConfigError or CheckpointError before anything large is read.
    """
    config, device = require_source(folder, out, bits), resolve_device(device_name)
    require_folder(out, ELSEWHERE)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    learned: list[list[Row]] = []
    tested: list[list[Row]] = []
    wanted: list[tuple[Tensor, Tensor]] = []
    network = None
    if texts:
        seen = _answers(folder, config, texts, reply_rows, device_name)
        tested = seen[::TESTED]
        learned = [rows for index, rows in enumerate(seen) if index % TESTED] or seen
        network = load_model(folder, dtype=dtype, device=device)
        wanted = [logits_of(network, rows) for rows in tested]
    rounded: dict[str, Rounded] = {}
    chosen = bits_of_format(config, "int8")
    if bits == 4:
        rounded = _round(folder, config, network, learned, device, plain=plain)
        chosen = choose_bits(config, rounded, wide)
    network = None
    kind = "plain" if plain or bits == 8 else "calibrated" if texts else "searched"
    made_by: Report = {"bits": bits, "rounding": kind, "prompts": len(texts), "wide": wide}
    with writing_to(out, ELSEWHERE):
        losses = write_folder(folder, out, config, chosen, rounded, made_by)
    report: Report = {**made_by, "rows": sum(map(len, learned))}
    report["lost_power"] = sum(loss.lost for loss in losses) / len(losses)
    if bits == 4:
        report["lost_power_plain"] = sum(loss.plain4 for loss in losses) / len(losses)
    if tested:
        network = load_model(out, dtype=dtype, device=device)
        for found in compare(wanted, [logits_of(network, rows) for rows in tested]):
            report[f"{found.channel}_same_best"] = found.same_best
            report[f"{found.channel}_logit_error"] = found.logit_error
    return report


def _answers(
    folder: Path, config: ModelConfig, texts: list[str], reply_rows: int, device_name: str
) -> list[list[Row]]:
    """The prompts' rows with the model's own replies."""
    options = EngineConfig(checkpoint=folder, device=device_name, max_sessions=1, kv_rows=4096)
    runtime = make_runtime(options)
    processor = load_processor(folder, config, options.max_text_chars)
    seen = list(conversations(runtime, processor, texts, reply_rows))
    runtime.close()
    return seen


def _round(
    folder: Path,
    config: ModelConfig,
    network: MossSpeech | None,
    rows: list[list[Row]],
    device: torch.device,
    *,
    plain: bool,
) -> dict[str, Rounded]:
    """All matrices of the layers in 4 bits."""
    if network is None:
        names = {
            name for part, found in parts_of(config).items() if part != "heads" for name in found
        }
        return {
            name: round_matrix(matrix, None, plain=plain)
            for name, matrix in matrices(folder, config, names, device)
        }
    rounded = {}
    for products in input_products(network, config, rows):
        for name, matrix in matrices(folder, config, products, device):
            rounded[name] = round_matrix(matrix, products[name], plain=plain)
    return rounded
