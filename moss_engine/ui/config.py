"""How the page is served: address, link, password, and what visitors may do."""

from __future__ import annotations

import errno
import os
import re
import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from moss_engine.api.errors import ConfigError
from moss_engine.options import check_options, option

ORIGIN = re.compile(r"https?://(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?", re.ASCII)
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
SWITCH_S = 0.0002
"""For which a thread may keep Python's lock from the others: the event loop takes it many times for
an answer, of whose wait texts that are being prepared would make a fifth of a second."""

_page = partial(option, group="page")


@dataclass(frozen=True)
class PageConfig:
    """The page's options with their defaults."""

    host: str = _page("127.0.0.1", "address to listen on")
    port: int = _page(7860, "port to listen on", low=1, high=65535)
    tls_cert: Path | None = _page(
        None,
        "certificate (PEM, with those that signed it) to serve by https and wss; with --tls-key",
        metavar="FILE",
    )
    tls_key: Path | None = _page(
        None, "private key of --tls-cert (PEM, without a password)", metavar="FILE"
    )
    share: bool = _page(False, "make a public link through Gradio's relay")
    own_voice: bool = _page(
        False,
        "visitors may be answered in a voice made of their own recording, if they agree; "
        "never on public addresses",
    )
    auth: str | None = _page(None, "USER:PASSWORD asked of every visitor", metavar="USER:PASSWORD")
    api_key_file: Path | None = _page(
        None,
        "keys of programs, one a line: NAME KEY [places=N] [per_minute=N]; without it they are "
        "answered on this machine alone, and not beside --share or --auth",
        metavar="FILE",
    )
    api_origins: str | None = _page(
        None,
        "web pages of other addresses that may call with a key, as https://app.example, with "
        "commas between them",
        metavar="ORIGINS",
    )
    api_names: str | None = _page(
        None,
        "names that programs have built in, and what they stand for, as tts-1=nano,alloy=ada; of "
        "OpenAI's own names, those that are not among them stand for the model and its voices",
        metavar="NAMES",
    )
    strict_names: bool = _page(
        False,
        "programs may use the names of the model and of its voices, and --api-names, but no others",
    )
    mcp: bool = _page(False, "offer programs the tool say by the Model Context Protocol, at /mcp")
    reply_log: Path | None = _page(
        None,
        "file for one line a reply, with why it ended and without text or sound; 20 MB at most",
        metavar="FILE",
    )

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the page."""
        return self.host in LOOPBACK and not self.share

    @property
    def origins(self) -> tuple[str, ...]:
        """Of `api_origins`."""
        given = (self.api_origins or "").split(",")
        return tuple(origin.strip().rstrip("/") for origin in given if origin.strip())

    @property
    def names(self) -> dict[str, str]:
        """Of `api_names`: a name -> the model or voice that is meant."""
        given = [pair.partition("=") for pair in (self.api_names or "").split(",") if pair.strip()]
        return {name.strip(): meant.strip() for name, _, meant in given}

    def __post_init__(self) -> None:
        check_options(self)
        if not all((*self.names, *self.names.values())):
            raise ConfigError(
                "--api-names is no list of names; write it like tts-1=nano,alloy=ada."
            )
        for origin in self.origins:
            if not ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"--api-origins names {origin!r}; write origins like https://app.example."
                )
        if self.origins and self.api_key_file is None:
            raise ConfigError("--api-origins needs keys for those pages; add --api-key-file.")
        if (self.tls_cert is None) is not (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key belong together; give both.")
        if self.tls_cert is not None and self.share:
            raise ConfigError(
                "The link of --share is https already; omit --tls-cert and --tls-key."
            )
        if self.own_voice and not self.local:
            raise ConfigError(
                "--own-voice is for this machine alone, since nobody could say whose voices "
                "strangers bring; omit --share and --host."
            )
        if self.auth is not None and not all(self.auth.partition(":")):
            raise ConfigError("--auth needs the form USER:PASSWORD.")


def require_address(host: str, port: int) -> None:
    """Raise ConfigError unless this machine can listen there."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            if os.name == "posix":  # elsewhere it would let two programs share a port
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"Port {port} is taken; give another with --port.") from None
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(
                f"{host} is no address of this machine; give --host 127.0.0.1 for visitors on it "
                "alone, or 0.0.0.0 for all."
            ) from None
        raise ConfigError(
            f"Port {port} of {host} cannot be opened ({error.strerror}); give another with --port."
        ) from None
