"""Registration with the host."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from perstack.errors import UsageError
from perstack.ports.dispatcher import Dispatcher, DispatcherFactory
from perstack.ports.hooks import hookimpl


class ProcrastinateDispatchers:
    """`dispatcher = "postgresql://user@host/database"`: an address as a PostgreSQL storage has it, `schema=` included.

    The tables are in a schema of their own, `perstack_workers` beside `perstack`, so the two may share a database.
    """

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme

    def open(self, location: str) -> Dispatcher:
        """A dispatcher in that database. Nothing is connected before the first use. Raises UsageError."""
        from perstack_postgres.address import parse
        from perstack_procrastinate.dispatcher import ProcrastinateDispatcher

        address = parse(location, "dispatcher")
        if find_spec("procrastinate") is None:
            raise UsageError("dispatcher: PostgreSQL needs procrastinate: pip install 'perstack[workers]'")
        return ProcrastinateDispatcher(address)


@hookimpl
def perstack_dispatchers() -> Sequence[DispatcherFactory]:
    """The dispatcher in PostgreSQL, under both names that its addresses begin with."""
    return [ProcrastinateDispatchers("postgresql"), ProcrastinateDispatchers("postgres")]
