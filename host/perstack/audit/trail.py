"""The audit trail of a project with `[audit]`: send log heads to an anchor at stops, and compare logs with it.

An anchor (`anchors`) is a file, an address or a program to which writers of the logs can only append. At each
stop of a Job, task, series or schedule, a record with the heads of its logs is sent there (`anchor_outbox`), signed if
the project has a key (`receipts`). `verify` later compares the logs with the records (`anchor_comparison`), which shows
events that were changed, cut off or removed together with their hash chain.

Rules that all methods keep:

- An anchor that fails must not fail or delay a Job. A record is stored in an outbox in the storage before it is sent
  and until it has arrived; errors become notices, and a later stop or start sends what is left.
- `expect` creates an empty outbox entry before something can stop. If the process is killed before there is a record, a
  later process makes one from the logs.
- A removal is recorded before it is made: otherwise a crash in between would look like tampering.
- A project without `[audit]` sends nothing: its Host has `engine.context.audit_trail.NO_AUDIT`.

A new kind of owner has to be added to `OwnerKind` and to the table `OWNER_KINDS` in `engine.log.storage_access`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from perstack.core.base.chain import Head
from perstack.core.base.ids import Owner, run_id_of
from perstack.core.definitions.project import Audit, Project
from perstack.core.jobs.job import Job
from perstack.errors import NotFound, StorageError, UsageError
from perstack.lockfile.lock import LOCK_NAME
from perstack.ports.storage import Storage
from perstack.system.clock import SYSTEM, Clock
from perstack.system.concurrency import shield_until_done

if TYPE_CHECKING:
    from perstack.audit.anchor_comparison import AnchorComparison
    from perstack.audit.anchor_outbox import AnchorSender
    from perstack.audit.anchors import Anchor
    from perstack.audit.receipts import PublicKey, Signer
    from perstack.audit.verification_report import Report
    from perstack.trust.agreements import Agreement

Check: TypeAlias = "Callable[[str], Awaitable[Report]]"  # a function that makes the report of a Job. Raises NotFound

_BACKLOG_GRACE_S = 2.0  # seconds that a stop waits for records that earlier processes left to be sent


class AnchoredTrail:
    """The audit trail of a project with an anchor, a signing key or both."""

    def __init__(
        self,
        storage: Storage,
        project: Project,
        directory: Path,
        env: Mapping[str, str],
        clock: Clock = SYSTEM,
        agreement: Agreement | None = None,
    ) -> None:
        """Create without opening the anchor or reading the key."""
        self._storage = storage
        audit = project.audit
        self._project = project
        self._agreement = agreement
        self._named_anchor = None if audit is None else audit.anchor
        self._signing_key = None if audit is None else audit.signing_key
        self._directory = directory if project.path is None else Path(project.path).parent
        self._lock = None if project.path is None else Path(project.path).with_name(LOCK_NAME)
        self._env = env
        self._clock = clock

    @property
    def key_variable(self) -> str | None:
        """The environment variable that holds the key, if one does; it is not passed to programs."""
        if self._signing_key is None:
            return None
        from perstack.audit.receipts import key_variable

        return key_variable(self._signing_key)

    @property
    def key_files(self) -> tuple[Path, ...]:
        """The key file, absolute, if there is one; no tool may read or write it."""
        return _key_files(self._signing_key)

    @property
    def anchor_places(self) -> tuple[Path, ...]:
        """The anchor's file or folder, absolute, if it is one; no tool may use it."""
        return _key_files(self._named_anchor)

    def with_anchor(self, anchor: str) -> AnchoredTrail:
        """Return a trail with another anchor, for comparisons."""
        return AnchoredTrail(self._storage, Project(audit=Audit(anchor=anchor)), Path.cwd(), {}, self._clock)

    def check(self) -> None:
        """Raise UsageError if the key cannot be read, or the anchor is invalid or not agreed to."""
        _ = self._anchor, self.signer

    @cached_property
    def signer(self) -> Signer | None:
        """The project's key; None without one. Raises UsageError if it cannot be read."""
        key = self._signing_key
        if key is None:
            return None
        from perstack.audit.receipts import read_signer

        self._check_agreed()
        return read_signer(key, self._env)

    # --- writing and removing -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def anchored(self, job: Job) -> AsyncGenerator[None]:
        """Send unsent records during the block, and the heads of this Job at its end."""
        sender = self._sender
        if sender is None:
            yield
            return
        owner = Owner("job", job.id)
        await sender.expect(owner)
        backlog = asyncio.create_task(sender.send_backlog())

        async def send_at_stop() -> None:
            # Without this wait, the process of a short Job would end before earlier records are sent.
            await asyncio.wait({backlog}, timeout=_BACKLOG_GRACE_S)
            backlog.cancel()
            await asyncio.wait({backlog})
            await sender.send_heads(owner, job.heads)

        is_doubtful = False
        try:
            yield
        except StorageError:
            is_doubtful = True
            raise
        finally:
            await shield_until_done(send_at_stop())
            if is_doubtful:  # a failed write may have reached the disk: a later process sends the actual heads
                await shield_until_done(sender.expect(owner))

    async def expect(self, owner: Owner) -> None:
        """Announce a stop of a task, series or schedule. If this process dies first, a later one sends the heads."""
        if self._sender is not None:
            await self._sender.expect(owner)

    async def send_after_stop(self, owner: Owner, head: Head) -> None:
        """Send the head of a task, series or schedule that has stopped, and all unsent records."""
        if self._sender is not None:
            await self._sender.send_heads(owner, {run_id_of(owner.id, 1): head})
            await self._sender.send_backlog()

    @asynccontextmanager
    async def anchor_removal(self, owner: Owner) -> AsyncGenerator[None]:
        """Record the removal of all logs of an owner before the block, so that no crash looks like tampering.

        If the block raises, the current heads are sent instead.
        """
        sender = self._sender
        if sender is None:
            yield
            return
        await sender.store_removal(owner)
        try:
            yield
        except BaseException:
            await shield_until_done(sender.send_current(owner))
            raise
        await shield_until_done(sender.send_stored(owner))

    # --- comparing ------------------------------------------------------------------------------------------------

    async def receipt(self, job_id: str) -> bytes:
        """Return a receipt for a Job's present logs. Raises NotFound, Damaged, UsageError for an unreadable key."""
        from perstack.audit.receipts import checked_ends, lock_digest, signed_record

        signer, ends = self.signer, await checked_ends(self._storage, job_id)
        lock = lock_digest(self._lock)
        return signed_record(Owner("job", job_id), ends, signer=signer, lock=lock, clock=self._clock)

    def comparing(self, key: PublicKey | None, *, whole: bool = False) -> AnchorComparison | None:
        """Return a comparison with the anchor; None without one. With `key`, every record has to be signed by it.

        With `whole`, the comparison is for the whole store, and an anchor that is one file is read once.
        """
        if self._anchor is None:
            return None
        from perstack.audit.anchor_comparison import AnchorComparison

        return AnchorComparison(self._storage, self._anchor, key, whole=whole)

    async def compared_with_receipt(
        self, data: bytes, key: PublicKey | None, check: Check, job_id: str | None
    ) -> Report:
        """Return the report of `check` with the findings from a receipt added.

        Raises UsageError if `data` is not a receipt, or is the receipt of another Job than `job_id`.
        """
        from perstack.audit.receipt_statements import read_record
        from perstack.audit.receipts import lock_digest, log_hashes, with_receipt
        from perstack.audit.verification_report import Finding, Report
        from perstack.core.base.ids import check_job_id

        try:
            record = read_record(data)
        except ValueError as error:
            raise UsageError(f"the receipt: {error}") from error
        if record.owner.kind != "job":
            raise UsageError("the receipt is a record of a task or of iterations: compare those with the anchor")
        receipt_job_id = check_job_id(record.owner.id)
        if job_id not in (None, receipt_job_id):
            raise UsageError(f"the receipt is of Job {receipt_job_id}, not of {job_id}: give that Job's receipt")
        try:
            report = await check(receipt_job_id)
        except NotFound:
            finding = Finding("", 0, "there is no such Job here, but the receipt says that there was")
            report = Report(receipt_job_id, 0, 0, (finding,))
        logs = await log_hashes(self._storage, record.owner)
        return with_receipt(report, record, key, logs, lock_digest(self._lock))

    # --- helpers --------------------------------------------------------------------------------------------------

    @cached_property
    def _anchor(self) -> Anchor | None:
        if self._named_anchor is None:
            return None
        from perstack.audit.anchors import anchor_of

        self._check_agreed()
        return anchor_of(self._named_anchor, self._directory, self._env)

    def _check_agreed(self) -> None:
        """Raise NotAgreed if nobody has agreed to what `[audit]` reads, starts and reaches."""
        from perstack.trust.agreements import Agreement

        (self._agreement or Agreement(self._project)).check_keys(self._project, ("audit",))

    @property
    def _sender(self) -> AnchorSender | None:
        """A new sender at each access, because perstack.lock may have changed; None without an anchor."""
        if self._anchor is None:
            return None
        from perstack.audit.anchor_outbox import AnchorSender

        return AnchorSender(self._storage, self._anchor, lambda: self.signer, self._lock, self._clock)


def _key_files(setting: str | tuple[str, ...] | None) -> tuple[Path, ...]:
    if setting is None:
        return ()
    from perstack.audit.receipts import FROM_FILE

    if not isinstance(setting, str) or not setting.startswith(FROM_FILE):
        return ()
    return (Path(setting.removeprefix(FROM_FILE)).absolute(),)
