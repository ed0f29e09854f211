"""One line a reply for the operator: why it ended, and nothing of what was said."""

import asyncio
import json
import logging

from moss_engine.service import open_replies
from moss_engine.service.open_replies import BURST, MAX_LINES_PER_S, ReplyLog
from tests.service.service_support import ask, listen, served, talking, wait_until


def lines(caplog) -> list[dict]:
    return [json.loads(record.message) for record in caplog.records]


def test_a_reply_leaves_one_line_without_its_words(caplog):
    caplog.set_level(logging.INFO, open_replies.log.name)
    with served() as service:
        asyncio.run(listen(service, ask("my secret")))
        wait_until(lambda: caplog.records)
        (line,) = lines(caplog)
    assert (line["end"], line["mode"], line["rows"]) == ("stop", "speech", 8)
    assert line["sound_s"] == 0.12 and 0 <= line["first_sound_s"] <= line["seconds"]
    assert "secret" not in caplog.text and "cause" not in line


def test_the_line_says_why_a_reply_was_stopped(caplog):
    caplog.set_level(logging.INFO, open_replies.log.name)
    with served(talking(), lease_s=1.0, run_ahead_s=0.5) as service:
        service.submit(ask())
        stopped = service.submit(ask(session="mine"))
        service.cancel_session("mine")
        service.cancel(stopped.request_id)
        wait_until(lambda: len(caplog.records) == 2)
        assert [line["cause"] for line in lines(caplog)] == ["session", "nobody listens"]
        assert all(line["end"] == "cancelled" for line in lines(caplog))


def test_lines_are_bounded_in_number_and_those_left_out_are_counted(caplog):
    caplog.set_level(logging.INFO, open_replies.log.name)
    now = [0.0]
    log = ReplyLog(lambda: now[0])
    for _ in range(1000):
        log.write({"end": "stop"})
    assert len(caplog.records) == BURST
    now[0] += 1.0
    for _ in range(1000):
        log.write({"end": "stop"})
    assert len(caplog.records) == BURST + MAX_LINES_PER_S
    assert lines(caplog)[int(BURST)]["left_out"] == 1000 - BURST
