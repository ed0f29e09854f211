"""What visitors say: blocks, turns and files become utterances, and everything else one sentence;
hands-free turns by their words, murmurs, coughs and the page's own echo. One visitor, however busy, takes
nothing from another: recordings, files that are being sent, conversations."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json

import numpy as np
import pytest
import soundfile

from moss_engine.api.errors import AudioEmptyError, AudioLongError, BusyError, ParameterError
from moss_engine.api.request import Speech
from moss_engine.api.transcript import Transcript
from moss_engine.audio import turn_judge
from moss_engine.audio.follower import TAIL_S
from moss_engine.audio.hearing import MOST_S
from moss_engine.audio.turn_judge import WAITS_S
from moss_engine.audio.turn_taking import FRAME_S, LEAD_S, RATE_HZ
from moss_engine.ui import conversation as sessions_module
from moss_engine.ui.audio_in import ingest as module
from moss_engine.ui.audio_in.ingest import AudioIngest, Utterance
from moss_engine.ui.audio_in.microphone import LOOK_S, Microphone
from moss_engine.ui.conversation import Sessions
from moss_engine.ui.entrance.guard import Guard
from moss_engine.ui.entrance.upload import MAX_FILE_BYTES, Upload
from tests.ui.page_support import FakeService, asked, soon


class Loud:
    """A detector for which speech is what is loud."""

    def open(self):
        return self

    def probability(self, pcm: np.ndarray) -> float:
        return float(np.abs(pcm).max() > 1000)


async def hear(wave: np.ndarray, rate_hz: int, words: object) -> Speech:
    return Speech((round(float(np.abs(wave).max()) * 100), len(wave) * 100 // rate_hz))


@pytest.fixture
def ingest() -> AudioIngest:
    return AudioIngest(hear, Loud(), max_s=5.0)


def tone(seconds: float, level: float = 0.5, rate_hz: int = RATE_HZ) -> np.ndarray:
    """int16 [n]"""
    return np.rint(level * 32767 * np.sin(np.arange(round(seconds * rate_hz)))).astype(np.int16)


def seconds_of(said: Utterance) -> float:
    return len(said.pcm) / said.rate_hz


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE_HZ), np.int16)


def file_of(pcm: np.ndarray, rate_hz: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, pcm, rate_hz, format="WAV")
    return file.getvalue()


async def record(
    ingest: AudioIngest,
    *blocks: np.ndarray,
    ear: Microphone | None = None,
    hands_free: bool = False,
) -> list:
    """All answers to blocks that are sent in order; the last one ends the recording unless it is
    hands-free."""
    ear = ear or Microphone(ingest)
    ear.use(hands_free=hands_free)
    return [
        await ear.hear(block.astype("<i2").tobytes(), end=not hands_free and number == len(blocks))
        for number, block in enumerate(blocks, 1)
    ]


async def test_push_to_talk_keeps_every_sample_and_nothing_of_a_dropped_recording(ingest):
    ear = Microphone(ingest)
    ear.use(hands_free=False)
    await ear.hear(tone(1.0).tobytes())
    with pytest.raises(ParameterError, match="lost"):
        await ear.hear(b"abc")
    blocks = [tone(0.1, level) for level in (0.2, 0.9, 0.4)]
    first, _, last = await record(ingest, *blocks, ear=ear)
    assert first.talking and not first.utterance and last.seconds == pytest.approx(0.3)
    said = await ingest.said(last.utterance)
    assert np.array_equal(said.pcm, np.concatenate(blocks)) and said.speech.codes == (90, 30)


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


@pytest.mark.parametrize("known", [True, False])
async def test_the_pages_own_sound_is_no_turn_where_it_is_known(ingest, known):
    rng = np.random.default_rng(0)
    begins = np.minimum(1.0, np.arange(6 * RATE_HZ) / (0.3 * RATE_HZ))  # as softly as a voice
    noise = 3000 * begins * rng.normal(size=6 * RATE_HZ)
    played = np.rint(noise).clip(-32768, 32767).astype(np.int16)
    heard = np.roll(played // 2, 800)
    ear = Microphone(ingest)
    ear.use(hands_free=True)
    ear.page.answering = True
    talking = []
    for start in range(0, len(heard), 1024):
        part = slice(start, start + 1024)
        out = played[part].tobytes() if known else None
        answer = await ear.hear(heard[part].tobytes(), out)
        talking.append(answer.talking)
    assert any(talking) is not known


@pytest.mark.parametrize(("said_s", "count"), [(0.8, 1), (0.15, 0)])
async def test_a_microphone_that_ends_in_mid_sentence_completes_the_turn(ingest, said_s, count):
    ear = Microphone(ingest)
    wave = np.concatenate([silence(0.5), tone(said_s)])
    (before,) = await record(ingest, wave, ear=ear, hands_free=True)
    assert before.talking and not before.utterance
    last = await ear.hear(b"", end=True)
    assert not last.talking and bool(last.utterance) is bool(count)
    if count:
        said = await ingest.said(last.utterance)
        assert LEAD_S + said_s - 0.1 < seconds_of(said) < LEAD_S + said_s + TAIL_S


@pytest.mark.parametrize(
    ("pause_s", "unheard", "asked", "mends"),
    [
        (1.0, False, True, True),  # soon behind the judged end
        (3.0, True, True, True),  # over the first words of the answer
        (3.0, False, True, False),
        (2.1, False, True, False),  # it ended 1.4 s before
        (1.0, True, False, False),  # something else was asked meanwhile
    ],
)
async def test_who_goes_on_had_not_finished(ingest, pause_s, unheard, asked, mends):
    ear, say = Microphone(ingest), np.concatenate([tone(0.6), silence(0.7)])
    ear.use(hands_free=True)
    first = await ear.hear(say.tobytes())
    if not asked:
        ear.page.asked = ""
    await ear.hear(silence(pause_s - 0.7).tobytes())
    ear.page.unheard = unheard
    await ear.hear(tone(0.3).tobytes())
    keys = ear.before
    last = await ear.hear(say.tobytes())
    said = await ingest.said(last.utterance)
    assert said.keys == ((first.utterance,) if mends else ()) + (last.utterance,)
    assert keys == said.keys[:-1] and (seconds_of(said) > 1.6) is mends


async def test_without_a_detector_only_the_button_works():
    ingest = AudioIngest(hear, None, max_s=5.0)
    with pytest.raises(ParameterError, match="press the button"):
        await record(ingest, tone(1.0), hands_free=True)
    assert (await record(ingest, tone(1.0)))[-1].utterance


def gated() -> tuple[AudioIngest, asyncio.Event]:
    """Nothing is understood before the event is set."""
    gate = asyncio.Event()

    async def hear_at_the_gate(wave: np.ndarray, rate_hz: int, words: object) -> Speech:
        return Speech((int(await gate.wait()),))

    return AudioIngest(hear_at_the_gate, None, max_s=5.0), gate


async def test_recordings_that_wait_to_be_understood_are_bounded_for_each_visitor_and_for_all():
    ingest, gate = gated()

    def keep(visitor: str) -> str:
        return ingest.keep(tone(0.5), RATE_HZ, visitor=visitor).key

    keys = [keep("many") for _ in range(module.MAX_PENDING_OF_VISITOR)]
    with pytest.raises(BusyError):
        keep("many")
    keys += [keep(f"visitor {n}") for n in range(module.MAX_PENDING - len(keys))]
    with pytest.raises(BusyError, match="waiting to be understood"):
        keep("another")
    waiting, leaving = (asyncio.ensure_future(ingest.said(key)) for key in (keys[0], keys[-1]))
    await asyncio.sleep(0.05)
    assert not waiting.done() and not leaving.done()
    leaving.cancel()
    gate.set()
    assert (await waiting).speech.codes == (1,)
    assert (await ingest.said(keys[-1])).speech.codes == (1,), "the cancelled wait stopped the work"


async def unused(scope, receive, send):
    pytest.fail("the request went on to Gradio")


async def post(ingest: AudioIngest, body: bytes = b"", *more, method="POST") -> tuple[int, dict]:
    """Status and JSON of a request through the guard."""
    head = [(b"host", b"localhost"), *more]
    upload = Upload(ingest, lambda address: address)
    guard = Guard(unused, calls={}, state=unused, upload=upload)
    scope = {"path": "/gradio_api/hear", "method": method, "headers": head}
    status, _, told = await asked(guard, scope, body, parts=2)
    return status, json.loads(told)


async def test_a_file_comes_in_and_what_is_none_is_refused(ingest):
    for rate_hz in (16_000, 44_100):
        status, answer = await post(ingest, file_of(tone(0.5, rate_hz=rate_hz), rate_hz))
        assert status == 200 and answer["seconds"] == pytest.approx(0.5)
        said = await ingest.said(answer["utterance"])
        assert said.rate_hz == rate_hz and said.speech.codes == (50, 50)
    status, answer = await post(ingest, b"<html>" * 50)
    assert (status, answer["code"]) == (422, "E_AUDIO_FORMAT")
    size = str(MAX_FILE_BYTES + 1).encode()
    assert (await post(ingest, b"RIFF", (b"content-length", size)))[0] == 413
    assert (await post(ingest, b"RIFF" + bytes(MAX_FILE_BYTES)))[0] == 413
    assert (await post(ingest, method="GET"))[0] == 405
    assert (await post(ingest, b"RIFF", (b"origin", b"https://evil.example")))[0] == 403


BLOCK_S = 0.032


class Ear:
    """Understands what is written down; counts who asks."""

    def __init__(self, text: str, sure: bool = True):
        self.text, self.sure, self.glimpses, self.whole = text, sure, 0, 0

    async def transcribe_partial(self, wave: np.ndarray, rate_hz: int) -> Transcript | None:
        self.glimpses += 1
        return Transcript(self.text, "Ear", len(wave) / rate_hz, sure=self.sure)

    async def hear(self, wave: np.ndarray, rate_hz: int, words: object) -> Speech:
        self.whole += 1
        return Speech((), Transcript(self.text, "Ear", len(wave) / rate_hz))


def ingest_of(ear: Ear, *, by_words: bool = True) -> AudioIngest:
    return AudioIngest(
        ear.hear, Loud(), max_s=20.0, transcribe_partial=ear.transcribe_partial, by_words=by_words
    )


async def feed(
    to: AudioIngest | Microphone, wave: np.ndarray, *, answering: bool = False, saying: str = ""
) -> list:
    """Every answer, block by block, as a microphone sends them; that of a microphone goes on."""
    microphone, answers = (to if isinstance(to, Microphone) else Microphone(to)), []
    if microphone is not to:
        microphone.use(hands_free=True)
    microphone.page.answering, microphone.page.words = answering, saying
    size = round(BLOCK_S * RATE_HZ)
    for start in range(0, len(wave), size):
        body = wave[start : start + size].astype("<i2").tobytes()
        answers.append(await microphone.hear(body))
        await asyncio.sleep(0)
        working = asyncio.all_tasks() - {asyncio.current_task()}
        if working:
            await asyncio.wait(working)
    return answers


def pause_before_the_end(answers: list, speech_s: float) -> float:
    ended = next(index for index, answer in enumerate(answers) if answer.utterance)
    return (ended + 1) * BLOCK_S - speech_s


@pytest.mark.parametrize(
    ("text", "pause"), [("What time is it?", WAITS_S[0]), ("What is the capital of", WAITS_S[-1])]
)
async def test_the_pause_that_ends_a_turn_depends_on_what_was_said(text, pause, monkeypatch):
    monkeypatch.setattr(turn_judge, "load_melody", lambda: None)  # of tones it knows nothing
    ear = Ear(text)
    ingest = ingest_of(ear)
    answers = await feed(ingest, np.concatenate([tone(1.5), silence(2.0)]))
    assert pause - FRAME_S <= pause_before_the_end(answers, 1.5) <= pause + 3 * BLOCK_S
    assert any(answer.talking and answer.text == text for answer in answers)
    assert any(answer.pauses for answer in answers)
    (key,) = [answer.utterance for answer in answers if answer.utterance]
    assert (await ingest.said(key)).speech.transcript.text == text
    assert ear.whole == 0 and 1 <= ear.glimpses <= 6, "it is listened to again"


async def test_a_monologue_is_heard_once_it_is_over():
    ear = Ear("And so on.")
    ingest = ingest_of(ear)
    answers = await feed(ingest, np.concatenate([tone(19.0), silence(1.5)]))
    (key,) = [answer.utterance for answer in answers if answer.utterance]
    assert len((await ingest.said(key)).pcm) > 19.0 * RATE_HZ
    assert ear.whole == 1 and ear.glimpses <= MOST_S / LOOK_S + 1


async def test_a_cough_and_a_murmur_are_no_question_and_interrupt_nothing():
    for text in ("", "Mm-hmm."):
        wave = np.concatenate([silence(0.5), tone(0.6), silence(2.0)])
        answers = await feed(ingest_of(Ear(text)), wave, answering=True)
        begins = [answer.begins for answer in answers].index(True)
        assert begins < [answer.talking for answer in answers].index(True)
        assert not any(answer.talking and answer.sure for answer in answers)
        assert not any(answer.utterance for answer in answers)


@pytest.mark.parametrize(("word", "goes_on"), [("And tomorrow?", True), ("Stop, please.", False)])
async def test_who_asks_for_silence_had_finished(word, goes_on, monkeypatch):
    monkeypatch.setattr(turn_judge, "load_melody", lambda: None)
    ear = Ear("What time is it?")
    microphone = Microphone(ingest_of(ear))
    microphone.use(hands_free=True)
    await feed(microphone, np.concatenate([tone(1.5), silence(0.7)]))
    ear.text = word
    answers = await feed(microphone, np.concatenate([tone(0.7), silence(1.0)]), answering=True)
    assert sum(bool(answer.utterance) for answer in answers) == 1
    assert bool(microphone.before) is goes_on


@pytest.mark.parametrize(("by_words", "count"), [(False, 1), (True, 0)])
async def test_what_the_recogniser_cannot_make_out_is_for_the_checkpoint_to_hear(by_words, count):
    ingest = ingest_of(Ear("Ah, ah, ah.", sure=False), by_words=by_words)
    answers = await feed(ingest, np.concatenate([tone(1.5), silence(2.0)]))
    assert sum(bool(answer.utterance) for answer in answers) == count


SECOND = np.full(RATE_HZ, 5000, np.int16)


async def test_many_recordings_of_one_visitor_leave_those_of_another(monkeypatch):
    monkeypatch.setattr(module, "KEPT_BYTES", 5 * SECOND.nbytes)
    kept = AudioIngest(hear, None, max_s=5.0)
    other = kept.keep(SECOND, RATE_HZ, visitor="other")
    for _ in range(24):
        mine = kept.keep(SECOND, RATE_HZ, visitor="many")
        await mine.heard
    assert (await kept.said(other.key)).speech.codes == (15, 100)
    assert (await kept.said(mine.key)).speech.codes == (15, 100)


async def test_a_recording_is_known_for_a_while_and_forgotten_by_itself(monkeypatch):
    monkeypatch.setattr(module, "KEPT_S", 1.0)
    kept = AudioIngest(hear, None, max_s=5.0)
    recording = kept.keep(SECOND, RATE_HZ)
    assert (await kept.said(recording.key)).speech.codes == (15, 100)
    assert await soon(lambda: not kept._recordings)
    with pytest.raises(ParameterError, match="not known any more"):
        await kept.said(recording.key)


def test_half_sent_files_are_few_and_leave_room_for_others(ingest):
    with contextlib.ExitStack() as sending:
        for _ in range(module.MAX_FILES_OF_VISITOR):
            sending.enter_context(ingest.receiving("many"))
        with pytest.raises(BusyError), ingest.receiving("many"):
            pass
        with ingest.receiving("other"):
            pass
    with ingest.receiving("many"):
        pass


KEY = "0123456789abcdef" * 2


class Left(FakeService):
    """Notes who left."""

    async def remove_voice(self, session_id: str) -> None:
        self.cancelled.append(session_id)


async def test_many_sessions_of_one_visitor_push_out_their_own(monkeypatch):
    monkeypatch.setattr(sessions_module, "MAX_CONVERSATIONS", 20)
    kept = Sessions(Left())
    other = kept.of("other's tab", "other")
    for number in range(300):
        kept.of(f"tab {number}", "many")
    assert kept.of("other's tab", "other") is other
    gone = kept._service.cancelled
    assert await soon(lambda: len(gone) == 300 - 19) and "other's tab" not in gone


async def test_a_conversation_that_is_not_used_is_forgotten(monkeypatch):
    monkeypatch.setattr(sessions_module, "STATE_S", 1.0)
    kept = Sessions(Left())
    old, used = kept.of("old", name=KEY), kept.of("used")
    assert await soon(lambda: kept.of("used") and kept._service.cancelled == ["old"])
    assert kept.of("used") is used and kept.of("old", name=KEY) is not old
