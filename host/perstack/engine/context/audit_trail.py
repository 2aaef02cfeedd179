"""Interface by which logs announce stops and removals. `perstack.audit.trail` sends them to an anchor."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from perstack.core.base.chain import Head
from perstack.core.base.ids import Owner

if TYPE_CHECKING:
    from perstack.core.jobs.job import Job


class AuditTrail(Protocol):
    """The audit of a project. Writers of logs report each stop and removal; reporting never fails or delays them."""

    @property
    def key_variable(self) -> str | None:
        """The environment variable with the signing key, which no program gets."""
        ...

    @property
    def key_files(self) -> tuple[Path, ...]:
        """The files of the signing key, absolute; no tool may read or write them."""
        ...

    @property
    def anchor_places(self) -> tuple[Path, ...]:
        """The anchor's files or folders, absolute; no tool may use them."""
        ...

    def check(self) -> None:
        """Raise UsageError if the key or the anchor cannot be used."""
        ...

    def anchored(self, job: Job) -> AbstractAsyncContextManager[None]:
        """Send the heads of a Job's logs when the block that drives it ends."""
        ...

    async def expect(self, owner: Owner) -> None:
        """Announce that a task, series or schedule is about to stop."""
        ...

    async def send_after_stop(self, owner: Owner, head: Head) -> None:
        """Send the head of a task, series or schedule that has stopped."""
        ...

    def anchor_removal(self, owner: Owner) -> AbstractAsyncContextManager[None]:
        """Record that all logs of an owner are removed, then run the block, which removes them."""
        ...


class NoAudit:
    """The audit of a project without `[audit]`."""

    key_variable: str | None = None
    key_files: tuple[Path, ...] = ()
    anchor_places: tuple[Path, ...] = ()

    def check(self) -> None:
        pass

    def anchored(self, job: Job) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def expect(self, owner: Owner) -> None:
        pass

    async def send_after_stop(self, owner: Owner, head: Head) -> None:
        pass

    def anchor_removal(self, owner: Owner) -> AbstractAsyncContextManager[None]:
        return nullcontext()


NO_AUDIT = NoAudit()
