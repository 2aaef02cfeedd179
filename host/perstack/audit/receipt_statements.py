"""Receipts: the heads of a Job's logs at some time, to be stored where no writer of those logs has access.

A receipt is an in-toto Statement (version 1) of the predicate type `PREDICATE_TYPE`. Its subjects are the Job's Runs,
each with the hash of its last event, in hex, and in `annotations.seq` the number of its events. A log's hash covers all
events before it, so that any edit, cut or rewriting changes it. A signed statement is the payload of a DSSE envelope;
anchors store it too.

A task or a series of iterations has one log, which is the only subject of its receipt.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode, urlsafe_b64decode
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from pydantic import Field, ValidationError

from perstack.audit.verification_report import Finding
from perstack.core.base.ids import Owner, OwnerKind, event_id_of, run_id_of
from perstack.core.base.records import Record, falsy, first_problem
from perstack.dataclass import dataclass

# DSSE envelopes: what is signed, and their JSON. Source: https://github.com/secure-systems-lab/dsse, protocol and
# envelope of version 1.0.2. This module knows no keys.


class Signature(Record):
    """A signature over `pae` of an envelope's payload."""

    keyid: str = ""  # hint at the key that signed; not itself signed
    sig: str  # base64

    def value(self) -> bytes:
        """Return the decoded signature. Raises ValueError."""
        return _decode_base64(self.sig)


class Envelope(Record):
    """A payload with its type, and signatures over both."""

    payload: str  # base64
    payload_type: str
    signatures: tuple[Signature, ...] = Field(min_length=1)

    def body(self) -> bytes:
        """Return the decoded payload. Raises ValueError."""
        return _decode_base64(self.payload)

    def signed_bytes(self) -> bytes:
        """Return the bytes that the signatures cover. Raises ValueError."""
        return pae(self.payload_type, self.body())


def pae(payload_type: str, body: bytes) -> bytes:
    """Return the signed bytes (pre-authentication encoding), in which type and body cannot be confused."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(body), body)


def envelope_of(payload_type: str, body: bytes, keyid: str, signature: bytes) -> Envelope:
    """Return the envelope with one signature over `pae(payload_type, body)`."""
    signed = Signature(keyid=keyid, sig=b64encode(signature).decode())
    return Envelope(payload=b64encode(body).decode(), payload_type=payload_type, signatures=(signed,))


def _decode_base64(text: str) -> bytes:
    """Decode base64 in either alphabet, as the standard requires of readers."""
    try:
        return b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError("it is not base64") from error


PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "urn:perstack:receipt:v1"

MAX_RECEIPT_BYTES = 64 << 20


class Digest(Record):
    """A SHA-256 in hex."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Extent(Record):
    """The length of a log."""

    seq: int = Field(ge=1)


class LogSubject(Record):
    """A Run, with the hash and length of its log."""

    name: str = Field(pattern="^[A-Za-z0-9_-]{1,160}$")
    digest: Digest
    annotations: Extent


class Resource(Record):
    """A name with a digest."""

    name: str
    digest: Digest


class Receipt(Record):
    """The predicate: the owner of the logs, and the definitions under which they were written."""

    job_id: str  # id of the owner of the logs, of this `kind`
    kind: OwnerKind = Field(default="job", exclude_if=lambda kind: kind == "job")
    removed: bool = Field(default=False, exclude_if=falsy)  # True: removed by perstack, so these heads are final
    created_on: str
    runtime_version: str
    definitions: tuple[Resource, ...] = ()  # digest of each Run's first event, which has its definition, by event id
    lock: Resource | None = None
    store: Digest | None = None  # digest of the storage's location, as several may share an anchor; None in a receipt


class Statement(Record):
    """An in-toto Statement with a receipt."""

    statement_type: Literal["https://in-toto.io/Statement/v1"] = Field(default=STATEMENT_TYPE, alias="_type")
    subject: tuple[LogSubject, ...] = Field(min_length=1)
    predicate_type: Literal["urn:perstack:receipt:v1"] = PREDICATE_TYPE
    predicate: Receipt


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a Run's log, and the digest of its first event."""

    run_id: str
    seq: int
    hash: str  # unpadded base64url, as in the chain; so is `first`
    first: str


@dataclass(frozen=True, slots=True)
class LogHashes:
    """Hashes of a log, up to the first line that does not fit its chain."""

    hashes: Sequence[str]  # hashes of all positions, from the first
    first: str


@dataclass(frozen=True, slots=True)
class AnchorRecord:
    """A statement, with the envelope that contains it if there is one."""

    statement: Statement
    envelope: Envelope | None = None

    @property
    def owner(self) -> Owner:
        return Owner(self.statement.predicate.kind, self.statement.predicate.job_id)

    @property
    def life(self) -> str | None:
        """The digest, in hex, of the first log's first event, which tells reuses of an id apart; None if missing."""
        receipt = self.statement.predicate
        name = event_id_of(run_id_of(receipt.job_id, 1), 1)
        return next((definition.digest.sha256 for definition in receipt.definitions if definition.name == name), None)


