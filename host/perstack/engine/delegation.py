"""Driving delegates concurrently, and bringing each result to the call that asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from perstack.core.events import FinishToolCall
from perstack.core.messages import TextPart
from perstack.core.run_facts import DelegateHead, Delegation
from perstack.core.runs.repeats import warned
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.session import Session


@dataclass(frozen=True, slots=True)
class DelegateOutcome:
    """How a delegate's Run came out. No text: it has stopped, and may go on later."""

    text: str | None
    is_error: bool = False
    head: DelegateHead | None = None
    stopped: Run | None = None
    """The Run, if it has stopped without a result."""

    @classmethod
    def failed(cls, reason: str, head: DelegateHead | None = None) -> DelegateOutcome:
        return cls(f"Delegation failed: {reason}", True, head)

    @classmethod
    def of(cls, run: Run) -> DelegateOutcome:
        """The outcome of a Run that is driven no further for now."""
        head = DelegateHead(run_id=run.id, seq=run.head.seq, hash=run.head.hash)
        if run.status == "completed":
            return cls(run.result or "", False, head)
        if run.status == "stoppedByError":
            reason = run.error.message if run.error is not None else "unknown error"
            return cls.failed(reason, head)
        return cls(None, False, head, run)


DriveDelegate = Callable[[Session, Delegation], Awaitable[DelegateOutcome]]


async def await_delegates(parent: Session, delegations: Sequence[Delegation], drive: DriveDelegate) -> list[Run]:
    """Drive all of them; each result is recorded as it comes. Returns those that stopped without one."""
    stopped: list[Run] = []

    async def one(delegation: Delegation) -> None:
        outcome = await drive(parent, delegation)
        if outcome.stopped is not None:
            stopped.append(outcome.stopped)
            return
        finished = FinishToolCall(
            **parent.stamp(),
            tool_call_id=delegation.tool_call_id,
            tool_name=delegation.tool_name,
            contents=(TextPart(text=outcome.text or ""),),
            is_error=outcome.is_error,
            delegate=outcome.head,
        )
        parent.note(warned(parent.run, finished))
        await parent.flush()

    if len(delegations) == 1:
        await one(delegations[0])
        return stopped
    async with asyncio.TaskGroup() as group:
        for delegation in delegations:
            group.create_task(one(delegation))
    return stopped
