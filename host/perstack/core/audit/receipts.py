"""Receipts: what the logs of a Job ended with at some moment, to be kept where no writer of those logs can reach.

A receipt is an in-toto Statement (version 1) of the predicate type `PREDICATE_TYPE`. Its subjects are the Job's Runs:
each with the hash of its last event, in hex, and in `annotations.seq` with how many events its log had. A hash of a log
is made of all that precedes it, so that no edit, cut or rewriting of those events leaves it as it was. Signed, the
statement is the payload of a DSSE envelope; what is anchored is the same.

A task and a series of iterations have one log each, which is the one subject of a record of theirs.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from pydantic import Field, ValidationError

from perstack.core.base import Fact, falsy
from perstack.core.dsse import Envelope
from perstack.core.ids import event_id_of, run_id_of
from perstack.core.owners import Owner, OwnerKind
from perstack.core.verification import Finding
from perstack.dataclass import dataclass

PAYLOAD_TYPE = "application/vnd.in-toto+json"
"""What the payload of an envelope is."""
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "urn:perstack:receipt:v1"

MOST_BYTES = 64 << 20
"""A receipt that is longer is not read."""


class Digest(Fact):
    """A SHA-256 in hex."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Extent(Fact):
    """How far a log went."""

    seq: int = Field(ge=1)


class Subject(Fact):
    """A Run, and where its log ended."""

    name: str = Field(pattern="^[A-Za-z0-9_-]{1,160}$")
    digest: Digest
    annotations: Extent


class Resource(Fact):
    """Something that has a name and a digest."""

    name: str
    digest: Digest


class Receipt(Fact):
    """The predicate: what the heads are of, and under which definitions they came about."""

    job_id: str
    """The id of what the logs are of."""
    kind: OwnerKind = Field(default="job", exclude_if=lambda kind: kind == "job")
    removed: bool = Field(default=False, exclude_if=falsy)
    """Whether perstack removed them then: these were the last heads."""
    created_on: str
    """The instant, RFC 3339."""
    runtime_version: str
    """Of the perstack that wrote the receipt."""
    definitions: tuple[Resource, ...] = ()
    """Of each Run the event that holds the definition it was started with, by its id."""
    lock: Resource | None = None
    """perstack.lock, if there was one: the digest of the file."""
    store: Digest | None = None
    """Of the place of the storage, so that several may send to one anchor. A receipt has none."""


class Statement(Fact):
    """An in-toto Statement of our predicate type."""

    statement_type: Literal["https://in-toto.io/Statement/v1"] = Field(default=STATEMENT_TYPE, alias="_type")
    subject: tuple[Subject, ...] = Field(min_length=1)
    predicate_type: Literal["urn:perstack:receipt:v1"] = PREDICATE_TYPE
    predicate: Receipt


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where the log of a Run ends, and what it begins with."""

    run_id: str
    seq: int
    hash: str
    """Of the last event, as the chain has it: unpadded base64url."""
    first: str
    """The digest of the first event, in the same form."""


@dataclass(frozen=True, slots=True)
class LogPlaces:
    """A log as it is now, as far as its chain holds."""

    hashes: Sequence[str]
    """At each place, from the first."""
    first: str
    """The digest of the first event."""


@dataclass(frozen=True, slots=True)
class Record:
    """A statement as it was found: alone, or with the envelope that it is the payload of."""

    statement: Statement
    envelope: Envelope | None = None

    @property
    def owner(self) -> Owner:
        """Whose logs it is about."""
        return Owner(self.statement.predicate.kind, self.statement.predicate.job_id)

    @property
    def life(self) -> str | None:
        """The digest, in hex, of the first event of the first log: another one that is made anew under the same id has
        another. None if it is not said."""
        receipt = self.statement.predicate
        name = event_id_of(run_id_of(receipt.job_id, 1), 1)
        return next((one.digest.sha256 for one in receipt.definitions if one.name == name), None)


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
    """The statement over these logs. `lock` is the SHA-256 of perstack.lock, `store` that of the storage's place."""
    taken = tuple(ends)
    return Statement(
        subject=tuple(
            Subject(name=end.run_id, digest=_digest(end.hash), annotations=Extent(seq=end.seq)) for end in taken
        ),
        predicate=Receipt(
            job_id=owner.id,
            kind=owner.kind,
            removed=removed,
            created_on=created_on,
            runtime_version=runtime_version,
            definitions=tuple(Resource(name=event_id_of(end.run_id, 1), digest=_digest(end.first)) for end in taken),
            lock=None if lock is None else Resource(name="perstack.lock", digest=Digest(sha256=lock.hex())),
            store=None if store is None else Digest(sha256=store.hex()),
        ),
    )