def statement_of(
    owner: Owner,
    ends: Iterable[LogEnd],
    *,
    created_on: str,
    runtime_version: str,
    lock: bytes | None = None,
    store: bytes | None = None,
    removed: bool = False,
) -> Statement:
    """Return the statement over these logs; `lock`, `store`: SHA-256 of perstack.lock and of the storage's place."""
    all_ends = tuple(ends)
    return Statement(
        subject=tuple(
            LogSubject(name=end.run_id, digest=_hex_digest(end.hash), annotations=Extent(seq=end.seq))
            for end in all_ends
        ),
        predicate=Receipt(
            job_id=owner.id,
            kind=owner.kind,
            removed=removed,
            created_on=created_on,
            runtime_version=runtime_version,
            definitions=tuple(
                Resource(name=event_id_of(end.run_id, 1), digest=_hex_digest(end.first)) for end in all_ends
            ),
            lock=None if lock is None else Resource(name="perstack.lock", digest=Digest(sha256=lock.hex())),
            store=None if store is None else Digest(sha256=store.hex()),
        ),
    )


def read_record(data: bytes) -> AnchorRecord:
    """Return the statement, or the envelope with one. Raises ValueError if it is not a receipt of perstack."""
    if len(data) > MAX_RECEIPT_BYTES:
        raise ValueError(f"it has more than {MAX_RECEIPT_BYTES:,} bytes")
    try:
        envelope = Envelope.model_validate_json(data)
    except ValidationError:
        return AnchorRecord(_parse_statement(data))
    if envelope.payload_type != PAYLOAD_TYPE:
        raise ValueError(f"its payload is not {PAYLOAD_TYPE}")
    return AnchorRecord(_parse_statement(envelope.body()), envelope)


def records_in_force(
    records: Sequence[AnchorRecord], owner: Owner, logs: Mapping[str, LogHashes]
) -> list[AnchorRecord]:
    """Return the records that the owner's present logs must match, without those of an earlier owner of its id."""
    first = logs.get(run_id_of(owner.id, 1))
    current_life = None if first is None or not first.first else _hex_digest(first.first).sha256
    ended = ended_lives(records)
    return [record for record in records if record.life not in ended or record.life == current_life]


def ended_lives(records: Sequence[AnchorRecord]) -> frozenset[str]:
    """Return the lives of an owner that ended with a removal. Duplicate records are ignored."""
    removed_by_life: dict[str, bool] = {}
    seen = set[bytes]()
    for record in records:
        content = record.statement.to_json()
        if record.life is not None and content not in seen:
            removed_by_life[record.life] = record.statement.predicate.removed
        seen.add(content)
    return frozenset(life for life, removed in removed_by_life.items() if removed)


def compare_with_receipt(statement: Statement, logs: Mapping[str, LogHashes], source: str) -> list[Finding]:
    """Return the differences between the logs and a statement; `source` names its location."""
    findings: list[Finding] = []
    for subject in statement.subject:
        log = logs.get(subject.name)
        differences = _compare_with_subject(subject, () if log is None else log.hashes, source)
        findings += differences
        if log is not None and not differences:
            findings += _compare_with_definition(subject, statement.predicate, log, source)
    return findings


def count_events_after(statements: Iterable[Statement], logs: Mapping[str, LogHashes]) -> int:
    """Return the number of events, over all logs, after the last one that a statement covers."""
    covered: dict[str, int] = {}
    for statement in statements:
        for subject in statement.subject:
            covered[subject.name] = max(covered.get(subject.name, 0), subject.annotations.seq)
    return sum(max(0, len(log.hashes) - covered.get(run_id, 0)) for run_id, log in logs.items())


def _compare_with_subject(subject: LogSubject, hashes: Sequence[str], source: str) -> list[Finding]:
    run_id, seq = subject.name, subject.annotations.seq
    if seq > len(hashes):
        return [Finding(run_id, 0, f"the log ends at {len(hashes)}, but {source} says it had {seq} events")]
    if _hex_digest(hashes[seq - 1]) != subject.digest:
        return [Finding(run_id, seq, f"the log was rewritten: its hash differs from the one in {source}")]
    return []


def _compare_with_definition(subject: LogSubject, receipt: Receipt, log: LogHashes, source: str) -> list[Finding]:
    name = event_id_of(subject.name, 1)
    if any(
        definition.name == name and definition.digest != _hex_digest(log.first) for definition in receipt.definitions
    ):
        return [Finding(subject.name, 1, f"the definition differs from the one in {source}")]
    return []


def _parse_statement(data: bytes) -> Statement:
    try:
        return Statement.model_validate_json(data)
    except ValidationError as error:
        path, message = first_problem(error)
        raise ValueError(f"it is not a receipt of perstack: {f'{path}: ' if path else ''}{message}") from None


def _hex_digest(chain_hash: str) -> Digest:
    try:
        return Digest(sha256=urlsafe_b64decode(chain_hash + "=").hex())
    except binascii.Error as error:
        raise ValueError("it is not a hash of a chain") from error
