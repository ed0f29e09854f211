"""POST /v1/realtime/calls: a realtime session over WebRTC. Sound comes and goes as tracks, events
by the data channel."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import av
import numpy as np
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.jitterbuffer import JitterFrame
from aiortc.mediastreams import MediaStreamError
from aiortc.rtp import RtpPacket
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect

from moss_engine.endpoints.bodies import read_body, read_form
from moss_engine.endpoints.errors import ApiError
from moss_engine.endpoints.realtime.connection import Connection, admitted
from moss_engine.endpoints.realtime.wire import RATE_HZ
from moss_engine.endpoints.server import Server

MAX_OFFER_BYTES = 512 * 1024
SDP = "application/sdp"
FRAME_S = 0.02
SILENT_S = 1.0
FRAME = round(FRAME_S * RATE_HZ)
LEAD = 64
"""Samples before the first frame, without which Opus's resampler holds back each frame."""
MAX_WAITING = 1024
"""Events and frames of a client that wait to be taken."""
MAX_UNSENT_BYTES = 1 << 20
CHANNEL = "oai-events"


class AtOnce:
    """Replaces aiortc's jitter buffer, which delays frames by 80 ms for listeners; here nobody
    listens to them directly. Late frames are dropped."""

    def __init__(self) -> None:
        self._last: int | None = None

    def add(self, packet: RtpPacket) -> tuple[bool, JitterFrame | None]:
        number = packet.sequence_number
        if self._last is not None and (number - self._last - 1) % 65_536 >= 32_768:
            return False, None
        self._last = number
        return False, JitterFrame(packet._data, packet.timestamp)  # type: ignore[attr-defined]


class Voice(MediaStreamTrack):
    """The outgoing track: a frame every 20 ms while something is said, otherwise one of silence
    each second. `drained` is called when the end of an answer has been sent."""

    kind = "audio"

    def __init__(self, drained: Callable[[], None]):
        super().__init__()
        self._drained = drained
        self._pcm = bytearray()
        self._pushing = asyncio.Event()
        self._place = 0  # of the next frame, in frames since the beginning
        self._begun_s = time.monotonic()
        self._pushed = self._played = self._answer_at = 0
        self.ends = False  # nothing more of the answer comes

    def begin(self) -> None:
        """Whatever is pushed from now on belongs to the next answer."""
        self._answer_at, self.ends = self._pushed, False

    def push(self, pcm: bytes) -> None:
        """16-bit PCM at `RATE_HZ`."""
        self._pcm += pcm
        self._pushing.set()
        self._pushed += len(pcm) // 2

    def hush(self) -> int | None:
        """Drop what waits. Returns how many samples of the answer were sent, None if all were."""
        if not self._pcm:
            return None
        self._pcm.clear()
        self._pushed = self._played
        return max(0, self._played - self._answer_at)

    async def recv(self) -> av.AudioFrame:
        if self.readyState != "live":
            raise MediaStreamError
        if not self._pcm:
            self._pushing.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._pushing.wait(), SILENT_S)
        now = (time.monotonic() - self._begun_s) / FRAME_S
        await asyncio.sleep((self._place - now) * FRAME_S)
        place = max(self._place, int(now))
        taken = bytes(self._pcm[: 2 * FRAME])
        del self._pcm[: 2 * FRAME]
        self._played += len(taken) // 2
        samples = np.frombuffer(taken.ljust(2 * FRAME, b"\0"), np.int16)
        lead = 0 if self._place else LEAD
        frame = av.AudioFrame.from_ndarray(np.pad(samples, (lead, 0))[None], "s16", "mono")
        frame.sample_rate, frame.time_base = RATE_HZ, Fraction(1, RATE_HZ)
        frame.pts = place * FRAME + LEAD - lead
        self._place = place + 1
        if taken and not self._pcm and self.ends:
            self._drained()
        return frame


