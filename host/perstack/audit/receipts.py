"""Sign records and receipts over logs with Ed25519 keys. No error message contains any part of a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from perstack.audit.receipt_statements import (
    PAYLOAD_TYPE,
    AnchorRecord,
    Envelope,
    LogEnd,
    LogHashes,
    compare_with_receipt,
    count_events_after,
    ended_lives,
    envelope_of,
    pae,
    records_in_force,
    statement_of,
)
from perstack.audit.verification_report import Finding, Report, Unchecked
from perstack.core.base.chain import EMPTY_LOG, BrokenSeal, Head, open_line
from perstack.core.base.chain import check as check_line
from perstack.core.base.ids import Owner
from perstack.dataclass import dataclass
from perstack.engine.log.event_log import read_intact, run_ids
from perstack.engine.log.storage_access import OWNER_KINDS, space_of
from perstack.errors import Damaged, NotFound, StorageError, UsageError
from perstack.lockfile.lock import MAX_LOCK_BYTES
from perstack.next_steps import Inspect
from perstack.ports.storage import RunRef, Storage
from perstack.system.clock import Clock, iso
from perstack.system.files import read_regular
from perstack.version import VERSION

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


# Keys.
#
# `cryptography` is imported when a key is read: a project without a key never imports it.

_MAX_KEY_BYTES = 1 << 16
FROM_FILE = "file:"
FROM_ENV = "env:"
_HOW_TO_MAKE_KEY = "make one with: openssl genpkey -algorithm ed25519 -out KEY.pem"


@dataclass(frozen=True, slots=True)
class Signer:
    """A private key and its id."""

    key: Ed25519PrivateKey
    key_id: str

    def sign(self, payload_type: str, body: bytes) -> Envelope:
        return envelope_of(payload_type, body, self.key_id, self.key.sign(pae(payload_type, body)))


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key for checking signatures."""

    key: Ed25519PublicKey
    key_id: str  # hex SHA-256 of the key in DER (SubjectPublicKeyInfo)

    def has_signed(self, envelope: Envelope) -> bool:
        """Return whether one of the signatures is by this key, over exactly this payload and its type."""
        from cryptography.exceptions import InvalidSignature

        for signature in envelope.signatures:
            try:
                self.key.verify(signature.value(), envelope.signed_bytes())
            except (InvalidSignature, ValueError):
                continue
            return True
        return False


