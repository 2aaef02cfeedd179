"""What `[audit]` asks for: the heads of Jobs, tasks and series are sent to an anchor at stops, and compared with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from perstack.config.lock import LOCK_NAME
from perstack.config.places import ProjectPlace
from perstack.core.audit import Audit
from perstack.core.chain import Head
from perstack.core.definitions import Project
from perstack.core.ids import run_id_of
from perstack.core.job import Job
from perstack.core.owners import Owner
from perstack.engine.clock import SYSTEM
from perstack.errors import NotFound, StorageError, UsageError
from perstack.ports.clock import Clock
from perstack.ports.storage import Storage
from perstack.ports.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from perstack.core.verification import Report
    from perstack.engine.anchors import Anchor
    from perstack.engine.comparing import Comparing
    from perstack.engine.sending import Sending
    from perstack.engine.signing import PublicKey, Signer

Check: TypeAlias = "Callable[[str], Awaitable[Report]]"
"""Makes the report of a Job. Raises NotFound."""

_GRACE = 2.0
"""Seconds that a stop waits for what earlier processes left to be sent."""


class Auditing:
    """The anchor and the key of one project. Without `[audit]` it does nothing, and imports nothing."""

    def __init__(
        self,
        storage: Storage,
        project: Project,
        directory: Path,
        env: Mapping[str, str],
        clock: Clock = SYSTEM,
    ) -> None:
        self._storage = storage
        audit = project.audit
        self._named_anchor = None if audit is None else audit.anchor
        self._signing_key = None if audit is None else audit.signing_key
        self._directory = directory if project.path is None else Path(project.path).parent
        self._lock = None if project.path is None else Path(project.path).with_name(LOCK_NAME)
        self._env = env
        self._clock = clock

    @property
    def key_variable(self) -> str | None:
        """The variable that the key is in, if it is in one: nobody else is given it."""
        if self._signing_key is None:
            return None
        from perstack.engine.signing import key_variable

        return key_variable(self._signing_key)

    @property
    def key_files(self) -> tuple[Path, ...]:
        """The file of the key, absolute, if it is in one: no tool reads or writes it."""
        return _files(self._signing_key)

    @property
    def anchor_places(self) -> tuple[Path, ...]:
        """The file or folder of the anchor, absolute, if it is one: tools keep off it."""
        return _files(self._named_anchor)

    def naming(self, anchor: str) -> Auditing:
        """The same with another anchor, to compare with."""
        return Auditing(self._storage, Project(audit=Audit(anchor=anchor)), Path.cwd(), {}, self._clock)

    def check(self) -> None:
        """Raises UsageError if the key cannot be read, or the anchor is none."""
        _ = self._anchor, self.signer

    @cached_property
    def signer(self) -> Signer | None:
        """The project's key; None if it has none. Raises UsageError."""
        key = self._signing_key
        if key is None:
            return None
        from perstack.engine.signing import read_signer

        return read_signer(key, self._env)

    # --- what is written, and removed -----------------------------------------------------------------------------

    @asynccontextmanager
    async def kept(self, job: Job) -> AsyncGenerator[None]:
        """Meanwhile what an anchor has not taken yet is sent again; at the end the heads of this Job are."""
        sending = self._sending
        if sending is None:
            yield
            return
        owner = Owner("job", job.id)
        await sending.expect(owner)
        earlier = asyncio.create_task(sending.earlier())

        async def at_stop() -> None:
            await asyncio.wait({earlier}, timeout=_GRACE)  # a short Job would end before what was left is sent
            earlier.cancel()
            await asyncio.wait({earlier})
            await sending.heads(owner, job.heads)

        doubtful = False
        try:
            yield
        except StorageError:
            doubtful = True
            raise
        finally:
            await uninterrupted(at_stop())
            if doubtful:  # what failed to be written may be there nevertheless: a later process sends what is
                await uninterrupted(sending.expect(owner))

    async def expect(self, owner: Owner) -> None:
        """A task or a series is about to stop: if this process is killed before `stopped`, a later one sends that."""
        if self._sending is not None:
            await self._sending.expect(owner)

    async def stopped(self, owner: Owner, head: Head) -> None:
        """A task or a series has stopped, and its log ends there: sent, with all that was not taken earlier."""
        if self._sending is not None:
            await self._sending.heads(owner, {run_id_of(owner.id, 1): head})
            await self._sending.earlier()

    @asynccontextmanager
    async def removing(self, owner: Owner) -> AsyncGenerator[None]:
        """What is done meanwhile removes all of it: the anchor is sent its last heads, as those of something removed.

        They are kept before, so that no crash leaves a removal that looks like somebody else's.
        """
        sending = self._sending
        if sending is None:
            yield
            return
        await sending.removal(owner)
        try:
            yield
        except BaseException:
            await uninterrupted(sending.as_it_is(owner))
            raise
        await uninterrupted(sending.left(owner))

    # --- looking --------------------------------------------------------------------------------------------------

    async def receipt(self, job_id: str) -> bytes:
        """A receipt for the logs of a Job as they are now, in JSON; signed if the project has a key. Raises NotFound,
        Damaged, and UsageError for a key that cannot be read."""
        from perstack.engine.receipts import Voucher, lock_digest, receipt_of

        return await receipt_of(self._storage, job_id, Voucher(self.signer, lock_digest(self._lock), clock=self._clock))

    def comparing(self, key: PublicKey | None, *, whole: bool = False) -> Comparing | None:
        """What compares with the anchor; None if there is none. With `key` every record has to be signed by it.

        With `whole` for all that there is: an anchor that is one file is read once.
        """
        if self._anchor is None:
            return None
        from perstack.engine.comparing import Comparing

        return Comparing(self._storage, self._anchor, key, whole=whole)

    async def compared_with_receipt(
        self, data: bytes, key: PublicKey | None, check: Check, job_id: str | None
    ) -> Report:
        """The report of the Job that a receipt is of, as `check` makes it, with what comparing the two comes to. Raises
        UsageError if `data` is not a receipt, or one of another Job than `job_id`."""
        from perstack.core.ids import check_job_id
        from perstack.core.receipts import read_record
        from perstack.core.verification import Finding, Report
        from perstack.engine.receipts import lock_digest, places_of, with_receipt

        try:
            record = read_record(data)
        except ValueError as error:
            raise UsageError(f"the receipt: {error}") from error
        if record.owner.kind != "job":
            raise UsageError("the receipt is a record of a task or of iterations: compare those with the anchor")
        named = check_job_id(record.owner.id)
        if job_id not in (None, named):
            raise UsageError(f"the receipt is of Job {named}, not of {job_id}: give the one of that Job")
        try:
            report = await check(named)
        except NotFound:
            gone = Finding("", 0, "there is no such Job here, and the receipt says that there was")
            report = Report(named, 0, 0, (gone,))
        logs = await places_of(self._storage, record.owner)
        return with_receipt(report, record, key, logs, lock_digest(self._lock))

    # --- inside ---------------------------------------------------------------------------------------------------

    @cached_property
    def _anchor(self) -> Anchor | None:
        if self._named_anchor is None:
            return None
        from perstack.engine.anchors import anchor_of

        return anchor_of(self._named_anchor, self._directory, self._env)

    @property
    def _sending(self) -> Sending | None:
        """None if there is no anchor. Made anew each time: perstack.lock may have changed."""
        if self._anchor is None:
            return None
        from perstack.engine.sending import Sending

        return Sending(self._storage, self._anchor, lambda: self.signer, self._lock, self._clock)


def audit_of(project: Project, storage: Storage, place: ProjectPlace, env: Mapping[str, str] | None) -> Auditing | None:
    """That of a project, without a Host; None if it asks for nothing. Without `env` with its `.env` files."""
    if project.audit is None:
        return None
    from perstack.engine.trust import environment_of

    return Auditing(storage, project, place.folder, environment_of(project, place) if env is None else env)


def _files(setting: str | tuple[str, ...] | None) -> tuple[Path, ...]:
    if setting is None:
        return ()
    from perstack.engine.signing import FROM_FILE

    if not isinstance(setting, str) or not setting.startswith(FROM_FILE):
        return ()
    return (Path(setting.removeprefix(FROM_FILE)).absolute(),)
