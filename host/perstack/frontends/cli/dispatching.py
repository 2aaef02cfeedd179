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

_TEXT = "Who says which worker drives what; by default the storage's own address, if that is PostgreSQL."
_ALSO_STORAGES = ("postgresql", "postgres")


def dispatcher_option(command: _F) -> _F:
    """`--dispatcher ADDRESS`, as `dispatcher: str | None`."""
    return click.option("--dispatcher", metavar="ADDRESS", help=_TEXT)(command)


def dispatcher_of(host: Host, given: str | None, storage: str | None) -> Dispatcher:
    """The one that is given, or else that of the storage. Raises UsageError if there is none."""
    address = given or storage or host.project.storage
    if given is None and address.partition(":")[0] not in _ALSO_STORAGES:
        raise UsageError(
            "no dispatcher says who drives what: give --dispatcher postgresql://USER@HOST/DATABASE, or keep Jobs in"
            " PostgreSQL"
        )
    return host.jobs.plugins.open_dispatcher(address)
