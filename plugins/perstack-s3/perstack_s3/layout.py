"""Layout of a store: keys, JSON objects as models, formats of appends; checks of its version and its server."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perstack.core.base.ids import check_id, check_job_id
from perstack.dataclass import dataclass
from perstack.errors import StorageError
from perstack.ports.storage import RunRef, StorageCheck
from perstack_s3.objects import Objects

# Objects below the prefix. `{space}` is `jobs` or the name of another namespace.
#
#     perstack.json                                     the version of this layout
#     {space}/markers/{job}                             the Job exists; names its incarnation
#     {space}/leases/{job}                              the Job's lease
#     {space}/summaries/{job}, {space}/entries/{job}    caches for lists
#     {space}/logs/{job}/{incarnation}/runs             ids of the Runs that have a log
#     {space}/logs/{job}/{incarnation}/{run}/a{n}       the n-th append, from 0
#     {space}/logs/{job}/{incarnation}/{run}/p{k}       appends 64k to 64k+63, merged
#     {space}/blobs/{job}/{incarnation}/{sha256}
#     {space}/deleting/{job}.{incarnation}              a deletion in progress
#     {space}/index/{entries|summaries}                 all objects of that kind in one: a cache of a cache
#
# A Job that is created again under a deleted Job's id has another incarnation, so it never sees the old objects.

GROUP_SIZE = 64  # appends per merged object

VERSION = "perstack.json"
PROBE = "perstack-probe"


@dataclass(frozen=True, slots=True)
class Layout:
    """Object keys of one namespace. Its methods raise UsageError for an invalid id."""

    space: str

    def prefix_of(self, kind: str) -> str:
        """Return the key prefix of all objects of a kind."""
        return f"{self.space}/{kind}/"

    def of_job(self, kind: str, job_id: str) -> str:
        """Return the key of a Job's only object of a kind."""
        return f"{self.space}/{kind}/{check_job_id(job_id)}"

    def of_incarnation(self, kind: str, job_id: str, incarnation: str) -> str:
        """Return the key prefix of an incarnation's objects of a kind."""
        return f"{self.space}/{kind}/{check_job_id(job_id)}/{incarnation}/"

    def blob(self, job_id: str, incarnation: str, sha256: str) -> str:
        return self.of_incarnation("blobs", job_id, incarnation) + check_id(sha256, "blob")

    def runs(self, job_id: str, incarnation: str) -> str:
        """Return the key of the list of a Job's Runs."""
        return self.of_incarnation("logs", job_id, incarnation) + "runs"

    def append(self, ref: RunRef, incarnation: str, number: int) -> str:
        """Return the key of an append, numbered from 0."""
        return f"{self.of_incarnation('logs', ref.job_id, incarnation)}{check_id(ref.run_id, 'run')}/a{number:010d}"

    def merged_key(self, ref: RunRef, incarnation: str, number: int) -> str:
        """Return the key of a merged object; `number` is the number of its first append divided by GROUP_SIZE."""
        return f"{self.of_incarnation('logs', ref.job_id, incarnation)}{check_id(ref.run_id, 'run')}/p{number:010d}"

    def deleting(self, job_id: str, incarnation: str) -> str:
        """Return the key of the object that records a deletion in progress."""
        return f"{self.space}/deleting/{check_job_id(job_id)}.{incarnation}"

    def index(self, kind: str) -> str:
        """Return the key of the object that combines all objects of a kind."""
        return f"{self.space}/index/{kind}"


_MAX_OBJECT_BYTES = 1_000_000

M = TypeVar("M", bound="Stored")


class Stored(BaseModel):
    """Base of the JSON objects."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    def to_bytes(self) -> bytes:
        """Return the object as one line of JSON."""
        return self.model_dump_json(exclude_none=True).encode()


class Marker(Stored):
    """Object whose existence makes a Job exist."""

    incarnation: str = Field(pattern="^[A-Za-z0-9_-]{1,64}$")
    made: int = 0


class RunList(Stored):
    """Run ids of a Job."""

    runs: tuple[str, ...] = Field(strict=False)
    nonce: str = ""


class LeaseState(Stored):
    """State of a Job's lease; an empty holder means that it is free."""

    holder: str = Field(max_length=4000)
    fence: int = Field(ge=0, le=1 << 53)
    nonce: str
    beat: str = ""
    unfenced: bool = False
    """True if a holder that lost the lease may still write; the next holder must fence the logs first."""


class EntryHeader(Stored):
    """Incarnation (`of`) of an index entry, and the sequence number that it describes."""

    of: str
    seq: int
    nonce: str = ""


class SummaryStamp(Stored):
    """Time at which a summary was written, in nanoseconds since 1970."""

    at: int


class AppendHeader(Stored):
    """First line of an append."""

    fence: int = 0
    writer: str
    records: int = 0
    end: bool = False


class MergedHeader(Stored):
    """First line of a merged object: the sizes of its appends in bytes."""

    sizes: tuple[int, ...] = Field(strict=False, min_length=GROUP_SIZE, max_length=GROUP_SIZE)


class Version(Stored):
    """Layout version of a store."""

    version: int


def read(model: type[M], data: bytes) -> M | None:
    """Parse a JSON object; None if it is invalid or too long."""
    if len(data) > _MAX_OBJECT_BYTES:
        return None
    try:
        return model.model_validate_json(data)
    except (ValidationError, RecursionError):
        return None