def read_signer(setting: str, env: Mapping[str, str]) -> Signer:
    """Read the private key that `signingKey` names, with the variables of `env`. Raises UsageError without one."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    label, pem = _read_private_pem(setting, env)
    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError):  # TypeError: the key is encrypted
        raise UsageError(f"{label} is not an unencrypted private key in PEM; {_HOW_TO_MAKE_KEY}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{label} is not an Ed25519 key; {_HOW_TO_MAKE_KEY}")
    return Signer(key, _key_id(key.public_key()))


def read_public_key(path: Path) -> PublicKey:
    """Read a public key in PEM. Raises UsageError if the file has none."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    remedy = "write it with: openssl pkey -in KEY.pem -pubout -out PUBLIC.pem"
    try:
        key = load_pem_public_key(_read_file(path, f"the key {path}"))
    except ValueError:
        raise UsageError(f"the key {path} is not a public key in PEM; {remedy}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(f"the key {path} is not an Ed25519 key")
    return PublicKey(key, _key_id(key))


def key_file(setting: str | None) -> Path | None:
    """Return the file that `signingKey` names; None if it names no file."""
    return Path(setting.removeprefix(FROM_FILE)) if setting is not None and setting.startswith(FROM_FILE) else None


def key_variable(setting: str | None) -> str | None:
    """Return the environment variable that `signingKey` names; None if it names none."""
    return setting.removeprefix(FROM_ENV) if setting is not None and setting.startswith(FROM_ENV) else None


def _read_private_pem(setting: str, env: Mapping[str, str]) -> tuple[str, bytes]:
    file, variable = key_file(setting), key_variable(setting)
    if file is not None:
        label = f"[audit] signingKey {file}"
        return label, _read_file(file, label)
    label = f"[audit] signingKey {setting}"
    if variable is None:
        raise UsageError("[audit] signingKey: name a file, `file:PATH`, or a variable, `env:NAME`")
    if not env.get(variable):
        raise UsageError(f"{label}: the variable {variable} is not set: set it to the key in PEM")
    # a .env file may contain the lines separated by a literal \n
    return label, env[variable].replace("\\n", "\n").encode()


def _read_file(path: Path, label: str) -> bytes:
    try:
        return read_regular(path, _MAX_KEY_BYTES)
    except OSError as error:
        raise UsageError(f"{label} cannot be read: {error.strerror or type(error).__name__}") from None


def _key_id(key: Ed25519PublicKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def signed_record(
    owner: Owner,
    ends: Sequence[LogEnd],
    *,
    signer: Signer | None,
    lock: bytes | None,
    clock: Clock,
    store: bytes | None = None,
    removed: bool = False,
) -> bytes:
    """Return the record of these log ends; signed if there is a key.

    `lock` and `store` are the SHA-256 of perstack.lock (None without one) and of the storage's location.
    """
    body = statement_of(
        owner,
        ends,
        created_on=iso(clock.now(), "milliseconds"),
        runtime_version=VERSION,
        lock=lock,
        store=store,
        removed=removed,
    ).to_json()
    return body if signer is None else signer.sign(PAYLOAD_TYPE, body).to_json()


async def checked_ends(storage: Storage, job_id: str) -> list[LogEnd]:
    """Return the ends of a Job's logs for a receipt. Raises NotFound, and Damaged for an invalid line."""
    ends: list[LogEnd] = []
    for run_id in await run_ids(storage, job_id):
        lines = await storage.read(RunRef(job_id, run_id))
        log = _hash_lines(lines)
        if len(log.hashes) < len(lines):
            valid_count = len(log.hashes)
            message = f"{run_id}, event {valid_count + 1}: the line does not fit the log"
            raise Damaged(message, readable=valid_count, next_steps=(Inspect("damage", job_id),))
        if lines:
            ends.append(LogEnd(run_id, len(lines), log.hashes[-1], log.first))
    if not ends:
        raise NotFound(f"Job {job_id} has no events: a receipt would cover nothing")
    return ends


async def ends_at(storage: Storage, owner: Owner, heads: Mapping[str, Head]) -> list[LogEnd]:
    """Return the log ends that this process has written, even if the logs are longer by now. Raises StorageError."""
    space = space_of(storage, owner.kind)
    ends: list[LogEnd] = []
    for run_id, head in heads.items():
        first = await space.read(RunRef(owner.id, run_id), limit=1)
        if not first:
            raise StorageError(f"the log of {run_id} is gone")
        ends.append(LogEnd(run_id, head.seq, head.hash, open_line(first[0]).digest))
    return ends


async def ends_now(storage: Storage, owner: Owner) -> list[LogEnd]:
    """Return the ends of an owner's logs as they are now, up to the first invalid line; empty if there are no logs."""
    logs = await log_hashes(storage, owner)
    return [LogEnd(run_id, len(log.hashes), log.hashes[-1], log.first) for run_id, log in logs.items() if log.hashes]


def lock_digest(path: Path | None) -> bytes | None:
    """Return the SHA-256 of perstack.lock; None if it cannot be read."""
    try:
        return None if path is None else sha256(read_regular(path, MAX_LOCK_BYTES)).digest()
    except OSError:
        return None


async def log_hashes(storage: Storage, owner: Owner) -> dict[str, LogHashes]:
    """Return the hashes of an owner's logs, up to the first invalid line; empty if the owner does not exist."""
    space = space_of(storage, owner.kind)
    try:
        ids = await run_ids(space, owner.id)
    except NotFound:
        return {}
    return {run_id: _hash_lines((await read_intact(space, RunRef(owner.id, run_id)))[0]) for run_id in ids}


def with_receipt(
    report: Report, record: AnchorRecord, key: PublicKey | None, logs: dict[str, LogHashes], lock: bytes | None
) -> Report:
    """Return the report of a Job with the findings from a receipt added."""
    statement = record.statement
    problem = signature_problem(record, key)
    if problem is not None:
        return replace(report, findings=(*report.findings, Finding("", 0, f"the receipt {problem}")))
    unchecked: list[Unchecked] = []
    if record.envelope is None:
        unchecked.append(
            _unchecked_entry("receipt", 1, "the receipt is not signed: anyone who can write to it can change it")
        )
    elif key is None:
        unchecked.append(_unchecked_entry("receipt", 1, "the signature of the receipt: no public key was given"))
    later_count = count_events_after((statement,), logs)
    if later_count:
        text = f"{later_count:,} of its events were appended after the receipt"
        unchecked.append(_unchecked_entry("receipt", later_count, text))
    recorded_lock = statement.predicate.lock
    if recorded_lock is not None and (lock is None or recorded_lock.digest.sha256 != lock.hex()):
        message = "perstack.lock has changed since the receipt was written, or is gone"
        unchecked.append(_unchecked_entry("receipt", 1, message))
    return replace(
        report,
        findings=_with_findings(report, compare_with_receipt(statement, logs, "the receipt")),
        unchecked=(*report.unchecked, *unchecked),
        checked=replace(report.checked, heads=report.checked.heads + len(statement.subject)),
    )


def with_records(
    report: Report, source: str, records: Sequence[AnchorRecord], key: PublicKey | None, logs: dict[str, LogHashes]
) -> Report:
    """Return the report of an owner with the findings from anchored records added."""
    if report.kind == "store":
        raise ValueError("a store as a whole has no logs")
    owner = Owner(report.kind, report.job_id)
    valid_records, findings = trusted_records(owner, source, records, key)
    records_to_match = records_in_force(valid_records, owner, logs)
    for record in records_to_match:
        log_findings = compare_with_receipt(record.statement, logs, f"the anchor {source}")
        # only a Job has several logs: for others the Run's id is left out
        findings += log_findings if owner.kind == "job" else [replace(finding, run_id="") for finding in log_findings]
    unchecked: list[Unchecked] = []
    signed = sum(record.envelope is not None for record in records)
    if key is None and signed:
        message = f"signatures in the anchor: {signed:,}; no public key was given"
        unchecked.append(_unchecked_entry("anchor", signed, message))
    if ended_lives(records_to_match):
        message = f"the anchor {source} says that it was deleted: the deletion was cut short, or it was put back"
        unchecked.append(_unchecked_entry("anchor", 1, message))
    later_count = count_events_after([record.statement for record in records_to_match], logs)
    if later_count:
        message = f"{later_count:,} of its events are later than the last record in the anchor {source}"
        unchecked.append(_unchecked_entry("anchor", later_count, message))
    heads = report.checked.heads + sum(len(record.statement.subject) for record in records_to_match)
    return replace(
        report,
        findings=_with_findings(report, findings),
        unchecked=(*report.unchecked, *unchecked),
        checked=replace(report.checked, heads=heads),
    )


def trusted_records(
    owner: Owner, source: str, records: Sequence[AnchorRecord], key: PublicKey | None
) -> tuple[list[AnchorRecord], list[Finding]]:
    """Return the valid records, and a finding for each other one. With a key, a valid record is signed by it."""
    valid_records: list[AnchorRecord] = []
    findings: list[Finding] = []
    for number, record in enumerate(records, 1):
        problem = signature_problem(record, key)
        if problem is None:
            valid_records.append(record)
        else:
            place = f"record {number} of this {OWNER_KINDS[owner.kind].singular} in the anchor {source}"
            findings.append(Finding("", 0, f"{place} {problem}"))
    return valid_records, findings


def signature_problem(record: AnchorRecord, key: PublicKey | None) -> str | None:
    """Return what is wrong with a record's signature; None for a valid one, and without a key to check it."""
    if key is None:
        return None
    if record.envelope is None:
        return "is not signed: anybody may have written it"
    if not key.has_signed(record.envelope):
        return "is not signed by that key: it was changed, or another key has signed it"
    return None


def with_unchecked(report: Report, message: str) -> Report:
    """Return the report with a note that a part of the anchor could not be checked."""
    return replace(report, unchecked=(*report.unchecked, _unchecked_entry("anchor", 1, message)))


def _hash_lines(lines: Sequence[bytes]) -> LogHashes:
    hashes: list[str] = []
    head, first = EMPTY_LOG, ""
    for line in lines:
        try:
            sealed, head = check_line(head, line)
        except BrokenSeal:
            break
        first = first or sealed.digest
        hashes.append(head.hash)
    return LogHashes(hashes, first)


def _with_findings(report: Report, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(dict.fromkeys((*report.findings, *findings)))


def _unchecked_entry(kind: Literal["anchor", "receipt"], count: int, message: str) -> Unchecked:
    return Unchecked(kind, "", count, message)
