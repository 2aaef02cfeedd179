"""Rate limiter: Runs in this process that share an endpoint and key share one queue per event loop.

A generation has a `QueueTicket` for all its attempts. `take` waits for its turn, runs one attempt and records the
outcome; tickets are served by number, so a retry keeps its position. All decisions are pure functions of the endpoint's
`Pace` in `rate_limit`; this module only keeps the current `Pace`, the waiting tickets and one timer. `advance` is the
only place where a waiting ticket starts, and must be called after every change of the queue or the `Pace`.
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

from perstack.core.definitions.models import ProviderLimits
from perstack.engine.plugins.providers_and_prices import OnWait
from perstack.errors import ProviderError
from perstack.pacing.rate_limit import (
    NO_LIMITS,
    CircuitOpen,
    Delay,
    Pace,
    StartNow,
    after_cancellation,
    after_failure,
    after_rate_limit,
    after_refusal,
    after_start,
    after_success,
    decide_start,
)
from perstack.ports.provider import Generation, Provider
from perstack.system.user import notice

_WAIT_NOTICE_DELAY_S = 0.5  # waiting time after which people are shown that a Run waits
_GRACE_S = 0.25  # time after the end of a rate limit during which a rejected generation keeps its position

_ticket_numbers = count(1)


class EndpointQueue:
    """The queue and state of one endpoint; generations start in the order of their tickets' numbers."""

    def __init__(self, provider: Provider | None = None) -> None:
        """Create an empty queue. `provider` is kept alive if it identifies the endpoint, so its id is not reused."""
        self.pace = Pace()
        self._provider = provider
        self._queue: list[QueueTicket] = []
        self._timer: asyncio.TimerHandle | None = None

    def start_if_free(self, ticket: QueueTicket) -> bool:
        """Record the start of a generation if no other one waits and nothing delays it; return False otherwise."""
        now = asyncio.get_running_loop().time()
        if self._queue or not isinstance(decide_start(self.pace, ticket.limits, now), StartNow):
            return False
        self.pace = after_start(self.pace, ticket.limits, now, ticket.tokens)
        return True

    def join(self, ticket: QueueTicket) -> None:
        """Enter the queue, or keep the position in it."""
        if ticket not in self._queue:
            insort(self._queue, ticket, key=lambda queued: queued.number)
        self.advance()

    def leave(self, ticket: QueueTicket) -> None:
        with suppress(ValueError):
            self._queue.remove(ticket)
        self.advance()

    def count_ahead(self, ticket: QueueTicket) -> int:
        """Return how many generations are ahead in the queue."""
        return sum(queued.number < ticket.number for queued in self._queue)

    def advance(self) -> None:
        """Start generations from the head of the queue until one has to wait, and set the timer for that one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        for ticket in tuple(self._queue):
            now = loop.time()
            if ticket.turn is None:  # it was rejected with a rate limit, and its retry has not arrived yet
                kept_until = self.pace.held_until + _GRACE_S
                if now < kept_until:
                    self._timer = loop.call_at(kept_until, self.advance)
                    return
                continue
            if ticket.turn.done():  # its owner was cancelled, and will call leave()
                continue
            decision = decide_start(self.pace, ticket.limits, now)
            match decision:
                case StartNow():
                    self.pace = after_start(self.pace, ticket.limits, now, ticket.tokens)
                    self._queue.remove(ticket)
                    ticket.turn.set_result(None)
                case CircuitOpen():
                    self._queue.remove(ticket)
                    ticket.turn.set_exception(_circuit_open_error(ticket.name, decision))
                case Delay():
                    ticket.waits_for = decision
                    if decision.at is not None:
                        self._timer = loop.call_at(decision.at, self.advance)
                    return
                case _:
                    assert_never(decision)

    def record_failure(self, name: str, message: str) -> None:
        """Count a failure that suggests that the endpoint is down. Print a notice when the circuit opens."""
        previous, now = self.pace, asyncio.get_running_loop().time()
        self.pace = after_failure(previous, now, message)
        if self.pace.open_until > previous.open_until:
            seconds = self.pace.open_until - now
            notice(
                f"{name} has failed {self.pace.failures} times in a row; nothing is sent there for {seconds:.0f} s."
                f" The latest error: {message}"
            )


class QueueTicket:
    """The position of one generation in the queue of its endpoint, kept over all its attempts."""

    def __init__(self, queue: EndpointQueue, name: str, provider_limits: ProviderLimits, on_wait: OnWait) -> None:
        """Create a ticket outside the queue; the first `wait_for_turn` numbers it."""
        self.number = 0  # position in the order of all tickets; 0 before the first `wait_for_turn`
        self.name = name
        self.limits = provider_limits
        self.tokens = 0
        self.turn: asyncio.Future[None] | None = None
        """Future that is done once the attempt may start; None while the ticket is not waiting."""
        self.waits_for: Delay | None = None
        self._queue = queue
        self._on_wait = on_wait

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.leave(self)

    async def take(self, tokens: int, generate: Callable[[], Awaitable[Generation]]) -> Generation:
        """Run one attempt of `generate` in its turn, and record its outcome. Raises ProviderError."""
        await self.wait_for_turn(tokens)
        outcome: Generation | ProviderError | None = None
        try:
            outcome = await generate()
            return outcome
        except ProviderError as error:
            outcome = error
            raise
        finally:
            self.record_outcome(outcome)

    async def wait_for_turn(self, tokens: int) -> None:
        """Wait until an attempt that sends about `tokens` may start. Raises ProviderError while the circuit is open."""
        self.number = self.number or next(_ticket_numbers)
        self.tokens = tokens
        if self._queue.start_if_free(self):
            return
        loop = asyncio.get_running_loop()
        turn = self.turn = loop.create_future()
        self._queue.join(self)
        timer = None if turn.done() else loop.call_later(_WAIT_NOTICE_DELAY_S, self._report_wait)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._queue.pace = after_cancellation(self._queue.pace)
            self._queue.leave(self)
            raise
        finally:
            self.turn = None
            if timer is not None:
                timer.cancel()

    def record_outcome(self, outcome: Generation | ProviderError | None) -> None:
        """Record the outcome of an attempt: a reply, an error, or None if it ended for another reason."""
        queue = self._queue
        if outcome is None:
            queue.pace = after_cancellation(queue.pace)
        elif isinstance(outcome, Generation):
            queue.pace = after_success(queue.pace, self.limits, outcome.usage.total_tokens - self.tokens)
        elif outcome.status_code == 429 and outcome.is_retryable:
            queue.pace = after_rate_limit(queue.pace, asyncio.get_running_loop().time(), outcome.retry_after)
            if outcome.retry_after is not None:
                queue.join(self)  # it keeps its position for the retry
        elif outcome.is_retryable:
            queue.record_failure(self.name, str(outcome))
        else:
            queue.pace = after_refusal(queue.pace)
        queue.advance()

    def _report_wait(self) -> None:
        delay = self.waits_for
        if delay is not None and self.turn is not None:
            now = asyncio.get_running_loop().time()
            seconds = None if delay.at is None else max(0.0, delay.at - now)
            self._on_wait(delay.reason, self._queue.count_ahead(self), seconds)


def _circuit_open_error(name: str, circuit: CircuitOpen) -> ProviderError:
    return ProviderError(
        f"{name} has failed {circuit.failures} times in a row, so nothing is sent there for"
        f" {circuit.remaining_s:.0f} s more; the latest error: {circuit.latest_error}",
        name="CircuitOpen",
        is_retryable=True,
        retry_after=circuit.remaining_s,
    )


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, EndpointQueue]] = WeakKeyDictionary()


def ticket_for(provider: Provider, name: str, provider_limits: ProviderLimits | None, on_wait: OnWait) -> QueueTicket:
    """Return a ticket for the queue of a provider's endpoint; `name` is shown to people."""
    queues = _queues.setdefault(asyncio.get_running_loop(), {})
    endpoint_id = provider.endpoint_id
    key = endpoint_id or f"object {id(provider)}"
    queue = queues.get(key)
    if queue is None:
        queue = queues[key] = EndpointQueue(None if endpoint_id else provider)
    return QueueTicket(queue, name, provider_limits or NO_LIMITS, on_wait)
