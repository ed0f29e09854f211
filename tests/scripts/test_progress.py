"""What a long command shows of its way."""

from __future__ import annotations

import io

from scripts.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_one_line_that_fills() -> None:
    stream = Terminal()
    progress = Progress(4, "files", stream=stream)
    for name in ("a", "b", "c", "d"):
        progress.advance(1, name)
    progress.end()
    shown = stream.getvalue().split("\r\x1b[K")[1:]
    assert len(shown) == 4 and shown[-1].endswith("d\n") and "4.0 of 4.0 files" in shown[-1]
    assert [line.count("=") for line in shown] == [7, 15, 22, 30]
