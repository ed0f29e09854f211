"""Run a training step as one CUDA graph, since small networks are bound by launching kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM_UP_STEPS = 4


class Step:
    """Calls `step`, which must do all its work on static tensors; on CUDA it is captured after a
    few plain calls.

    Where capturing fails, the reason is printed and the steps go on uncaptured: slower, with the
    same results.
    """

    def __init__(self, step: Callable[[], None], device: torch.device, capture: bool) -> None:
        self._step = step
        self._calls = 0
        self._capture = capture and device.type == "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream(device) if self._capture else None

    def __call__(self) -> None:
        if self._graph is not None:
            self._graph.replay()
            return
        if self._capture and self._calls == WARM_UP_STEPS:
            self._try_capture()
            if self._graph is not None:
                self._graph.replay()
                return
        self._calls += 1
        if self._stream is None:
            self._step()
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._step()
        torch.cuda.current_stream().wait_stream(self._stream)

    def _try_capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                self._step()
        except RuntimeError as error:
            print(f"the step was not captured ({error}); going on without a CUDA graph", flush=True)
            self._capture, self._stream = False, None
            torch.cuda.synchronize()
            return
        self._graph = graph
