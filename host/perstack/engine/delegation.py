"""Driving delegates concurrently, and bringing each result to the call that asked for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence

from perstack.core.events import FinishToolCall
from perstack.core.messages import TextPart
from perstack.core.run_facts import DelegateHead, Delegation
from perstack.core.runs.repeats import warned
from perstack.core.runs.reports import report_of
from perstack.core.runs.state import Run
from perstack.core.shortening import head_and_tail
from perstack.dataclass import dataclass
from perstack.engine.session import Session
from perstack.ports.skill import BlobStore


@dataclass(frozen=True, slots=True)
class DelegateOutcome:
    """How a delegate's Run came out. No text: it has stopped, and may go on later."""

    text: str | None
    is_error: bool = False
    run: Run | None = None
    """None: it could not even be set up."""

    @classmethod
    def failed(cls, reason: str, run: Run | None = None) -> DelegateOutcome:
        return cls(f"Delegation failed: {reason}", True, run)

    @property
    def head(self) -> DelegateHead | None:
        """Where its log ended."""
        run = self.run
        return None if run is None else DelegateHead(run_id=run.id, seq=run.head.seq, hash=run.head.hash)

    @property
    def stopped(self) -> Run | None:
        """The Run, if it has stopped without a result."""
        return self.run if self.text is None else None

    @classmethod
    def of(cls, run: Run) -> DelegateOutcome:
        """The outcome of a Run that is driven no further for now."""
        if run.status == "completed":
            text = run.result or ""
            return cls(text if run.value is None else json.dumps(run.value, ensure_ascii=False), False, run)
        if run.status == "stoppedByError":
            reason = run.error.message if run.error is not None else "unknown error"
            return cls.failed(reason, run)
        return cls(None, False, run)


async def _shown(outcome: DelegateOutcome, blobs: BlobStore, most: int) -> str:
    """The result as the caller sees it; what is long is whole in a blob, which is there before it is named."""
    text = outcome.text or ""
    own = None if outcome.run is None else outcome.run.start.expert.result_limit
    most = most if own is None else own
    if len(text) <= most:
        return text
    return head_and_tail(text, most, await blobs.put(text.encode("utf-8", "replace")))


DriveDelegate = Callable[[Session, Delegation], Awaitable[DelegateOutcome]]


async def await_delegates(
    parent: Session, delegations: Sequence[Delegation], drive: DriveDelegate, blobs: BlobStore, most: int
) -> list[Run]:
    """Drive all of them; each result is recorded as it comes. Returns those that stopped without one.

    Of a result the caller sees so many characters, `most` if the delegate's Expert does not say how many.
    """
    stopped: list[Run] = []

    async def one(delegation: Delegation) -> None:
        outcome = await drive(parent, delegation)
        if outcome.stopped is not None:
            stopped.append(outcome.stopped)
            return
        text = await _shown(outcome, blobs, most)
        report = None if outcome.run is None else report_of(outcome.run, delegation.tool_name)
        finished = FinishToolCall(
            **parent.stamp(),
            tool_call_id=delegation.tool_call_id,
            tool_name=delegation.tool_name,
            contents=(TextPart(text=text),),
            is_error=outcome.is_error,
            delegate=outcome.head,
            report=report,
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
