"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from typing_extensions import override

from perstack.errors import UsageError
from perstack.ports.dispatcher import Dispatcher, DispatcherFactory
from perstack.ports.hooks import hookimpl

PLUGIN_API = 1


class TemporalDispatchers(DispatcherFactory):
    """Factory for `dispatcher = "temporal://host:port/namespace"`; `?queue=NAME` separates projects in a namespace."""

    scheme = "temporal"

    @override
    def open(self, location: str) -> Dispatcher:
        from perstack_temporal.dispatcher import TemporalDispatcher
        from perstack_temporal.names import parse

        address = parse(location)
        if find_spec("temporalio") is None:
            raise UsageError("dispatcher: Temporal needs its SDK: pip install 'perstack[temporal]'")
        return TemporalDispatcher(address)


@hookimpl
def perstack_dispatchers() -> Sequence[DispatcherFactory]:
    return [TemporalDispatchers()]
