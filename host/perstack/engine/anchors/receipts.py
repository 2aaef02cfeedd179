"""Receipts and anchored records: made of logs, and compared with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

from perstack.core.chain import EMPTY_LOG, BrokenSeal, Head, open_line
from perstack.core.chain import check as check_line
from perstack.core.owners import Owner, OwnerKind
from perstack.core.receipts import (
    PAYLOAD_TYPE,
    LogEnd,
    LogPlaces,
    Record,
    against_receipt,
    events_after,
    left_in_force,
    removed_lives,
    statement_of,
)
from perstack.core.verification import Finding, Report, Unchecked
from perstack.dataclass import dataclass
from perstack.engine.clock import SYSTEM, iso
from perstack.engine.logs.lines import readable, run_ids
from perstack.engine.signing import PublicKey, Signer
from perstack.engine.spaces import space_of
from perstack.errors import Damaged, NotFound, StorageError
from perstack.next_steps import Look
from perstack.ports.clock import Clock
from perstack.ports.storage import RunRef, Storage
from perstack.version import VERSION

NAMES: Mapping[OwnerKind, str] = {
    "job": "Job",
    "task": "task",
    "iterations": "series of iterations",
    "schedule": "schedule",
}


@dataclass(frozen=True, slots=True)
class Voucher:
    """What a record has besides heads."""

    signer: Signer | None
    lock: bytes | None
    """The SHA-256 of perstack.lock."""
    store: bytes | None = None
    """The SHA-256 of where the storage is."""
    clock: Clock = SYSTEM

    def record(self, owner: Owner, ends: Sequence[LogEnd], *, removed: bool = False) -> bytes:
        """The record of these ends as they are now, in JSON; signed if there is a key."""
        body = statement_of(
            owner,
            ends,
            created_on=iso(self.clock.now(), "milliseconds"),
            runtime_version=VERSION,
            lock=self.lock,
            store=self.store,
            removed=removed,
        ).to_json()
        return body if self.signer is None else self.signer.sign(PAYLOAD_TYPE, body).to_json()


async def receipt_of(storage: Storage, job_id: str, voucher: Voucher) -> bytes:
    """A receipt for the logs of a Job as they are now, in JSON.

    Raises NotFound, and Damaged for a log that is not right itself.
    """
    ends: list[LogEnd] = []
    for run_id in await run_ids(storage, job_id):
        lines = await storage.read(RunRef(job_id, run_id))
        places = _places(lines)
        if len(places.hashes) < len(lines):
            good = len(places.hashes)
            words = f"{run_id}, event {good + 1}: the log does not hold"
            raise Damaged(words, readable=good, next_steps=(Look("damage", job_id),))
        if lines:
            ends.append(LogEnd(run_id, len(lines), places.hashes[-1], places.first))
    if not ends:
        raise NotFound(f"Job {job_id} has no events: there is nothing to vouch for")
    return voucher.record(Owner("job", job_id), ends)


async def ends_at(storage: Storage, owner: Owner, heads: Mapping[str, Head]) -> list[LogEnd]:
    """The ends of logs that this process has written, of each by its Run: whatever the logs say by now."""
    space = space_of(storage, owner.kind)
    ends: list[LogEnd] = []
    for run_id, head in heads.items():
        first = await space.read(RunRef(owner.id, run_id), limit=1)
        if not first:
            raise StorageError(f"the log of {run_id} is gone")
        ends.append(LogEnd(run_id, head.seq, head.hash, open_line(first[0]).digest))
    return ends


async def ends_now(storage: Storage, owner: Owner) -> list[LogEnd]:
    """The ends of logs as they are now, as far as they hold; none if there is nothing."""
    logs = await places_of(storage, owner)
    return [LogEnd(run_id, len(log.hashes), log.hashes[-1], log.first) for run_id, log in logs.items() if log.hashes]


def lock_digest(path: Path | None) -> bytes | None:
    """The SHA-256 of perstack.lock; None if there is none."""
    try:
        return None if path is None else sha256(path.read_bytes()).digest()
    except OSError:
        return None


async def places_of(storage: Storage, owner: Owner) -> dict[str, LogPlaces]:
    """The logs of a Job, a task or a series as far as they hold; none for one that is not there."""
    space = space_of(storage, owner.kind)
    try:
        ids = await run_ids(space, owner.id)
    except NotFound:
        return {}
    return {run_id: _places((await readable(space, RunRef(owner.id, run_id)))[0]) for run_id in ids}


def with_receipt(
    report: Report, record: Record, key: PublicKey | None, logs: dict[str, LogPlaces], lock: bytes | None
) -> Report:
    """The report of a Job, with what comparing its logs with a receipt came to."""
    statement = record.statement
    problem = signature_problem(record, key)
    if problem is not None:
        return replace(report, findings=(*report.findings, Finding("", 0, f"the receipt {problem}")))
    unchecked: list[Unchecked] = []
    if record.envelope is None:
        unchecked.append(_unchecked("receipt", 1, "the receipt is not signed: whoever can write to it can change it"))
    elif key is None:
        unchecked.append(_unchecked("receipt", 1, "the signature of the receipt: no public key was given"))
    after = events_after((statement,), logs)
    if after:
        unchecked.append(_unchecked("receipt", after, f"{after:,} of its events were appended after the receipt"))
    stated = statement.predicate.lock
    if stated is not None and (lock is None or stated.digest.sha256 != lock.hex()):
        words = "perstack.lock is another than when the receipt was written, or gone"
        unchecked.append(_unchecked("receipt", 1, words))
    return replace(
        report,
        findings=_added(report, against_receipt(statement, logs, "the receipt")),
        unchecked=(*report.unchecked, *unchecked),
        checked=replace(report.checked, heads=report.checked.heads + len(statement.subject)),
    )


def with_records(
    report: Report, source: str, records: Sequence[Record], key: PublicKey | None, logs: dict[str, LogPlaces]
) -> Report:
    """The report of a Job, a task or a series, with what comparing its logs with anchored records came to."""
    if report.kind == "store":
        raise ValueError("a store as a whole has no logs")
    owner = Owner(report.kind, report.job_id)
    trusted, findings = trusted_of(owner, source, records, key)
    in_force = left_in_force(trusted, owner, logs)
    for record in in_force:
        found = against_receipt(record.statement, logs, f"the anchor {source}")
        # of one log alone it need not be said which
        findings += found if owner.kind == "job" else [replace(one, run_id="") for one in found]
    unchecked: list[Unchecked] = []
    signed = sum(record.envelope is not None for record in records)
    if key is None and signed:
        words = f"signatures in the anchor: {signed:,}; no public key was given"
        unchecked.append(_unchecked("anchor", signed, words))
    if removed_lives(in_force):
        words = f"the anchor {source} says that it was deleted: the deletion was cut short, or it was put back"
        unchecked.append(_unchecked("anchor", 1, words))
    after = events_after([record.statement for record in in_force], logs)
    if after:
        words = f"{after:,} of its events are later than the last record in the anchor {source}"
        unchecked.append(_unchecked("anchor", after, words))
    heads = report.checked.heads + sum(len(one.statement.subject) for one in in_force)
    return replace(
        report,
        findings=_added(report, findings),
        unchecked=(*report.unchecked, *unchecked),
        checked=replace(report.checked, heads=heads),
    )


def trusted_of(
    owner: Owner, source: str, records: Sequence[Record], key: PublicKey | None
) -> tuple[list[Record], list[Finding]]:
    """The records of an anchor that count: with a key those that it has signed. Each other one is a finding."""
    trusted: list[Record] = []
    findings: list[Finding] = []
    for number, record in enumerate(records, 1):
        problem = signature_problem(record, key)
        if problem is None:
            trusted.append(record)
        else:
            findings.append(
                Finding("", 0, f"record {number} of this {NAMES[owner.kind]} in the anchor {source} {problem}")
            )
    return trusted, findings


def signature_problem(record: Record, key: PublicKey | None) -> str | None:
    """What is wrong with who vouches for a record; None if nothing is, or if no key is named to check it with."""
    if key is None:
        return None
    if record.envelope is None:
        return "is not signed: anybody may have written it"
    if not key.has_signed(record.envelope):
        return "is not signed by that key: it was changed, or another key has signed it"
    return None


def passed_over(report: Report, words: str) -> Report:
    """The report, with something of the anchor that could not be checked."""
    return replace(report, unchecked=(*report.unchecked, _unchecked("anchor", 1, words)))


def _places(lines: Sequence[bytes]) -> LogPlaces:
    hashes: list[str] = []
    head, first = EMPTY_LOG, ""
    for line in lines:
        try:
            sealed, head = check_line(head, line)
        except BrokenSeal:
            break
        first = first or sealed.digest
        hashes.append(head.hash)
    return LogPlaces(hashes, first)


def _added(report: Report, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(dict.fromkeys((*report.findings, *findings)))


def _unchecked(kind: Literal["anchor", "receipt"], count: int, message: str) -> Unchecked:
    return Unchecked(kind, "", count, message)
