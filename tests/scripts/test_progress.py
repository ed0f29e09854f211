"""What a long command shows of its way."""

from __future__ import annotations

import io

from scripts.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_elsewhere_a_line_every_tenth_of_the_way() -> None:
    stream = io.StringIO()
    progress = Progress(200, "GB", 1e9, stream)
    for _ in range(100):
        progress.advance(2)
    assert progress.end() >= 0
    lines = stream.getvalue().splitlines()
    assert 10 <= len(lines) <= 12 and lines[-1].startswith(" 100%") and "GB" in lines[-1]


def test_on_a_terminal_one_line_that_fills() -> None:
    stream = Terminal()
    progress = Progress(4, "files", stream=stream)
    for name in ("a", "b", "c", "d"):
        progress.advance(1, name)
    progress.end()
    shown = stream.getvalue().split("\r\x1b[K")[1:]
    assert len(shown) == 4 and shown[-1].endswith("d\n") and "4.0 of 4.0 files" in shown[-1]
    assert [line.count("=") for line in shown] == [7, 15, 22, 30]
