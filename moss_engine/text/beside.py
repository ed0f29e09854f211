"""Text processing of some milliseconds, in a thread beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")
_TEXTS = ThreadPoolExecutor(1, "texts")
"""One text at a time: several threads would only wait for Python's lock."""


async def beside(work: Callable[..., Result], *given: Any) -> Result:
    return await asyncio.get_running_loop().run_in_executor(_TEXTS, work, *given)
