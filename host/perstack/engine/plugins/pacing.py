"""Waiting for an endpoint: all Runs of a process that use the same one, with the same key, stand in one line.

Endpoints are known by a digest that their providers make of address and key (`TellsEndpoint`): no key is held here.
A line belongs to an event loop, as the connections do.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import Self, assert_never
from weakref import WeakKeyDictionary

from perstack.core.display_events import WaitReason
from perstack.core.models import ProviderLimits
from perstack.core.pacing import (
    NO_LIMITS,
    Go,
    Later,
    Pace,
    Refused,
    abandoned,
    admission,
    begun,
    failed,
    refused,
    slowed,
    succeeded,
)
from perstack.dataclass import dataclass
from perstack.engine.notices import notice
from perstack.errors import ProviderError
from perstack.ports.provider import Generation, Provider, endpoint_id

_SHOWN_AFTER = 0.5
"""Seconds that somebody waits before a person is shown it."""
_GRACE = 0.25
"""Seconds that the place of one is kept which the endpoint has sent away until now."""

_tickets = count(1)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why somebody waits, and behind how many."""

    reason: WaitReason
    ahead: int
    seconds: float | None
    """Until the line moves, where that is known."""


OnWait = Callable[[Waiting], None]


class Gate:
    """One endpoint: how it stands, and who waits for it, in the order in which they came."""

    def __init__(self, provider: Provider | None = None) -> None:
        """A provider is kept that the endpoint is known by: so the next one is not taken for it."""
        self.pace = Pace()
        self._provider = provider
        self._line: list[Place] = []
        self._timer: asyncio.TimerHandle | None = None

    def join(self, place: Place) -> None:
        """Stand in line, or stay there."""
        if place not in self._line:
            insort(self._line, place, key=lambda one: one.ticket)
        self.advance()

    def leave(self, place: Place) -> None:
        """Not to wait any more."""
        with suppress(ValueError):
            self._line.remove(place)
        self.advance()

    def ahead_of(self, place: Place) -> int:
        return sum(one.ticket < place.ticket for one in self._line)

    def advance(self) -> None:
        """Let in whoever may begin, from the first in line on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        for place in tuple(self._line):
            now = loop.time()
            if place.turn is None:  # sent away, and not back yet
                kept_until = self.pace.held_until + _GRACE
                if now < kept_until:
                    self._timer = loop.call_at(kept_until, self.advance)
                    return
                continue
            if place.turn.done():  # its owner was cancelled, and will leave
                continue
            decision = admission(self.pace, place.limits, now)
            match decision:
                case Go():
                    self.pace = begun(self.pace, place.limits, now, place.tokens)
                    self._line.remove(place)
                    place.turn.set_result(None)
                case Refused():
                    self._line.remove(place)
                    place.turn.set_exception(_circuit_open(place.name, decision))
                case Later():
                    place.waits_for = decision
                    if decision.at is not None:
                        self._timer = loop.call_at(decision.at, self.advance)
                    return
                case _:
                    assert_never(decision)

    def failed(self, name: str, words: str) -> None:
        """One failed as it does where an endpoint is down. A person is told when the circuit opens."""
        before, now = self.pace, asyncio.get_running_loop().time()
        self.pace = failed(before, now, words)
        if self.pace.open_until > before.open_until:
            seconds = self.pace.open_until - now
            notice(
                f"{name} has failed {self.pace.failures} times in a row; nothing is sent there for {seconds:.0f} s."
                f" The latest: {words}"
            )


class Place:
    """Where one generation stands in the line of its endpoint, over all its tries."""

    def __init__(self, gate: Gate, name: str, limits: ProviderLimits, on_wait: OnWait) -> None:
        self.ticket = 0
        self.name = name
        self.limits = limits
        self.tokens = 0
        self.turn: asyncio.Future[None] | None = None
        """Set once it may begin; None while it does not wait."""
        self.waits_for: Later | None = None
        self._gate = gate
        self._on_wait = on_wait

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.leave(self)

    async def enter(self, tokens: int) -> None:
        """Wait until a try may begin that sends about so many tokens.

        Raises ProviderError while the circuit is open.
        """
        loop = asyncio.get_running_loop()
        self.ticket = self.ticket or next(_tickets)
        self.tokens, self.turn = tokens, loop.create_future()
        turn = self.turn
        self._gate.join(self)
        timer = None if turn.done() else loop.call_later(_SHOWN_AFTER, self._show)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._gate.pace = abandoned(self._gate.pace)
            self._gate.leave(self)
            raise
        finally:
            self.turn = None
            if timer is not None:
                timer.cancel()

    def ended(self, outcome: Generation | ProviderError | None) -> None:
        """The try that was let in has ended: well, with an error, or for another reason."""
        gate = self._gate
        if outcome is None:
            gate.pace = abandoned(gate.pace)
        elif isinstance(outcome, Generation):
            gate.pace = succeeded(gate.pace, self.limits, outcome.usage.total_tokens - self.tokens)
        elif outcome.status_code == 429 and outcome.is_retryable:
            gate.pace = slowed(gate.pace, asyncio.get_running_loop().time(), outcome.retry_after)
            if outcome.retry_after is not None:
                gate.join(self)  # its place is kept
        elif outcome.is_retryable:
            gate.failed(self.name, str(outcome))
        else:
            gate.pace = refused(gate.pace)
        gate.advance()

    def _show(self) -> None:
        later = self.waits_for
        if later is not None and self.turn is not None:
            now = asyncio.get_running_loop().time()
            seconds = None if later.at is None else max(0.0, later.at - now)
            self._on_wait(Waiting(later.reason, self._gate.ahead_of(self), seconds))


async def through(place: Place, tokens: int, work: Callable[[], Awaitable[Generation]]) -> Generation:
    """One try in its turn; what comes of it is known to all that wait. Raises ProviderError."""
    await place.enter(tokens)
    outcome: Generation | ProviderError | None = None
    try:
        outcome = await work()
        return outcome
    except ProviderError as error:
        outcome = error
        raise
    finally:
        place.ended(outcome)


def _circuit_open(name: str, found: Refused) -> ProviderError:
    return ProviderError(
        f"{name} has failed {found.failures} times in a row, so nothing is sent there for {found.seconds:.0f} s more;"
        f" the latest: {found.latest}",
        name="CircuitOpen",
        is_retryable=True,
        retry_after=found.seconds,
    )


_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Gate]] = WeakKeyDictionary()


def place_at(provider: Provider, name: str, limits: ProviderLimits | None, on_wait: OnWait) -> Place:
    """A place in the line for a provider's endpoint; `name` is what people know it by."""
    known = _gates.setdefault(asyncio.get_running_loop(), {})
    told = endpoint_id(provider)
    key = told or f"object {id(provider)}"
    gate = known.get(key)
    if gate is None:
        gate = known[key] = Gate(None if told else provider)
    return Place(gate, name, limits or NO_LIMITS, on_wait)
