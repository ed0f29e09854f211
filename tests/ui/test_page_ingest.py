"""What visitors say: blocks, turns and files become utterances, and everything else one
sentence."""

from __future__ import annotations

import asyncio
import io
import json

import numpy as np
import pytest
import soundfile

from moss_engine.api.errors import (
    AudioEmptyError,
    AudioFormatError,
    AudioLongError,
    BusyError,
    ParameterError,
)
from moss_engine.api.request import Speech
from moss_engine.audio.turn_taking import END_S, LEAD_S, RATE_HZ
from moss_engine.ui.audio_in import ingest as module
from moss_engine.ui.audio_in import recordings
from moss_engine.ui.audio_in.follower import TAIL_S
from moss_engine.ui.audio_in.ingest import AudioIngest
from moss_engine.ui.audio_in.route import MAX_BLOCK_BYTES, MAX_FILE_BYTES
from moss_engine.ui.entrance.guard import Calls, Guard


class Loud:
    """A detector for which speech is what is loud."""

    def open(self):
        return self

    def probability(self, pcm: np.ndarray) -> float:
        return float(np.abs(pcm).max() > 1000)


async def hear(wave: np.ndarray, rate_hz: int) -> Speech:
    return Speech((round(float(np.abs(wave).max()) * 100), len(wave) * 100 // rate_hz))


@pytest.fixture
def ingest() -> AudioIngest:
    return AudioIngest(hear, Loud(), max_s=5.0)


def tone(seconds: float, level: float = 0.5, rate_hz: int = RATE_HZ) -> np.ndarray:
    """int16 [n]"""
    return np.rint(level * 32767 * np.sin(np.arange(round(seconds * rate_hz)))).astype(np.int16)


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE_HZ), np.int16)


def file_of(pcm: np.ndarray, rate_hz: int = RATE_HZ, form: str = "WAV") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, pcm, rate_hz, format=form)
    return file.getvalue()


async def record(ingest: AudioIngest, *blocks: np.ndarray, ear: str | None = None, **flags) -> list:
    """All answers to blocks that are sent in order; the last one ends the recording unless it is
    hands-free."""
    ear = ear or ingest.open()
    options = {"hands_free": False, "answering": False, **flags}
    return [
        await ingest.hear(
            ear,
            seq,
            block.astype("<i2").tobytes(),
            **options,
            end=not options["hands_free"] and seq == len(blocks) - 1,
        )
        for seq, block in enumerate(blocks)
    ]


async def test_push_to_talk_keeps_every_sample(ingest):
    blocks = [tone(0.1, level) for level in (0.2, 0.9, 0.4)]
    first, _, last = await record(ingest, *blocks)
    assert first.talking and not first.utterance and last.seconds == pytest.approx(0.3)
    said = await ingest.said(last.utterance)
    assert np.array_equal(said.pcm, np.concatenate(blocks)) and said.codes == (90, 30)


async def test_a_block_sent_again_counts_once(ingest):
    ear, block = ingest.open(), tone(0.3).tobytes()
    options = {"hands_free": False, "answering": False}
    await ingest.hear(ear, 0, block, **options, end=False)
    first = await ingest.hear(ear, 1, block, **options, end=True)
    assert await ingest.hear(ear, 1, block, **options, end=True) == first
    assert (await ingest.said(first.utterance)).seconds == pytest.approx(0.6)
    with pytest.raises(ParameterError, match="lost"):
        await ingest.hear(ear, 3, block, **options, end=True)


async def test_a_new_recording_forgets_a_dropped_one(ingest):
    ear = ingest.open()
    await ingest.hear(ear, 0, tone(1.0).tobytes(), hands_free=False, answering=False, end=False)
    (answer,) = await record(ingest, tone(0.4, 0.1), ear=ear)
    assert (await ingest.said(answer.utterance)).codes == (10, 40)


