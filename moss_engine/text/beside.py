"""Work on texts, of milliseconds each, beside the event loop that serves everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")
_TEXTS = ThreadPoolExecutor(1, "texts")
"""One after the other: with many threads all wait for Python's lock."""


async def beside(work: Callable[..., Result], *given: Any) -> Result:
    return await asyncio.get_running_loop().run_in_executor(_TEXTS, work, *given)