def read_record(data: bytes) -> Record:
    """A statement, or an envelope with one in it. Raises ValueError if it is neither, or not a receipt of ours."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    try:
        envelope = Envelope.model_validate_json(data)
    except ValidationError:
        return Record(_statement_in(data))
    if envelope.payload_type != PAYLOAD_TYPE:
        raise ValueError(f"its payload is not {PAYLOAD_TYPE}")
    return Record(_statement_in(envelope.body()), envelope)


def left_in_force(records: Sequence[Record], owner: Owner, logs: Mapping[str, LogPlaces]) -> list[Record]:
    """Those of an anchor that the logs of their owner have to agree with, as those are now.

    Not those of an earlier one of the same id, whose removal was sent to the anchor.
    """
    first = logs.get(run_id_of(owner.id, 1))
    now = None if first is None or not first.first else _digest(first.first).sha256
    gone = removed_lives(records)
    return [one for one in records if one.life not in gone or one.life == now]


def removed_lives(records: Sequence[Record]) -> frozenset[str]:
    """The lives, of one owner, that end with a removal. A record that comes a second time says nothing anew."""
    last: dict[str, bool] = {}
    known = set[bytes]()
    for record in records:
        written = record.statement.to_json()
        if record.life is not None and written not in known:
            last[record.life] = record.statement.predicate.removed
        known.add(written)
    return frozenset(life for life, removed in last.items() if removed)


def against_receipt(statement: Statement, logs: Mapping[str, LogPlaces], source: str) -> list[Finding]:
    """What in these logs is not as it was when the statement was made; `source` says where that was kept."""
    findings: list[Finding] = []
    for subject in statement.subject:
        places = logs.get(subject.name)
        found = _against_subject(subject, () if places is None else places.hashes, source)
        findings += found
        if places is not None and not found:
            findings += _against_definition(subject, statement.predicate, places, source)
    return findings


def events_after(statements: Iterable[Statement], logs: Mapping[str, LogPlaces]) -> int:
    """How many events none of the statements vouches for: those that were appended since."""
    known: dict[str, int] = {}
    for statement in statements:
        for subject in statement.subject:
            known[subject.name] = max(known.get(subject.name, 0), subject.annotations.seq)
    return sum(max(0, len(places.hashes) - known.get(run_id, 0)) for run_id, places in logs.items())


def _against_subject(subject: Subject, hashes: Sequence[str], source: str) -> list[Finding]:
    run_id, seq = subject.name, subject.annotations.seq
    if seq > len(hashes):
        return [Finding(run_id, 0, f"the log ends at {len(hashes)}, but {source} says it had {seq} events")]
    if _digest(hashes[seq - 1]) != subject.digest:
        return [Finding(run_id, seq, f"the log was rewritten: its hash differs from the one in {source}")]
    return []


def _against_definition(subject: Subject, receipt: Receipt, places: LogPlaces, source: str) -> list[Finding]:
    name = event_id_of(subject.name, 1)
    if any(one.name == name and one.digest != _digest(places.first) for one in receipt.definitions):
        return [Finding(subject.name, 1, f"the definition differs from the one in {source}")]
    return []


def _statement_in(data: bytes) -> Statement:
    try:
        return Statement.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"it is not a receipt of perstack: {f'{place}: ' if place else ''}{first['msg']}") from None


def _digest(chained: str) -> Digest:
    """A hash of the chain as a digest of a statement."""
    try:
        return Digest(sha256=urlsafe_b64decode(chained + "=").hex())
    except binascii.Error as error:
        raise ValueError("it is not a hash of a chain") from error
