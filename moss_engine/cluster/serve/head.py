"""Whether the head of a Ray cluster is there: by its port, as a call to a head that is gone hangs,
and ends the process behind a minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

CONNECT_S = 1.0
ASK_S = 0.5
GONE_S = 3.0
"""A head that did not answer for so long, at every attempt, is gone."""


class Head:
    """`address` is host:port."""

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic):
        self.address = address
        self._clock = clock

    async def answers(self) -> bool:
        """Whether somebody listens at its port; nobody does where there is none."""
        host, _, port = self.address.rpartition(":")
        try:
            opening = asyncio.open_connection(host.strip("[]"), int(port))
            _, writer = await asyncio.wait_for(opening, CONNECT_S)
        except (OSError, ValueError, asyncio.TimeoutError):
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True

    async def is_gone(self) -> bool:
        """Takes GONE_S where it is."""
        end_s = self._clock() + GONE_S
        while not await self.answers():
            if self._clock() > end_s:
                return True
            await asyncio.sleep(ASK_S)
        return False

    async def back(self) -> None:
        """Wait until it answers."""
        while not await self.answers():
            await asyncio.sleep(ASK_S)
