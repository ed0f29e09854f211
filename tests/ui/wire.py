"""The network between browser and page, for tests that break it."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.ui.page_support import free_port


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


class Wire:
    """The network between browser and page, as a port of its own: it can be cut, or swallow what is
    on its way."""

    def __init__(self, to_port: int):
        self.port, self._to_port = free_port(), to_port
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._swallows: set[socket.socket] = set()
        self.mend()

    def mend(self) -> None:
        self._listening, self._cut = (
            socket.create_server(("127.0.0.1", self.port), backlog=64),
            False,
        )
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def cut(self) -> None:
        """All connections break, and new ones are refused."""
        with self._lock:
            ends, self._ends = [self._listening, *self._ends], []
            self._cut = True
        for end in ends:
            _close(end)

    def lead_to(self, port: int) -> None:
        """From now on connections go elsewhere."""
        self._to_port = port

    def swallow(self) -> None:
        """The open connections carry nothing any more, and nobody is told; new ones work."""
        self._swallows.update(self._ends)

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listening.accept()
                far = socket.create_connection(("127.0.0.1", self._to_port))
                with self._lock:
                    if self._cut or listening is not self._listening:  # meanwhile
                        _close(near)
                        _close(far)
                        return
                    self._ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                if one not in self._swallows:
                    other.sendall(data)
            other.shutdown(socket.SHUT_WR)
