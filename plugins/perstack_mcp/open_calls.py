"""The calls that a server is at work on, and which of them a request of the server belongs to.

Over streamable HTTP, and in the stateless era, a request comes on the way of its call. Over a pipe nothing says which
call it belongs to: it is that of the only one there is, or it waits until there is only one. If every call waits so,
all are given up and made again one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

from perstack.core.questions import Answer, Question
from perstack.ports.skill import ToolCall

_OWN: ContextVar[OpenCall | None] = ContextVar("perstack_mcp_call", default=None)


class OpenCall:
    """One of them."""

    def __init__(self, call: ToolCall, idle: float) -> None:
        self.call = call
        self.idle = idle
        self.limit = asyncio.timeout(idle)
        """Ends the call when it has been silent for `idle` seconds."""
        self.given_up: asyncio.Future[Question | None] = asyncio.get_running_loop().create_future()
        """The question that a person has to answer first; None if it is only to be made again, alone."""
        self.is_over = asyncio.Event()
        self._holds = 0
        self._answers = list(call.answers)

    def heard(self) -> None:
        """The server gave a sign of life."""
        if self._holds == 0 and not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time() + self.idle)

    @contextmanager
    def patient(self) -> Generator[None]:
        """While it is the server that waits, silence does not end the call."""
        self._holds += 1
        if not self.limit.expired():
            self.limit.reschedule(None)
        try:
            yield
        finally:
            self._holds -= 1
            if not self.is_over.is_set():
                self.heard()

    def answer(self, question: Question) -> Answer | None:
        """What was answered to this question; to one that is asked twice, the answers in their order."""
        found = next((one for one in self._answers if one.question == question), None)
        if found is not None:
            self._answers.remove(found)
        return found

    async def give_up(self, question: Question) -> None:
        """End it, so that a person can be asked. Returns when the server has been told."""
        if not self.given_up.done():
            self.given_up.set_result(question)
        await self.is_over.wait()


class OpenCalls:
    """All of one connection."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._calls: list[OpenCall] = []
        self._waiting = 0
        self._changed = asyncio.Event()

    @contextmanager
    def opened(self, call: ToolCall, idle: float) -> Generator[OpenCall]:
        """A call, open while the block runs."""
        one = OpenCall(call, idle)
        before = _OWN.set(one)
        self._calls.append(one)
        try:
            yield one
        finally:
            _OWN.reset(before)
            self._calls.remove(one)
            one.is_over.set()
            self._tell()

    def candidates(self) -> list[OpenCall]:
        """Those that what has just come may belong to."""
        own = _OWN.get()
        return [one for one in self._calls if own in (None, one)]

    async def owner(self, *, is_question: bool) -> OpenCall | None:
        """The call that a request which has just come belongs to; None if there is none, or that cannot be told."""
        candidates = self.candidates()
        for one in candidates:
            one.heard()
        if len(candidates) < 2:
            return next(iter(candidates), None)
        self._waiting += is_question
        try:
            async with asyncio.timeout(candidates[0].idle / 2):
                return await self._only(candidates)
        except TimeoutError:
            self._show("(what the server asks for is declined: it is not clear which of its calls it is for)")
            return None
        finally:
            self._waiting -= is_question

    async def _only(self, candidates: list[OpenCall]) -> OpenCall | None:
        while True:
            self._part()
            left = [one for one in candidates if one in self._calls and not one.given_up.done()]
            if len(left) == 1:
                return left[0]
            if not left:
                for one in candidates:
                    # an answer that comes before the word that its call is cancelled would be acted upon
                    await one.is_over.wait()
                return None
            await self._changed.wait()

    def _part(self) -> None:
        """If every call waits for an answer that cannot be told from the others', give all of them up."""
        at_work = [one for one in self._calls if not one.given_up.done()]
        if self._waiting < len(at_work) or len(at_work) < 2:
            return
        for one in at_work:
            one.given_up.set_result(None)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