@pytest.mark.parametrize(
    ("pcm", "error"),
    [
        (silence(1.0), AudioEmptyError),
        (tone(0.05), AudioEmptyError),
        (silence(0.0), AudioEmptyError),
        (tone(5.1), AudioLongError),
    ],
)
async def test_what_holds_no_question_is_refused(ingest, pcm, error):
    with pytest.raises(error):
        await record(ingest, pcm)


async def test_hands_free_finds_the_turns(ingest):
    wave = np.concatenate([silence(1.0), tone(1.0), silence(1.0), tone(0.5, 0.2), silence(1.0)])
    answers = await record(ingest, *np.array_split(wave, 40), hands_free=True)
    found = [answer.utterance for answer in answers if answer.utterance]
    assert len(found) == 2 and not answers[-1].talking and any(answer.talking for answer in answers)
    first, second = [await ingest.said(key) for key in found]
    assert 1.0 + LEAD_S - 0.1 < first.seconds < 1.0 + LEAD_S + TAIL_S + 0.1
    assert (first.codes[0], second.codes[0]) == (50, 20)
    assert np.abs(first.pcm[: round(0.2 * RATE_HZ)]).max() == 0, "the lead is missing"


async def test_all_turns_of_a_late_block_are_one_message(ingest):
    wave = np.concatenate([tone(0.6), silence(1.0), tone(0.6, 0.3), silence(1.0)])
    (answer,) = await record(ingest, wave, hands_free=True)
    said = await ingest.said(answer.utterance)
    assert len(said.keys) == 2 and said.codes[0] == 50 and said.codes[2] == 30


async def test_silence_is_not_kept(ingest):
    ear = ingest.open()
    await record(ingest, *[silence(1.0)] * 60, ear=ear, hands_free=True)
    assert sum(map(len, ingest._sessions[ear].follower.frames)) <= (LEAD_S + END_S) * RATE_HZ


async def test_a_turn_ends_at_the_limit(ingest):
    answers = await record(ingest, *[tone(0.5)] * 12, hands_free=True)
    (said,) = [await ingest.said(answer.utterance) for answer in answers if answer.utterance]
    assert said.seconds <= 5.0


@pytest.mark.parametrize(("said_s", "count"), [(0.8, 1), (0.15, 0)])
async def test_a_microphone_that_ends_in_mid_sentence_completes_the_turn(ingest, said_s, count):
    ear, options = ingest.open(), {"hands_free": True, "answering": False}
    wave = np.concatenate([silence(0.5), tone(said_s)]).astype("<i2")
    before = await ingest.hear(ear, 0, wave.tobytes(), **options, end=False)
    assert before.talking and not before.utterance
    last = await ingest.hear(ear, 1, b"", **options, end=True)
    assert not last.talking and bool(last.utterance) is bool(count)
    if count:
        said = await ingest.said(last.utterance)
        assert LEAD_S + said_s - 0.1 < said.seconds < LEAD_S + said_s + TAIL_S


async def test_without_a_detector_only_the_button_works():
    ingest = AudioIngest(hear, None, max_s=5.0)
    with pytest.raises(ParameterError, match="press the button"):
        await record(ingest, tone(1.0), hands_free=True)
    assert (await record(ingest, tone(1.0)))[-1].utterance


@pytest.mark.parametrize(
    ("rate_hz", "form"), [(8_000, "WAV"), (44_100, "FLAC"), (48_000, "OGG"), (96_000, "WAV")]
)
async def test_files_of_any_rate_are_encoded_at_their_own(ingest, rate_hz, form):
    answer = await ingest.read_file(ingest.open(), file_of(tone(1.0, 0.5, rate_hz), rate_hz, form))
    said = await ingest.said(answer.utterance)
    assert (
        said.rate_hz == rate_hz
        and said.codes[1] in (99, 100)
        and answer.seconds == pytest.approx(1.0, abs=0.01)
    )


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", AudioFormatError),
        (b"hello" * 99, AudioFormatError),
        (b"#EXTM3U\n/etc/passwd\n", AudioFormatError),
        (file_of(silence(1.0)), AudioEmptyError),
        (file_of(tone(6.0)), AudioLongError),
    ],
)
async def test_bad_files_are_refused(ingest, data, error):
    with pytest.raises(error):
        await ingest.read_file(ingest.open(), data)


