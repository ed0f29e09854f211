"""Calls over WebRTC, as aiortc makes them."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager

import httpx
import numpy as np
import pytest

from tests.endpoints.endpoint_support import running
from tests.endpoints.realtime.realtime_support import MANUAL, QUESTION
from tests.ui.page_support import PATIENCE_S, Script, soon

aiortc = pytest.importorskip("aiortc")
av = pytest.importorskip("av")

from moss_engine.endpoints.realtime.calls import Voice  # noqa: E402

QUIET = 200


class Caller:
    """A peer with a microphone, `mic`; `told` are events, `heard` loudness of frames."""

    def __init__(self) -> None:
        self.peer = aiortc.RTCPeerConnection(aiortc.RTCConfiguration(iceServers=[]))
        self.mic = Voice(lambda: None)
        self.told: list[dict] = []
        self.url = ""
        self.heard: list[int] = []
        self.peer.addTrack(self.mic)
        self.channel = self.peer.createDataChannel("oai-events")
        self.channel.on("message", lambda said: self.told.append(json.loads(said)))
        self.peer.on("track", lambda track: asyncio.ensure_future(self._listen(track)))

    async def _listen(self, track) -> None:
        while True:
            try:
                frame = await track.recv()
            except aiortc.mediastreams.MediaStreamError:
                return
            self.heard.append(int(np.abs(frame.to_ndarray()).max()))

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.told]

    async def tell(self, kind: str, **fields) -> None:
        self.channel.send(json.dumps({"type": kind, **fields}))

    async def until(self, kind: str) -> dict:
        assert await soon(lambda: kind in self.kinds()), self.kinds()
        return next(event for event in reversed(self.told) if event["type"] == kind)


@pytest.fixture
def call(url):
    @asynccontextmanager
    async def calling(session: dict | None = None):
        caller = Caller()
        await caller.peer.setLocalDescription(await caller.peer.createOffer())
        offer = caller.peer.localDescription.sdp
        async with httpx.AsyncClient() as client:
            path = f"{url}/v1/realtime/calls"
            if session is None:
                headers = {"Content-Type": "application/sdp"}
                answer = await client.post(
                    f"{path}?model=gpt-realtime", content=offer, headers=headers
                )
            else:
                form = {"sdp": (None, offer), "session": (None, json.dumps(session))}
                answer = await client.post(path, files=form)
        assert answer.status_code == 201, answer.text
        caller.url = f"{url}{answer.headers['location']}"
        description = aiortc.RTCSessionDescription(answer.text, "answer")
        await asyncio.wait_for(caller.peer.setRemoteDescription(description), PATIENCE_S)
        try:
            yield caller
        finally:
            await caller.peer.close()

    return calling


async def test_a_call_hears_and_speaks(call, service):
    async with call({**MANUAL, "instructions": "Be brief."}) as caller:
        created = await caller.until("session.created")
        assert created["session"]["instructions"] == "Be brief."
        caller.mic.push(QUESTION.astype("<i2").tobytes())
        assert await soon(lambda: not caller.mic._pcm)
        await asyncio.sleep(0.3)
        await caller.tell("input_audio_buffer.commit")
        await caller.until("conversation.item.done")
        await caller.tell("response.create")
        done = await caller.until("response.done")
        assert done["response"]["status"] == "completed"
        await caller.until("output_audio_buffer.stopped")
        kinds = caller.kinds()
        assert "response.output_audio.delta" not in kinds
        assert kinds.index("output_audio_buffer.started") < kinds.index("response.done")
        assert await soon(lambda: sum(loud > QUIET for loud in caller.heard) >= 55)  # of 1.2 s
    wave, _ = service.encoded[-1]
    loud = np.abs(wave) > 0.05
    assert loud.sum() / 24_000 / 0.9 > 0.9 or loud.sum() > 10_000
    assert await soon(lambda: not service.open)


async def test_an_answer_that_is_stopped_falls_silent_and_history_holds_what_was_heard(
    call, service
):
    service.script = Script(seconds=8.0, first_s=0.02, rtf=0.02)
    async with call() as caller:
        await caller.until("session.created")
        content = [{"type": "input_text", "text": "One two three four five six seven eight."}]
        item = {"type": "message", "role": "user", "content": content}
        await caller.tell("conversation.item.create", item=item)
        await caller.tell("response.create")
        done = await caller.until("response.done")
        # It is made at once, and played in its time.
        assert await soon(lambda: sum(loud > QUIET for loud in caller.heard) >= 100)  # 2 s
        await caller.tell("output_audio_buffer.clear")
        cut = await caller.until("conversation.item.truncated")
        assert 500 < cut["audio_end_ms"] < 5000 and "output_audio_buffer.cleared" in caller.kinds()
        name = done["response"]["output"][0]["id"]
        await caller.tell("conversation.item.retrieve", item_id=name)
        kept = (await caller.until("conversation.item.retrieved"))["item"]["content"][0]
        assert "One" in kept["transcript"] and "eight" not in kept["transcript"]
        caller.heard.clear()
        await asyncio.sleep(0.5)
        assert sum(loud > QUIET for loud in caller.heard[-10:]) == 0


async def test_a_call_goes_on_speaking_beside_what_is_written(call, service):
    service.script = Script(seconds=3.0, first_s=0.02, rtf=0.02)
    async with call(MANUAL) as caller:
        await caller.until("session.created")
        await caller.tell("response.create")
        await caller.until("output_audio_buffer.started")
        spoken = (await caller.until("response.created"))["response"]["id"]
        apart = {"conversation": "none", "instructions": "Say what this is about."}
        written = {**apart, "output_modalities": ["text"]}
        await caller.tell("response.create", response=written)
        assert await soon(lambda: caller.kinds().count("response.done") == 2)
        stopped = await caller.until("output_audio_buffer.stopped")
        assert stopped["response_id"] == spoken
        service.script = Script(seconds=30.0, first_s=0.02, rtf=1.0)
        for _ in range(2):  # a call plays one at a time
            await caller.tell("response.create", response=apart)
        error = (await caller.until("error"))["error"]
        assert error["code"] == "conversation_already_has_active_response"


async def test_a_program_hangs_up(call, service):
    service.script = Script(seconds=30.0, first_s=0.02, rtf=1.0)
    async with call(MANUAL) as caller, httpx.AsyncClient() as client:
        await caller.until("session.created")
        await caller.tell("response.create")
        await caller.until("output_audio_buffer.started")
        assert (await client.post(f"{caller.url}/hangup")).status_code == 200
        assert await soon(lambda: caller.peer.connectionState == "closed" and not service.open)
        again = await client.post(f"{caller.url}/hangup")
        assert again.status_code == 404 and "has ended" in again.text


def test_without_its_package_calls_say_how_to_get_it(service, monkeypatch):
    monkeypatch.setitem(sys.modules, "moss_engine.endpoints.realtime.calls", None)
    with running(service) as url:
        answer = httpx.post(f"{url}/v1/realtime/calls", json={})
    assert answer.status_code == 501 and "pip install aiortc" in answer.text


async def test_what_is_no_offer_is_refused(url):
    async with httpx.AsyncClient(base_url=url) as client:
        sdp = {"Content-Type": "application/sdp"}
        path = "/v1/realtime/calls"
        for answer, status, words in (
            (await client.post(path, content="v=0", headers=sdp), 400, "cannot be answered"),
            (await client.post(path, json={}), 400, "send an SDP offer"),
            (await client.post(f"{path}?model=x", content="v=0", headers=sdp), 404, "no model"),
            (await client.post(path, content="v=0", headers={**sdp, "Origin": "https://x.example"}),
             403, "other addresses"),
        ):  # fmt: skip
            assert answer.status_code == status and words in answer.text
