"""Rate limiter: Runs in this process that share an endpoint and key share one queue per event loop."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import Self, assert_never
from weakref import WeakKeyDictionary

from perstack.core.definitions.models import ProviderLimits
from perstack.core.queue.rate_limit import (
    NO_LIMITS,
    CircuitOpen,
    Delay,
    Pace,
    StartNow,
    abandoned,
    admission,
    after_rate_limit,
    after_refusal,
    after_start,
    after_success,
    failed,
)
from perstack.core.runs.display_events import WaitReason
from perstack.dataclass import dataclass
from perstack.errors import ProviderError
from perstack.ports.provider import Generation, Provider
from perstack.system.user import notice

_SHOWN_AFTER_S = 0.5  # seconds of waiting after which a person is shown that a Run waits
_GRACE_S = 0.25  # seconds after the end of a rate limit for which the queue position of a rejected generation is kept

_tickets = count(1)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The reason why a generation waits, and its position in the queue."""

    reason: WaitReason
    ahead: int
    seconds: float | None  # seconds until the queue moves; None if unknown


OnWait = Callable[[Waiting], None]


class EndpointQueue:
    """The queue and state of one endpoint; generations start in the order of their tickets."""

    def __init__(self, provider: Provider | None = None) -> None:
        """Create an empty queue. `provider` is kept alive if it identifies the endpoint, so its id is not reused."""
        self.pace = Pace()
        self._provider = provider
        self._line: list[QueueTicket] = []
        self._timer: asyncio.TimerHandle | None = None

    def admits(self, ticket: QueueTicket) -> bool:
        """Let a generation start at once if nobody waits and nothing delays it."""
        now = asyncio.get_running_loop().time()
        if self._line or not isinstance(admission(self.pace, ticket.limits, now), StartNow):
            return False
        self.pace = after_start(self.pace, ticket.limits, now, ticket.tokens)
        return True

    def join(self, ticket: QueueTicket) -> None:
        """Enter the queue, or keep the position in it."""
        if ticket not in self._line:
            insort(self._line, ticket, key=lambda one: one.ticket)
        self.advance()

    def leave(self, ticket: QueueTicket) -> None:
        """Leave the queue."""
        with suppress(ValueError):
            self._line.remove(ticket)
        self.advance()

    def ahead_of(self, ticket: QueueTicket) -> int:
        """Return how many generations are ahead in the queue."""
        return sum(one.ticket < ticket.ticket for one in self._line)

    def advance(self) -> None:
        """Let generations start, from the head of the queue, until one has to wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        for place in tuple(self._line):
            now = loop.time()
            if place.turn is None:  # rejected, and not retried yet
                kept_until = self.pace.held_until + _GRACE_S
                if now < kept_until:
                    self._timer = loop.call_at(kept_until, self.advance)
                    return
                continue
            if place.turn.done():  # its owner was cancelled, and will call leave()
                continue
            decision = admission(self.pace, place.limits, now)
            match decision:
                case StartNow():
                    self.pace = after_start(self.pace, place.limits, now, place.tokens)
                    self._line.remove(place)
                    place.turn.set_result(None)
                case CircuitOpen():
                    self._line.remove(place)
                    place.turn.set_exception(_circuit_open(place.name, decision))
                case Delay():
                    place.waits_for = decision
                    if decision.at is not None:
                        self._timer = loop.call_at(decision.at, self.advance)
                    return
                case _:
                    assert_never(decision)

    def failed(self, name: str, words: str) -> None:
        """Count a failure that suggests that the endpoint is down. Print a notice when the circuit opens."""
        before, now = self.pace, asyncio.get_running_loop().time()
        self.pace = failed(before, now, words)
        if self.pace.open_until > before.open_until:
            seconds = self.pace.open_until - now
            notice(
                f"{name} has failed {self.pace.failures} times in a row; nothing is sent there for {seconds:.0f} s."
                f" The latest: {words}"
            )


class QueueTicket:
    """The position of one generation in the queue of its endpoint, kept over all its attempts."""

    def __init__(self, gate: EndpointQueue, name: str, limits: ProviderLimits, on_wait: OnWait) -> None:
        """Create a place outside the queue; it gets a ticket at the first `enter`."""
        self.ticket = 0
        self.name = name
        self.limits = limits
        self.tokens = 0
        self.turn: asyncio.Future[None] | None = None
        """Future that is done once the attempt may start; None while the place is not waiting."""
        self.waits_for: Delay | None = None
        self._gate = gate
        self._on_wait = on_wait

    def __enter__(self) -> Self:
        """Return the place."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the queue."""
        self._gate.leave(self)

    async def enter(self, tokens: int) -> None:
        """Wait until an attempt that sends about `tokens` may start. Raises ProviderError while the circuit is open."""
        self.ticket = self.ticket or next(_tickets)
        self.tokens = tokens
        if self._gate.admits(self):
            return
        loop = asyncio.get_running_loop()
        turn = self.turn = loop.create_future()
        self._gate.join(self)
        timer = None if turn.done() else loop.call_later(_SHOWN_AFTER_S, self._show)
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

    def record_outcome(self, outcome: Generation | ProviderError | None) -> None:
        """Record the outcome of an attempt: a reply, an error, or None if it ended for another reason."""
        gate = self._gate
        if outcome is None:
            gate.pace = abandoned(gate.pace)
        elif isinstance(outcome, Generation):
            gate.pace = after_success(gate.pace, self.limits, outcome.usage.total_tokens - self.tokens)
        elif outcome.status_code == 429 and outcome.is_retryable:
            gate.pace = after_rate_limit(gate.pace, asyncio.get_running_loop().time(), outcome.retry_after)
            if outcome.retry_after is not None:
                gate.join(self)  # keeps its position for the retry
        elif outcome.is_retryable:
            gate.failed(self.name, str(outcome))
        else:
            gate.pace = after_refusal(gate.pace)
        gate.advance()

    def _show(self) -> None:
        later = self.waits_for
        if later is not None and self.turn is not None:
            now = asyncio.get_running_loop().time()
            seconds = None if later.at is None else max(0.0, later.at - now)
            self._on_wait(Waiting(later.reason, self._gate.ahead_of(self), seconds))


async def run_in_turn(ticket: QueueTicket, tokens: int, work: Callable[[], Awaitable[Generation]]) -> Generation:
    """Run one attempt in its turn, and record its outcome for all that wait. Raises ProviderError."""
    await ticket.enter(tokens)
    outcome: Generation | ProviderError | None = None
    try:
        outcome = await work()
        return outcome
    except ProviderError as error:
        outcome = error
        raise
    finally:
        ticket.record_outcome(outcome)


def _circuit_open(name: str, found: CircuitOpen) -> ProviderError:
    return ProviderError(
        f"{name} has failed {found.failures} times in a row, so nothing is sent there for {found.seconds:.0f} s more;"
        f" the latest: {found.latest}",
        name="CircuitOpen",
        is_retryable=True,
        retry_after=found.seconds,
    )


_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, EndpointQueue]] = WeakKeyDictionary()


def ticket_for(provider: Provider, name: str, limits: ProviderLimits | None, on_wait: OnWait) -> QueueTicket:
    """Return a place in the queue of a provider's endpoint; `name` is the name shown to people."""
    known = _gates.setdefault(asyncio.get_running_loop(), {})
    told = provider.endpoint_id
    key = told or f"object {id(provider)}"
    gate = known.get(key)
    if gate is None:
        gate = known[key] = EndpointQueue(None if told else provider)
    return QueueTicket(gate, name, limits or NO_LIMITS, on_wait)
