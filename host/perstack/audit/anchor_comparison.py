"""Compare logs with the records of an anchor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from perstack.audit.anchor_outbox import outbox, store_digest
from perstack.audit.anchors import TIMEOUT_S, Anchor, AnchorReader, FileAnchor, reason_of
from perstack.audit.receipt_statements import AnchorRecord, ended_lives, read_record
from perstack.audit.receipts import PublicKey, log_hashes, trusted_records, with_records, with_unchecked
from perstack.audit.verification_report import Finding, Report, Unchecked
from perstack.core.base.ids import Owner
from perstack.engine.log.storage_access import OWNER_KINDS, space_of
from perstack.errors import StorageError
from perstack.ports.storage import Storage

_WHOLE_TIMEOUT_S = 120  # timeout in seconds for reading a whole anchor

_T = TypeVar("_T")


class AnchorComparison:
    """One comparison with an anchor: of one owner, or of a `whole` store, for which the anchor is read once."""

    def __init__(self, storage: Storage, anchor: Anchor, key: PublicKey | None, *, whole: bool) -> None:
        """Create without reading the anchor; with `key`, every record has to be signed by it."""
        self._storage = storage
        self._anchor = anchor
        self._key = key
        self._is_store_wide = whole
        self._reader: AnchorReader | None = None
        self._problem: str | None = None

    async def compared(self, report: Report) -> Report:
        """Return the report of an owner with the findings of the comparison added; a `store` report unchanged."""
        if report.kind == "store":
            return report
        owner, name = Owner(report.kind, report.job_id), self._anchor.name
        try:
            records, invalid_lines = await self._read_records(owner)
        except AnchorUnreadable as error:
            return with_unchecked(report, str(error))
        try:
            # Logs are read after the anchor, so those of a running Job contain at least what was anchored.
            logs = await log_hashes(self._storage, owner)
            is_waiting = await outbox(self._storage, owner.kind).has(owner.id)
        except StorageError as error:
            return with_unchecked(report, f"the anchor {name} is not compared, as a log cannot be read: {error}")
        if is_waiting:
            report = with_unchecked(report, f"the anchor {name} has not taken the latest heads yet")
        if invalid_lines:
            report = with_unchecked(report, f"lines of the anchor {name} that are not records: {invalid_lines:,}")
        return with_records(report, name, records, self._key, logs)

    async def missing_owners(self) -> Report | None:
        """Return a report on owners that the anchor has, and that the store lost without a removal; None if none."""
        try:
            absent_owners = [owner for owner in await self._read_owners() if not await self._exists_here(owner)]
            self._reader = None  # read again: an owner removed in the meantime has a record of its removal by now
            findings, unchecked, foreign_count = list[Finding](), list[Unchecked](), 0
            for owner in absent_owners:
                result = await self._check_missing(owner)
                findings += result.findings
                unchecked += result.unchecked
                foreign_count += result.foreign
        except AnchorUnreadable as error:
            message = f"{error}; whether anything was removed is not known"
            findings, unchecked, foreign_count = [], [Unchecked("anchor", "", 1, message)], 0
        if foreign_count:
            message = (
                f"the anchor {self._anchor.name} also has heads from other stores, or from another path of this one"
            )
            unchecked.append(Unchecked("anchor", "", foreign_count, f"{message}: {foreign_count:,}"))
        if not findings and not unchecked:
            return None
        return Report(self._storage.location, 0, 0, tuple(findings), tuple(unchecked), kind="store")

    async def missing(self, owner_id: str) -> Report | None:
        """Return a report on an id that is not in the store; None unless the anchor has it without a removal."""
        for kind in OWNER_KINDS:
            try:
                result = await self._check_missing(Owner(kind, owner_id))
            except AnchorUnreadable:
                return None
            if result.findings:
                return Report(owner_id, 0, 0, tuple(result.findings), tuple(result.unchecked), kind=kind)
        return None

    async def _check_missing(self, owner: Owner) -> _MissingOwner:
        """Check the records of an owner that the store does not have. A finding means: removed without a record."""
        records, _ = await self._read_records(owner)
        source = f"the anchor {self._anchor.name}"
        valid_records, findings = trusted_records(owner, self._anchor.name, records, self._key)
        findings = [Finding(owner.id, 0, finding.message) for finding in findings]
        removed_lives = ended_lives(valid_records)
        remaining = [record for record in valid_records if record.life not in removed_lives]
        if not remaining:
            return _MissingOwner(findings)
        if not any(self._is_of_this_storage(record) for record in remaining):
            return _MissingOwner(findings, foreign=1)
        if not _has_live_record(remaining, ended_lives([*valid_records, *await self._records_in_outbox(owner)])):
            words = f"it is not here, and a record of its removal waits to be sent to {source}"
            return _MissingOwner(findings, [Unchecked("anchor", owner.id, 0, words)])
        last_time = remaining[-1].statement.predicate.created_on
        words = (
            f"{source} has heads of this {OWNER_KINDS[owner.kind].singular}, the last of {last_time}, but it is gone"
        )
        return _MissingOwner(
            [*findings, Finding(owner.id, 0, f"{words}: somebody removed it; put it back from a copy")]
        )

    def _is_of_this_storage(self, record: AnchorRecord) -> bool:
        store = record.statement.predicate.store
        return store is not None and store.sha256 == store_digest(self._storage).hex()

    async def _exists_here(self, owner: Owner) -> bool:
        return await space_of(self._storage, owner.kind).has_job(owner.id)

    async def _records_in_outbox(self, owner: Owner) -> list[AnchorRecord]:
        records: list[AnchorRecord] = []
        for data in await outbox(self._storage, owner.kind).records(owner.id):
            try:
                records.append(read_record(data))
            except ValueError:
                continue
        return trusted_records(owner, "", records, self._key)[0]

    # --- reading --------------------------------------------------------------------------------------------------

    async def _read_records(self, owner: Owner) -> tuple[list[AnchorRecord], int]:
        reader = await self._open_reader()
        return await self._read_within(lambda: reader.records(owner), TIMEOUT_S)

    async def _read_owners(self) -> Sequence[Owner]:
        reader = await self._open_reader()
        return sorted(await self._read_within(reader.owners, _WHOLE_TIMEOUT_S))

    async def _open_reader(self) -> AnchorReader:
        """Return the reader, which has loaded the anchor for a whole store. Raises the first error again."""
        if not isinstance(self._anchor, FileAnchor):
            raise AnchorUnreadable(f"the anchor {self._anchor.name} can only be sent to: its records are not compared")
        if self._problem is not None:
            raise AnchorUnreadable(self._problem)
        if self._reader is None:
            reader = AnchorReader(self._anchor)
            if self._is_store_wide:
                try:
                    await self._read_within(reader.load, _WHOLE_TIMEOUT_S)
                except AnchorUnreadable as error:
                    self._problem = str(error)
                    raise
            self._reader = reader
        return self._reader

    async def _read_within(self, read: Callable[[], Awaitable[_T]], timeout_s: int) -> _T:
        try:
            async with asyncio.timeout(timeout_s):
                return await read()
        except OSError as error:
            raise AnchorUnreadable(
                f"the anchor {self._anchor.name} cannot be read: {reason_of(error, timeout_s)}"
            ) from error


class AnchorUnreadable(Exception):
    """Raised if an anchor cannot be read; its message says why."""


class _MissingOwner:
    """Statement of an anchor about an owner that the store lacks; `foreign`: 1 if only other stores recorded it."""

    def __init__(self, findings: Sequence[Finding], unchecked: Sequence[Unchecked] = (), *, foreign: int = 0) -> None:
        self.findings = findings
        self.unchecked = unchecked
        self.foreign = foreign


def _has_live_record(records: Sequence[AnchorRecord], removed_lives: frozenset[str]) -> bool:
    return any(record.life not in removed_lives for record in records)
