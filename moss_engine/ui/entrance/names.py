"""Names of tabs and addresses inside the service, which say nothing outside it."""

from __future__ import annotations

import hashlib
import secrets

import gradio as gr


class SecretNames:
    """Other names in every process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)

    def session(self, request: gr.Request) -> str:
        """A tab's name: not its session hash, which lets others read and cancel its events."""
        return self._of(f"session {request.session_hash}")

    def visitor(self, request: gr.Request) -> str:
        """The name of the address from which a tab asks."""
        return self._of(f"address {getattr(request.client, 'host', '')}")

    def _of(self, value: str) -> str:
        return hashlib.blake2b(value.encode(), key=self._key, digest_size=16).hexdigest()
