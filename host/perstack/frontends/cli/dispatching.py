"""The dispatcher that a command works with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from perstack.errors import UsageError

if TYPE_CHECKING:
    from perstack.host import Host
    from perstack.ports.dispatcher import Dispatcher

_F = TypeVar("_F", bound=Callable[..., object])

_TEXT = "Who says which worker drives what; by default that of [workers], or a PostgreSQL storage."


def dispatcher_option(command: _F) -> _F:
    """`--dispatcher ADDRESS`, as `dispatcher: str | None`."""
    return click.option("--dispatcher", metavar="ADDRESS", help=_TEXT)(command)


def drive_options(command: _F) -> _F:
    """`--drive`, as `is_driven: bool`, and `--dispatcher`."""
    text = "Drive the Job here, and do not leave it to a worker."
    return click.option("--drive", "is_driven", is_flag=True, help=text)(dispatcher_option(command))


def dispatcher_of(host: Host) -> Dispatcher:
    """The one of a Host. Raises UsageError if there is none."""
    found = host.dispatcher
    if found is None:
        raise UsageError(
            "there is no dispatcher, which says who drives what: give --dispatcher postgresql://USER@HOST/DATABASE,"
            " or keep Jobs in PostgreSQL"
        )
    return found
