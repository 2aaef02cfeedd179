"""The dispatcher in memory passes the whole contract."""

from __future__ import annotations

import pytest

from perstack.testing.dispatcher_contract import DispatcherBed, DispatcherContract, ManualClock
from perstack.testing.in_memory_dispatcher import InMemoryDispatcher, InMemoryOrders


class TestInMemoryDispatcher(DispatcherContract):
    @pytest.fixture
    def bed(self) -> DispatcherBed:
        clock = ManualClock()
        orders = InMemoryOrders(now=clock.now)
        return DispatcherBed(lambda: InMemoryDispatcher(orders), clock.pass_time, clock.now)
