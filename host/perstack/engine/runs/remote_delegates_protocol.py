"""Protocol of delegates that other workers drive; `perstack.workers.remote_delegates` queues and follows them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

from perstack.ports.parts import Part

if TYPE_CHECKING:
    from perstack.core.jobs.job import Job
    from perstack.core.runs.decide import DelegateResult
    from perstack.core.runs.facts import Delegation
    from perstack.core.runs.state import Run
    from perstack.engine.context.host_setup import HostSetup
    from perstack.engine.log.run_session import Emitter, RunSession
    from perstack.engine.runs.job_drive import Allowance, JobDrive


class RemoteDelegates(AbstractAsyncContextManager["RemoteDelegates"], Protocol):
    """Remote delegates of one Run. As a context manager it stops the running ones when the Job stops."""

    @property
    def has_open(self) -> bool:
        """True if some delegates are still active on other workers."""
        ...

    def results(self) -> AsyncGenerator[tuple[Delegation, DelegateResult]]:
        """Yield each delegate's outcome as it arrives. Stop early when this process is leaving."""
        ...


class RemoteDelegation(Protocol):
    """Functions that have delegates driven by other workers."""

    def remote_delegates(
        self, drive: JobDrive, allowance: Allowance, parent_session: RunSession, delegations: Sequence[Delegation]
    ) -> RemoteDelegates | None:
        """Return the delegates of `parent_session` for other workers; None if they must be driven here."""
        ...

    async def stop_remote(
        self,
        setup: HostSetup,
        job: Job,
        runs: dict[str, Run],
        emit: Emitter,
        *,
        below: str | None = None,
        only: str | None = None,
    ) -> None:
        """Stop the remote Runs of a leased Job and update their states in `runs`. Raises StorageError."""
        ...


REMOTE: Part[RemoteDelegation] = Part("delegates on other workers")
