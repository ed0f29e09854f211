"""What must agree between replicas that continue each other's replies."""

from __future__ import annotations

import hashlib
from pathlib import Path

from moss_engine.api.info import ServiceInfo

FORMAT = 2
"""Of the values that pages and replicas exchange; a change that the other side would not understand
counts it up."""
SAMPLE_BYTES = 4096


def fingerprint(info: ServiceInfo, folders: list[Path]) -> str:
    """Hexadecimal; of the format, the runtime's numbers, and the files of checkpoint and codec:
    names, sizes, first and last bytes, which training and conversion change."""
    runtime = info.runtime
    known = (FORMAT, runtime.name, runtime.dtype, info.sample_rate_hz, info.samples_per_code)
    digest = hashlib.sha256(repr(known).encode())
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            size = path.stat().st_size
            digest.update(f"{path.relative_to(folder)} {size}\n".encode())
            with path.open("rb") as file:
                digest.update(file.read(SAMPLE_BYTES))
                file.seek(max(0, size - SAMPLE_BYTES))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]