class Call:
    """A `Wire` over one peer connection."""

    plays = True

    def __init__(self) -> None:
        self.peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._came: asyncio.Queue[str | bytes | np.ndarray | None] = asyncio.Queue()
        self._channel: RTCDataChannel | None = None
        self._opened = asyncio.Event()
        self._voice = Voice(self._stopped)
        self._response_id = ""
        self._sounds = False
        self._hearing: asyncio.Task[None] | None = None
        self.peer.on("track", self._hear)
        self.peer.on("datachannel", self._open)
        self.peer.on("connectionstatechange", self._change)

    async def answer(self, offer: str) -> str:
        """The SDP of an offer's answer; raises ApiError for one that is none."""
        try:
            await self.peer.setRemoteDescription(RTCSessionDescription(offer, "offer"))
            self.peer.addTrack(self._voice)
            await self.peer.setLocalDescription(await self.peer.createAnswer())
        except Exception as error:  # aiortc has no kind of its own for what it cannot read
            await self.peer.close()
            raise ApiError(
                400,
                f"The offer cannot be answered ({type(error).__name__}); send the SDP of an offer "
                f"with an audio track and a data channel {CHANNEL!r}.",
                "invalid_sdp",
                param="sdp",
            ) from None
        return self.peer.localDescription.sdp

    async def receive(self) -> str | bytes | np.ndarray | None:
        return await self._came.get()

    async def send(self, event: dict[str, Any]) -> None:
        await self._opened.wait()
        kind = event["type"]
        if kind == "response.created" and "audio" in event["response"]["output_modalities"]:
            self._response_id, self._sounds = event["response"]["id"], False
            self._voice.begin()
        elif kind == "response.output_audio.delta":
            if not self._sounds:
                self._sounds = True
                self._tell("output_audio_buffer.started")
            self._voice.push(base64.b64decode(event["delta"]))
            return
        elif kind == "response.done" and event["response"]["id"] == self._response_id:
            self._voice.ends = True
        self._say(event)

    def hush(self) -> int | None:
        dropped = self._voice.hush()
        if dropped is not None:
            self._tell("output_audio_buffer.cleared")
        return dropped

    async def close(self) -> None:
        if self._hearing is not None:
            self._hearing.cancel()
        await self.peer.close()

    def _stopped(self) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            self._tell("output_audio_buffer.stopped")

    def _tell(self, kind: str) -> None:
        name = f"event_{secrets.token_hex(10)}"
        self._say({"type": kind, "event_id": name, "response_id": self._response_id})

    def _say(self, event: dict[str, Any]) -> None:
        channel = self._channel
        if channel is None or channel.readyState != "open":
            raise WebSocketDisconnect(1006)
        if channel.bufferedAmount > MAX_UNSENT_BYTES:
            raise TimeoutError
        channel.send(json.dumps(event, ensure_ascii=False))

    def _open(self, channel: RTCDataChannel) -> None:
        if self._channel is not None:
            return
        self._channel = channel
        channel.on("message", self._take)
        channel.on("close", self._leave)
        self._opened.set()

    def _hear(self, track: MediaStreamTrack) -> None:
        if track.kind == "audio" and self._hearing is None:
            for receiver in self.peer.getReceivers():
                if receiver.track is track:  # aiortc has no name for this
                    receiver._RTCRtpReceiver__jitter_buffer = AtOnce()  # type: ignore[attr-defined]
            self._hearing = asyncio.create_task(self._follow(track))

    async def _follow(self, track: MediaStreamTrack) -> None:
        resampler = av.AudioResampler("s16", "mono", RATE_HZ)
        with contextlib.suppress(MediaStreamError):
            while True:
                for frame in resampler.resample(await track.recv()):  # type: ignore[arg-type]
                    self._take(frame.to_ndarray()[0].copy())

    def _take(self, said: str | bytes | np.ndarray) -> None:
        if self._came.qsize() < MAX_WAITING:
            self._came.put_nowait(said)

    def _change(self) -> None:
        if self.peer.connectionState in ("failed", "closed"):
            self._leave()

    def _leave(self) -> None:
        self._came.put_nowait(None)


async def answer_call(server: Server, request: Request) -> Response:
    """Answer an offer; raises ApiError for what cannot be."""
    with contextlib.ExitStack() as held:
        caller, settings = held.enter_context(admitted(server, request))
        offer, said = await _read_offer(request)
        call = Call()
        answer = await call.answer(offer)
        session = Connection(server, caller, call, {**settings, **said})
        task = asyncio.create_task(_serve(session, call, held.pop_all()))
        name = f"rtc_{secrets.token_hex(12)}"
        server.calls[name] = task
        task.add_done_callback(lambda _: server.calls.pop(name))
    return Response(answer, 201, {"Location": f"/v1/realtime/calls/{name}"}, media_type=SDP)


async def _serve(session: Connection, call: Call, held: contextlib.ExitStack) -> None:
    with held:
        try:
            await session.serve()
        finally:
            await call.close()


async def _read_offer(request: Request) -> tuple[str, dict[str, Any]]:
    """The offer's SDP, and settings of the session."""
    kind = request.headers.get("content-type", "").lower()
    if kind.startswith(SDP):
        return (await read_body(request, MAX_OFFER_BYTES)).decode("utf-8", "replace"), {}
    refusal = ApiError(
        400,
        f"The call is not understood; send an SDP offer as {SDP}, or a form with the fields sdp "
        "and session (JSON).",
        "invalid_form",
    )
    form = await read_form(request, MAX_OFFER_BYTES, refusal, max_files=0)
    try:
        offer, said = form["sdp"], json.loads(str(form.get("session", "{}")))
    except (KeyError, ValueError, RecursionError):
        raise refusal from None
    if not isinstance(said, dict):
        raise refusal
    return str(offer), said
