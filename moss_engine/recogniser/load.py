"""Which recogniser listens, and what loads it."""

from __future__ import annotations

from collections.abc import Callable

from moss_engine.api.errors import ConfigError, MissingPackageError
from moss_engine.recogniser import moonshine
from moss_engine.recogniser.base import Recogniser

LOADERS: dict[str, Callable[[], Recogniser]] = {"moonshine": moonshine.load}
AUTO, NONE = "auto", "none"
DEFAULT = "moonshine"


def load_recogniser(name: str) -> tuple[Recogniser | None, str | None]:
    """The recogniser of that name (AUTO: the default one, where it is installed), and the sentence
    that says why there is none.

    Raises ConfigError for a name that is unknown, MissingPackageError where one that was asked for
    is not installed.
    """
    if name == NONE:
        return None, "This page was started without a recogniser; omit --recogniser none."
    if name == AUTO:
        try:
            return LOADERS[DEFAULT](), None
        except MissingPackageError as error:
            return None, str(error)
    if name not in LOADERS:
        known = ", ".join([AUTO, NONE, *LOADERS])
        raise ConfigError(f"--recogniser is {name!r}; choose one of {known}.")
    return LOADERS[name](), None
