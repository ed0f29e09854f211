"""Work on a CUDA stream of one's own."""

from __future__ import annotations

import torch


class on_stream:
    """Work inside goes to `stream`, behind what was asked for before; what is asked for afterwards
    waits for it."""

    def __init__(self, stream: torch.cuda.Stream | None):
        self._stream = stream

    def __enter__(self) -> None:
        if self._stream is not None:
            torch.cuda.set_device(self._stream.device)
            self._before = torch.cuda.current_stream(self._stream.device)
            self._stream.wait_stream(self._before)
            torch.cuda.set_stream(self._stream)

    def __exit__(self, *error: object) -> None:
        if self._stream is not None:
            self._before.wait_stream(self._stream)
            torch.cuda.set_stream(self._before)