MAX_MERGED_BYTES = 8_000_000  # maximum bytes of a merged object; larger groups of appends are left unmerged


class NotAnAppend(ValueError):
    """Error for an object in a log that is not in this plugin's format."""


@dataclass(frozen=True, slots=True)
class Append:
    """Records of one append; none if it only fences the log, or marks its end before a deletion."""

    records: tuple[bytes, ...]
    is_end: bool = False


def append_bytes(records: Sequence[bytes], fence: int) -> bytes:
    """Encode an append with the fence of its lease (0 without one) and a random number that makes its bytes unique."""
    header = AppendHeader(fence=fence, writer=secrets.token_hex(8), records=len(records))
    return b"".join(line + b"\n" for line in (header.to_bytes(), *records))


def end_bytes() -> bytes:
    """Encode the object that takes the place of the next append when a Job is deleted."""
    return AppendHeader(writer=secrets.token_hex(8), end=True).to_bytes() + b"\n"


def read_append(data: bytes) -> Append:
    """Decode an append. Raises NotAnAppend."""
    first, _, body = data.partition(b"\n")
    header = read(AppendHeader, first)
    if header is None:
        raise NotAnAppend("it does not begin like an append")
    if header.end:
        return Append((), is_end=True)
    *records, rest = body.split(b"\n")
    if rest or len(records) != header.records:
        raise NotAnAppend("it does not have the records that its header lists")
    return Append(tuple(records))


def merge_appends(appends: Sequence[bytes]) -> bytes | None:
    """Merge GROUP_SIZE appends; None if too large. Equal appends give equal bytes, so writers may compete."""
    if sum(map(len, appends)) > MAX_MERGED_BYTES:
        return None
    return MergedHeader(sizes=tuple(map(len, appends))).to_bytes() + b"\n" + b"".join(appends)


def read_merged(data: bytes) -> list[bytes]:
    """Split a merged object into its appends. Raises NotAnAppend."""
    first, _, body = data.partition(b"\n")
    header = read(MergedHeader, first)
    if header is None or min(header.sizes) <= 0 or sum(header.sizes) != len(body):
        raise NotAnAppend("it does not have the appends that its header lists")
    appends: list[bytes] = []
    start = 0
    for size in header.sizes:
        appends.append(body[start : start + size])
        start += size
    return appends


_VERSION = 1


async def check_version(objects: Objects, *, is_for_writing: bool) -> None:
    """Check the layout, and before the first write also the server, unless that was done. Raises StorageError."""
    if objects.is_checked:
        return
    version_object = await objects.get(VERSION)
    if version_object is not None:
        version = read(Version, version_object.data)
        if version is None:
            raise StorageError(f"{objects.place}: {VERSION} cannot be read: was this store made by perstack?")
        if version.version != _VERSION:
            raise StorageError(
                f"{objects.place} was written by a newer perstack (layout {version.version}): upgrade perstack"
            )
        objects.is_checked = True
    elif is_for_writing:
        await check_conditional_writes(objects)
        await objects.create(VERSION, Version(version=_VERSION).to_bytes())
        objects.is_checked = True


async def check_conditional_writes(objects: Objects) -> None:
    """Raise StorageError unless the server refuses to overwrite an existing, or a changed, object."""
    key = f"{PROBE}/{secrets.token_hex(8)}"
    tag = await objects.create(key, b"one")
    try:
        if tag is None or await objects.create(key, b"two") is not None:
            raise _unfit_server_error(objects, "overwrites an object that should only be created if absent")
        if await objects.replace(key, b"two", tag) is None or await objects.replace(key, b"three", tag) is not None:
            raise _unfit_server_error(objects, "ignores the tag (ETag) that an object to be replaced must have")
    finally:
        await objects.remove([key])


def _unfit_server_error(objects: Objects, fault: str) -> StorageError:
    return StorageError(
        f"{objects.place}: this server {fault}: perstack needs conditional writes (If-None-Match, If-Match)"
    )


# minimum difference in seconds to the server's clock that is reported; events have this machine's time
_MAX_CLOCK_DIFFERENCE_S = 60.0


async def checks_of(objects: Objects) -> tuple[StorageCheck, ...]:
    """Check the server, the layout, the keys' rights, conditional writes and the clock, with a temporary object."""
    try:
        await check_version(objects, is_for_writing=False)
    except StorageError as error:
        return (StorageCheck("server", False, error.message),)
    state = "a store exists" if objects.is_checked else "no store yet"
    checks = [StorageCheck("server", True, f"{objects.place}, {state}")]
    key = f"{PROBE}/{secrets.token_hex(8)}"
    try:
        await objects.put(key, b"perstack")
        probe = await objects.head(key)
        await objects.remove([key])
    except StorageError as error:
        return (*checks, StorageCheck("rights", False, error.message, "allow Get-, Put-, DeleteObject and ListBucket"))
    checks.append(StorageCheck("rights", True, "the keys may write there"))
    try:
        await check_conditional_writes(objects)
    except StorageError as error:
        checks.append(StorageCheck("conditional writes", False, error.message))
    else:
        checks.append(StorageCheck("conditional writes", True, "the server honours them"))
    clock_difference = 0.0 if probe is None else probe.written.timestamp() - time.time()
    if abs(clock_difference) > _MAX_CLOCK_DIFFERENCE_S:
        text = f"{clock_difference:+.0f} s from this machine's"
        checks.append(StorageCheck("clock", False, text, "set this machine's clock with NTP"))
    return tuple(checks)
