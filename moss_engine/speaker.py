"""The codec thread's work: the codes of every open reply into sound, most urgent first, as many at a time as pays."""

from __future__ import annotations

import dataclasses
import heapq
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from moss_engine.codec.base import SpeechCodec
from moss_engine.errors import EngineFaultError, MossError
from moss_engine.events import Failed, Finished, FinishReason
from moss_engine.handle import Handle

log = logging.getLogger(__name__)

IDLE_POLL_S = 0.25


class Speaker:
    """`turn` is called by one thread over and over, `look_at` and `wake` by any.

    A turn makes one chunk for each of the most urgent replies, at most `codec.max_together` of them; so the longest
    time by which voices delay each other is that of one such run. `end` delivers a terminal event, `cancel` stops a
    reply in the engine by its request id.
    """

    def __init__(self, codec: SpeechCodec, *, end: Callable[[Handle, Finished | Failed], None],
                 cancel: Callable[[str], None], clock: Callable[[], float]):
        self._codec = codec
        self._end = end
        self._cancel = cancel
        self._clock = clock
        self._changed = threading.Condition()
        self._due: dict[str, Handle] = {}

    def look_at(self, handle: Handle) -> None:
        """Something about a reply has changed: if there is sound to be made, or its end to be said, that is done."""
        if handle.is_due:
            with self._changed:
                self._due[handle.request_id] = handle
                self._changed.notify()

    def wake(self) -> None:
        """Let a waiting `turn` return."""
        with self._changed:
            self._changed.notify()

    def turn(self) -> None:
        """Do what is most urgent; wait for a moment where there is nothing to do."""
        with self._changed:
            if not self._due:
                self._changed.wait(IDLE_POLL_S)
            now_s = self._clock()
            handles = heapq.nsmallest(self._codec.max_together, self._due.values(), key=lambda h: h.urgency(now_s))
            for handle in handles:
                del self._due[handle.request_id]
        open_ = [handle for handle in handles if self._is_open(handle)]
        pushing = [(handle, codes) for handle in open_ if (codes := handle.take_codes(handle.missing_codes))]
        busy = {handle.request_id for handle, _ in pushing}
        flushing = [handle for handle in open_ if handle.request_id not in busy]
        if pushing:
            self._run(self._codec.push_together, [handle for handle, _ in pushing],
                      [(handle.stream, codes) for handle, codes in pushing], ends=False)
        if flushing:
            self._run(self._codec.flush_together, flushing, [handle.stream for handle in flushing], ends=True)

    def _is_open(self, handle: Handle) -> bool:
        """Whether there is sound to be made, with a stream for it; a reply that was cancelled gets its end here."""
        if handle.cancelled:
            if handle.ending:
                self._end(handle, dataclasses.replace(handle.ending, reason=FinishReason.CANCELLED))
            return False
        if not handle.is_due:  # its codes were taken between the look at it and its being noted
            return False
        if handle.stream is None:
            try:
                handle.stream = self._codec.open_stream(handle.request.voice)
            except Exception as error:
                self._fail(handle, error)
                return False
        return True

    def _run(self, run: Callable[[Any], list[np.ndarray]], handles: Sequence[Handle], work: Sequence[Any], *,
             ends: bool) -> None:
        """One run of the codec for all; where it raises, one for each, so that a faulty reply fails alone."""
        try:
            waves = run(work)
            assert len(waves) == len(handles), "the codec gave more or fewer waves than it was asked for"
        except Exception as error:
            if len(handles) == 1:
                self._fail(handles[0], error)
                return
            for handle, one in zip(handles, work, strict=True):
                self._run(run, [handle], [one], ends=ends)
            return
        for handle, samples in zip(handles, waves, strict=True):
            try:
                self._deliver(handle, samples, ends)
            except Exception as error:
                self._fail(handle, error)

    def _deliver(self, handle: Handle, samples: np.ndarray, ends: bool) -> None:
        if not np.isfinite(samples).all():
            raise EngineFaultError("The vocoder's output was not a number; ask again.")
        if len(samples) and not handle.cancelled:
            handle.put_samples(samples)
        if ends:
            assert handle.ending is not None
            reason = FinishReason.CANCELLED if handle.cancelled else handle.ending.reason
            self._end(handle, dataclasses.replace(handle.ending, reason=reason))
            return
        assert handle.stream is not None
        handle.missing_codes = handle.stream.missing_codes
        self.look_at(handle)

    def _fail(self, handle: Handle, error: Exception) -> None:
        """The reply's only word for what went wrong; `look_at` finds nothing to do for it any more.

        Raises `error` again where the GPU itself failed: nothing works on it until the process ends, so no reply can go
        on, whether or not it is to be spoken now.
        """
        if isinstance(error, torch.AcceleratorError):
            raise error
        log.error("the codec failed", exc_info=error)
        known = error if isinstance(error, MossError) else EngineFaultError("The sound could not be made; ask again.")
        self._end(handle, failed(handle, known))
        self._cancel(handle.request_id)


def failed(handle: Handle, error: MossError) -> Failed:
    """The terminal event of a reply that an error ended."""
    return Failed(handle.request_id, 0.0, handle.num_rows, error.code, str(error))
