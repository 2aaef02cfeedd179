"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from typing_extensions import override

from perstack.errors import UsageError
from perstack.ports.dispatcher import Dispatcher, DispatcherFactory
from perstack.ports.hooks import hookimpl

PLUGIN_API = 1


class ProcrastinateDispatchers(DispatcherFactory):
    """Factory for `dispatcher = "postgresql://user@host/database"`, in a schema next to the storage's."""

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme

    @override
    def open(self, location: str) -> Dispatcher:
        from perstack_postgres.address import parse
        from perstack_procrastinate.dispatcher import ProcrastinateDispatcher

        address = parse(location, "dispatcher")
        if find_spec("procrastinate") is None:
            raise UsageError("dispatcher: PostgreSQL needs procrastinate: pip install 'perstack[workers]'")
        return ProcrastinateDispatcher(address)


@hookimpl
def perstack_dispatchers() -> Sequence[DispatcherFactory]:
    """Return the PostgreSQL dispatcher factories, one for each scheme of its addresses."""
    return [ProcrastinateDispatchers("postgresql"), ProcrastinateDispatchers("postgres")]