async def test_utterances_are_joined_in_order(ingest):
    keys = [(await record(ingest, tone(0.5, level)))[-1].utterance for level in (0.1, 0.2)]
    said = await ingest.said("+".join(keys))
    assert (
        said.keys == tuple(keys)
        and said.codes == (10, 50, 20, 50)
        and said.seconds == pytest.approx(1.0)
    )
    for wrong in ("", "nothing", f"{keys[0]}+", "+".join(keys * 5)):
        with pytest.raises(ParameterError, match="not known"):
            await ingest.said(wrong)
    file = await ingest.read_file(ingest.open(), file_of(tone(1.0, 0.5, 8000), 8000))
    with pytest.raises(ParameterError, match="sample rates"):
        await ingest.said(f"{keys[0]}+{file.utterance}")


async def test_old_recordings_are_forgotten():
    now = [0.0]
    ingest = AudioIngest(hear, None, max_s=5.0, clock=lambda: now[0])
    first = (await record(ingest, tone(0.5)))[-1].utterance
    now[0] = recordings.KEPT_S + 1
    second = (await record(ingest, tone(0.5)))[-1].utterance
    assert (await ingest.said(second)).codes
    with pytest.raises(ParameterError):
        await ingest.said(first)


async def test_recordings_are_bounded_together(ingest, monkeypatch):
    monkeypatch.setattr(recordings, "KEPT_BYTES", 3 * RATE_HZ)
    keys = [(await record(ingest, tone(1.0)))[-1].utterance for _ in range(4)]
    assert list(ingest._recordings._recordings) == keys[-2:]


async def test_ears_are_bounded_and_given_back():
    now = [0.0]
    ingest = AudioIngest(hear, None, max_s=5.0, clock=lambda: now[0])
    first = ingest.open()
    for number in range(module.MAX_SESSIONS - 1):
        ingest.open(f"visitor {number}")
    with pytest.raises(BusyError):
        ingest.open("newcomer")
    now[0] = module.SESSION_IDLE_S + 1
    assert ingest.open()
    with pytest.raises(ParameterError, match="closed"):
        await ingest.hear(first, 0, b"", hands_free=False, answering=False, end=False)


async def test_the_event_loop_goes_on_while_somebody_listens():
    gate = asyncio.Event()

    async def hear_at_the_gate(wave: np.ndarray, rate_hz: int) -> Speech:
        return Speech((int(await gate.wait()),))

    ingest = AudioIngest(hear_at_the_gate, None, max_s=5.0)
    ears = [ingest.open(f"visitor {number % 4}") for number in range(recordings.MAX_PENDING)]
    keys = [(await record(ingest, tone(0.5), ear=ear))[-1].utterance for ear in ears]
    waiting, leaving = (asyncio.ensure_future(ingest.said(key)) for key in (keys[0], keys[-1]))
    await asyncio.sleep(0.05)
    assert not waiting.done() and not leaving.done()
    leaving.cancel()
    with pytest.raises(BusyError, match="waiting to be understood"):
        await record(ingest, tone(0.5))
    gate.set()
    assert (await waiting).codes == (1,)
    assert (await ingest.said(keys[-1])).codes == (1,), "the cancelled wait stopped the work"


async def test_who_fails_to_listen_is_a_sentence():
    async def fail(wave, rate_hz):
        raise AudioEmptyError("Nothing there.")

    ingest = AudioIngest(fail, None, max_s=5.0)
    with pytest.raises(AudioEmptyError, match="Nothing there"):
        await ingest.said((await record(ingest, tone(0.5)))[-1].utterance)


