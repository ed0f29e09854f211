"""Real-time engine for MOSS-Speech: paged-KV runtimes, streaming codec, service and page.

    from moss_engine import open_service

Importing the package does nothing; what it offers is loaded when it is first named.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moss_engine.client import open_service

__all__ = ["open_service"]
__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    if name == "open_service":
        from moss_engine.client import open_service

        return open_service
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
