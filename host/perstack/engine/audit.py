"""What `[audit]` asks for: the heads of Jobs are sent to an anchor at stops, and compared with it.

Nothing that goes wrong with an anchor ends or delays a Job beyond `SECONDS`: it is said on stderr, and tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from perstack.config.lock import LOCK_NAME
from perstack.core.definitions import Audit, Project
from perstack.core.job import Job
from perstack.core.verification import Finding, Report
from perstack.engine.notices import notice
from perstack.engine.signing import FROM_FILE, key_variable, read_signer
from perstack.errors import NotFound, UsageError
from perstack.ports.storage import Storage
from perstack.ports.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from perstack.engine.anchors import Anchor
    from perstack.engine.pending_heads import PendingHeads
    from perstack.engine.signing import PublicKey, Signer

Check = Callable[[str], Awaitable[Report]]
"""Makes the report of a Job. Raises NotFound."""

SECONDS = 10
"""How long a Job that has stopped may wait for its anchor."""


class Auditing:
    """The anchor and the key of one project. Without `[audit]` it does nothing, and imports nothing."""

    def __init__(self, storage: Storage, project: Project, directory: Path, env: Mapping[str, str]) -> None:
        self._storage = storage
        self._audit = project.audit or Audit()
        self._directory = directory if project.path is None else Path(project.path).parent
        self._lock = None if project.path is None else Path(project.path).with_name(LOCK_NAME)
        self._env = env

    @property
    def key_variable(self) -> str | None:
        """The variable that the key is in, if it is in one: nobody else is given it."""
        return key_variable(self._audit.signing_key)

    @property
    def key_files(self) -> tuple[Path, ...]:
        """The file of the key, absolute, if it is in one: no tool reads or writes it."""
        return _files(self._audit.signing_key)

    @property
    def anchor_places(self) -> tuple[Path, ...]:
        """The file or folder of the anchor, absolute, if it is one: tools keep off it."""
        return _files(self._audit.anchor)

    def naming(self, anchor: str) -> Auditing:
        """The same with another anchor, to compare with."""
        return Auditing(self._storage, Project(audit=Audit(anchor=anchor)), Path.cwd(), {})

    def check(self) -> None:
        """Raises UsageError if the key cannot be read, or the anchor is none."""
        _ = self._anchor, self.signer

    @cached_property
    def signer(self) -> Signer | None:
        """The project's key; None if it has none. Raises UsageError."""
        key = self._audit.signing_key
        return None if key is None else read_signer(key, self._env)

    # --- while Jobs are driven ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def kept(self, job: Job) -> AsyncGenerator[None]:
        """Meanwhile what an anchor has not taken yet is sent again; at the end the heads of this Job are."""
        anchor = self._anchor
        if anchor is None:
            yield
            return
        from perstack.engine.receipts import lock_digest

        lock = lock_digest(self._lock)
        earlier = asyncio.create_task(_try(anchor, "the heads of earlier stops", lambda: self._send_earlier(anchor)))

        async def at_stop() -> None:
            earlier.cancel()
            await asyncio.wait({earlier})
            await _try(anchor, f"the heads of Job {job.id}", lambda: self._send_heads(anchor, job, lock))

        try:
            yield
        finally:
            await uninterrupted(at_stop())

    async def _send_heads(self, anchor: Anchor, job: Job, lock: bytes | None) -> None:
        from perstack.engine.receipts import record_of

        record = await record_of(self._storage, job, self.signer, lock)
        if record is not None:
            await self._pending.add(job.id, record)
            await self._send_pending(anchor, job.id)

    async def _send_earlier(self, anchor: Anchor) -> None:
        for job_id in await self._pending.jobs():
            await self._send_pending(anchor, job_id)

    async def _send_pending(self, anchor: Anchor, job_id: str) -> None:
        records = await self._pending.of(job_id)
        for record in records:
            await anchor.send(job_id, record)
        await self._pending.remove(job_id, len(records))

    # --- looking --------------------------------------------------------------------------------------------------

    async def receipt(self, job_id: str) -> bytes:
        """A receipt for the logs of a Job as they are now, in JSON; signed if the project has a key. Raises NotFound,
        Damaged, and UsageError for a key that cannot be read."""
        from perstack.engine.receipts import lock_digest, receipt_of

        return await receipt_of(self._storage, job_id, self.signer, lock_digest(self._lock))

    async def compared(self, report: Report, key: PublicKey | None = None) -> Report:
        """The report, if it is of a Job, with what comparing its logs with the anchor comes to.

        With `key` every record has to be signed by it.
        """
        anchor = self._anchor
        if anchor is None or report.kind != "job":
            return report
        from perstack.engine.anchors import ReadableAnchor
        from perstack.engine.receipts import passed_over, places_of, with_records

        if not isinstance(anchor, ReadableAnchor):
            return passed_over(report, f"the anchor {anchor.name} is only sent to: what it has is not compared")
        try:
            async with asyncio.timeout(SECONDS):
                records, unread = await anchor.records(report.job_id)
        except (OSError, TimeoutError) as error:
            reason = f"it did not answer within {SECONDS} s" if isinstance(error, TimeoutError) else _words(error)
            return passed_over(report, f"the anchor {anchor.name} cannot be read: {reason}")
        # after the anchor: of a Job that runs, the logs hold at least what had been anchored
        logs = await places_of(self._storage, report.job_id)
        if await self._pending.has(report.job_id):
            report = passed_over(report, f"the anchor {anchor.name} has not taken the latest heads yet")
        if unread:
            report = passed_over(report, f"lines of the anchor {anchor.name} that are no records: {unread:,}")
        return with_records(report, anchor.name, records, key, logs)

    async def compared_with_receipt(
        self, data: bytes, key: PublicKey | None, check: Check, job_id: str | None
    ) -> Report:
        """The report of the Job that a receipt is of, as `check` makes it, with what comparing the two comes to. Raises
        UsageError if `data` is no receipt, or one of another Job than `job_id`."""
        from perstack.core.ids import check_job_id
        from perstack.core.receipts import read_record
        from perstack.engine.receipts import lock_digest, places_of, with_receipt

        try:
            record = read_record(data)
        except ValueError as error:
            raise UsageError(f"the receipt: {error}") from error
        named = check_job_id(record.statement.predicate.job_id)
        if job_id not in (None, named):
            raise UsageError(f"the receipt is of Job {named}, and not of {job_id}")
        try:
            report = await check(named)
        except NotFound:
            gone = Finding("", 0, "there is no such Job here, and the receipt says that there was")
            report = Report(named, 0, 0, (gone,))
        return with_receipt(report, record, key, await places_of(self._storage, named), lock_digest(self._lock))

    # --- inside ---------------------------------------------------------------------------------------------------

    @cached_property
    def _anchor(self) -> Anchor | None:
        if self._audit.anchor is None:
            return None
        from perstack.engine.anchors import anchor_of

        return anchor_of(self._audit.anchor, self._directory, self._env)

    @cached_property
    def _pending(self) -> PendingHeads:
        from perstack.engine.pending_heads import PendingHeads

        return PendingHeads(self._storage)


def _files(setting: str | tuple[str, ...] | None) -> tuple[Path, ...]:
    if not isinstance(setting, str) or not setting.startswith(FROM_FILE):
        return ()
    return (Path(setting.removeprefix(FROM_FILE)).absolute(),)


async def _try(anchor: Anchor, what: str, send: Callable[[], Awaitable[None]]) -> None:
    try:
        async with asyncio.timeout(SECONDS):
            await send()
    except TimeoutError:
        _say(anchor, what, f"it did not answer within {SECONDS} s")
    except Exception as error:  # noqa: BLE001 - no fault of an anchor may end a Job
        _say(anchor, what, _words(error))


def _say(anchor: Anchor, what: str, reason: str) -> None:
    words = f"the anchor {anchor.name} did not take {what}: {reason}; they are kept, and sent at the next start or stop"
    notice(words)


def _words(error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) else None
    return reason or str(error) or type(error).__name__