async def unused(scope, receive, send):
    pytest.fail("the request went on to Gradio")


async def post(
    ingest: AudioIngest,
    path: str,
    body: bytes = b"",
    *,
    query: str = "",
    method: str = "POST",
    length: int | None = None,
    saying: bytes = b"",
) -> tuple[int, dict]:
    """Status and JSON of a request through the guard."""
    pieces, sent = [body[: len(body) // 2], body[len(body) // 2 :]], []

    async def receive():
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message):
        sent.append(message)

    headers = [
        (b"host", b"localhost"),
        (b"content-length", str(len(body) if length is None else length).encode()),
        (b"x-saying", saying),
    ]
    scope = {
        "type": "http",
        "path": path,
        "method": method,
        "headers": headers,
        "query_string": query.encode(),
    }
    await Guard(unused, calls=Calls({}, {}, frozenset()), state=unused, ingest=ingest)(
        scope, receive, send
    )
    return sent[0]["status"], json.loads(sent[1]["body"])


async def test_the_wire_takes_blocks_and_files(ingest):
    ear = ingest.open()
    status, answer = await post(
        ingest, f"/gradio_api/hear/{ear}", tone(0.5).tobytes(), query="seq=0&end=1"
    )
    assert status == 200 and (await ingest.said(answer["utterance"])).seconds == pytest.approx(0.5)
    status, answer = await post(ingest, f"/gradio_api/hear/{ear}/file", file_of(tone(0.5)))
    assert status == 200 and answer["seconds"] == pytest.approx(0.5)


async def test_the_wire_takes_the_words_of_the_answer(ingest, monkeypatch):
    heard, hear = [], ingest.hear

    async def noting(key, **given):
        heard.append(given["saying"])
        return await hear(key, **given)

    monkeypatch.setattr(ingest, "hear", noting)
    path, body = f"/gradio_api/hear/{ingest.open()}", tone(0.5).tobytes()
    said = b"It%20is%20caf%C3%A9%20time."
    assert (await post(ingest, path, body, query="seq=0", saying=said))[0] == 200
    assert heard == ["It is café time."]


@pytest.mark.parametrize(
    ("query", "body", "status"),
    [
        ("", b"", 422),
        ("seq=x", b"", 422),
        ("seq=-1", b"", 422),
        ("seq=0&end=2", b"", 422),
        ("seq=0", b"abc", 422),
        ("seq=7", b"ab", 422),
        ("seq=0&end=1", silence(1.0).tobytes(), 422),
        ("seq=0", bytes(MAX_BLOCK_BYTES + 2), 413),
        ("seq=0&end=1", tone(6.0).tobytes(), 413),
    ],
)
async def test_the_wire_refuses_what_is_no_block(ingest, query, body, status):
    known, answer = await post(ingest, f"/gradio_api/hear/{ingest.open()}", body, query=query)
    assert known == status and answer["detail"].endswith(".")


async def test_the_wire_refuses_what_is_no_file(ingest):
    path = f"/gradio_api/hear/{ingest.open()}/file"
    status, answer = await post(ingest, path, b"<html>" * 50)
    assert (status, answer["code"]) == (422, "E_AUDIO_FORMAT")
    assert (await post(ingest, path, b"RIFF", length=MAX_FILE_BYTES + 1))[0] == 413
    assert (await post(ingest, path, b"RIFF" + bytes(MAX_FILE_BYTES)))[0] == 413


@pytest.mark.parametrize("path", ["", "unknown-unknown-unknown", "../../etc/passwd", "a" * 200])
async def test_the_wire_knows_open_ears_only(ingest, path):
    assert (await post(ingest, f"/gradio_api/hear/{path}", tone(0.5).tobytes(), query="seq=0"))[
        0
    ] == 404
    assert (await post(ingest, f"/gradio_api/hear/{ingest.open()}", query="seq=0", method="GET"))[
        0
    ] == 404
