"""What the page's measurements are made of: a slow link, and the phases of a reply."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from moss_engine.api.errors import ConfigError
from scripts.bench.common.link import LATE_S, Link
from scripts.bench.service import forecast, page_load, pauses
from scripts.bench.service.page_load import longest_of

PHASES = [(0, "before"), (100, "idle"), (500, "sent"), (700, "speaking"), (900, "done")]


def test_a_task_counts_for_what_the_reply_did_when_it_began():
    longest = longest_of([(90, 200), (650, 60), (690, 55), (800, 51), (850, 70)], PHASES, 95)
    assert {name: ms for name, ms in longest.items() if ms} == {"sent": 60, "speaking": 70}


def test_a_link_passes_no_more_than_its_rate_and_every_byte():
    sent, bits_s, round_trip_s = bytes(range(256)) * 100, 800_000, 0.1
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        end, _ = listening.accept()
        with end:
            end.sendall(sent)

    threading.Thread(target=serve, daemon=True).start()
    received = b""
    with Link(listening.getsockname()[1], bits_s, round_trip_s) as link:
        began_s = time.monotonic()
        with socket.create_connection(("127.0.0.1", link.port)) as end:
            while data := end.recv(65536):
                received += data
        took_s = time.monotonic() - began_s
        assert link.received_bytes == len(sent)
    listening.close()
    assert received == sent
    assert took_s >= 8 * len(sent) / bits_s + 1.5 * round_trip_s - LATE_S


@pytest.mark.parametrize("command", [forecast, page_load, pauses])
def test_commands_with_a_number_explain_themselves(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        command.parse(["--help"])
    assert f"python -m {command.__name__}" in capsys.readouterr().out
    assert command.parse(["7"]) == 7 and command.parse([]) > 1
    with pytest.raises(SystemExit, match="2"):
        command.parse(["many"])
    with pytest.raises(ConfigError, match="from 1 on"):
        command.parse(["0"])
