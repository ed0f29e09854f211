"""Options of the program, declared once, as fields of frozen dataclasses, from which the
command-line parser and the documents' table are made.

    port: int = option(7860, "port to listen on", group="page", low=1, high=65535)
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from dataclasses import field
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

from moss_engine.api.errors import ConfigError

Config = TypeVar("Config")


def option(
    default: Any,
    help: str,
    *,
    group: str,
    choices: tuple[str, ...] | None = None,
    low: float | None = None,
    high: float | None = None,
    metavar: str | None = None,
) -> Any:
    """A field with its default, its help, and the values that it may have."""
    return field(
        default=default,
        metadata={
            "help": help,
            "group": group,
            "choices": choices,
            "low": low,
            "high": high,
            "metavar": metavar,
        },
    )


def check_options(config: Any) -> None:
    """Raise ConfigError for a value that its option does not allow."""
    for f in dataclasses.fields(config):
        value, low, high = getattr(config, f.name), f.metadata["low"], f.metadata["high"]
        if low is not None and not _is_within(value, type(f.default), low, high):
            kind = "a whole number" if isinstance(f.default, int) else "a number"
            raise ConfigError(f"--{flag(f.name)} is {value!r}; give {kind} from {low} to {high}.")
        choices = f.metadata["choices"]
        if choices and value not in choices:
            raise ConfigError(f"--{flag(f.name)} is {value!r}; choose one of {', '.join(choices)}.")


def _is_within(value: Any, kind: type, low: float, high: float) -> bool:
    """Whether a value is a number in the option's range, and an integer if the default is one."""
    if isinstance(value, bool) or not issubclass(type(value), Integral if kind is int else Real):
        return False
    return low <= value <= high  # also refuses NaN


def flag(name: str) -> str:
    return name.replace("_", "-")


def add_options(
    parser: argparse.ArgumentParser,
    config: type,
    groups: tuple[str, ...] | None = None,
    *,
    names: tuple[str, ...] | None = None,
) -> None:
    """Add the options of a config class to a parser: all, those of some groups, or some
    fields."""
    sections: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        group = f.metadata["group"]
        if (groups is None or group in groups) and (names is None or f.name in names):
            if group not in sections:
                sections[group] = parser.add_argument_group(group)
            _add_option(sections[group], f)


def _add_option(section: Any, f: dataclasses.Field[Any]) -> None:
    if isinstance(f.default, bool):
        section.add_argument(
            f"--{flag(f.name)}",
            action=argparse.BooleanOptionalAction,
            default=f.default,
            help=f.metadata["help"],
        )
        return
    default = "" if f.default is None else f" (default: {f.default})"
    plain = str if f.default is None else type(f.default)
    section.add_argument(
        f"--{flag(f.name)}",
        type=Path if "Path" in str(f.type) else plain,
        default=f.default,
        choices=f.metadata["choices"],
        metavar=f.metadata["metavar"],
        help=f"{f.metadata['help']}{default}".replace("%", "%%"),
    )


def from_args(config: type[Config], args: argparse.Namespace) -> Config:
    """The config that parsed arguments describe; options the parser does not have keep their
    defaults."""
    names = {f.name for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    return config(**{name: value for name, value in vars(args).items() if name in names})


def from_values(config: type[Config], values: Mapping[str, Any]) -> Config:
    """The config made of plain values by field name, such as a file holds, with paths as strings.
    Raises ConfigError for a name that is no option."""
    known = {f.name: f for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    if unknown := sorted(set(values) - set(known)):
        raise ConfigError(f"There is no option {', '.join(unknown)}; leave it out.")
    return config(
        **{
            name: Path(value) if "Path" in str(known[name].type) and value is not None else value
            for name, value in values.items()
        }
    )
