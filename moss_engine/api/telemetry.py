"""Nothing that this program uses tells anybody about it."""

from __future__ import annotations

import os

QUIET = {
    "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime reads it when it is imported
    "RAY_USAGE_STATS_ENABLED": "0",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}


def switch_off_telemetry() -> None:
    """Set the variables of `QUIET`; to be called before the packages that read them are
    imported."""
    os.environ.update(QUIET)
