"""Anchors: files, addresses and programs that receive log heads, out of reach of the processes that write the logs.

A record is one line of JSON in the format of `receipt_statements`. It may arrive twice, because a sender cannot know
whether a record that failed arrived. Only file anchors are read again.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import BinaryIO, Protocol

from perstack.audit.receipt_statements import MAX_RECEIPT_BYTES, AnchorRecord, read_record
from perstack.core.base.ids import Owner, check_job_id
from perstack.core.definitions.keys import anchor_problem
from perstack.dataclass import dataclass
from perstack.errors import PerstackError, SkillError, UsageError
from perstack.iterations.programs import run_program
from perstack.ports.environment import inherit_variables
from perstack.system.concurrency import in_daemon_thread
from perstack.system.files import sync

_MAX_FILE_BYTES = 256 << 20  # maximum bytes of a file; a larger one raises OSError

_FILE_SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class FileAnchor:
    """A file, or a folder with a file for each owner, that writers of the logs can at most append to."""

    path: str

    @property
    def name(self) -> str:
        """The path."""
        return f"file:{self.path}"

    async def send(self, job_id: str, record: bytes) -> None:
        """Append a record; it survives power loss when this returns. Raises OSError."""
        await in_daemon_thread(lambda: self._append(job_id, record), "anchor")

    @property
    def is_folder(self) -> bool:
        """True if each owner has a separate file."""
        return self.path.endswith("/") or Path(self.path).is_dir()

    def file_of(self, job_id: str) -> Path:
        """Return the file for the records of an owner."""
        return Path(self.path) / f"{job_id}{_FILE_SUFFIX}" if self.is_folder else Path(self.path)

    def _append(self, job_id: str, record: bytes) -> None:
        path = self.file_of(job_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        # O_NONBLOCK: opening a pipe without a reader fails instead of blocking
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            _check_file(fd)
            # start with a newline: an earlier write that failed may have left half a line
            data = b"\n%b\n" % record if os.fstat(fd).st_size else b"%b\n" % record
            while data:
                data = data[os.write(fd, data) :]
            sync(fd)
        finally:
            os.close(fd)


@dataclass(slots=True)
class _RecordLines:
    """The lines of a file that are records, unparsed, because parsed records take many times the memory."""

    lines_by_owner: dict[Owner, list[bytes]] = field(default_factory=dict[Owner, list[bytes]])
    invalid_count: int = 0  # lines that are not records

    def records_of(self, owner: Owner) -> tuple[list[AnchorRecord], int]:
        return [read_record(line) for line in self.lines_by_owner.get(owner, ())], self.invalid_count


class AnchorReader:
    """Reader of a file anchor. After `load` the file is not read again; `owners` reads each file of a folder once."""

    def __init__(self, anchor: FileAnchor) -> None:
        self._anchor = anchor
        self._whole_file: _RecordLines | None = None
        self._owners_by_file: dict[Path, frozenset[Owner]] = {}

    async def load(self) -> None:
        """Read the whole file, for queries about many owners; do nothing for a folder. Raises OSError."""
        await in_daemon_thread(self._load_whole_file, "anchor")

    async def records(self, owner: Owner) -> tuple[list[AnchorRecord], int]:
        """Return an owner's records in order, and the number of invalid lines; empty without a file. Raises OSError."""
        return await in_daemon_thread(lambda: self._read_lines(owner).records_of(owner), "anchor")

    async def owners(self) -> frozenset[Owner]:
        """Return all owners with records. Raises OSError."""
        return await in_daemon_thread(self._read_owners, "anchor")

    def _load_whole_file(self) -> None:
        if self._whole_file is None and not self._anchor.is_folder:
            self._whole_file = _read_records(Path(self._anchor.path))

    def _read_lines(self, owner: Owner) -> _RecordLines:
        if self._whole_file is not None:
            return self._whole_file
        path = self._anchor.file_of(owner.id)
        return self._read_in_folder(path) if self._anchor.is_folder else _read_records(path, owner)

    def _read_owners(self) -> frozenset[Owner]:
        self._load_whole_file()
        if self._whole_file is not None:
            return frozenset(self._whole_file.lines_by_owner)
        folder = Path(self._anchor.path)
        for path in sorted(folder.glob(f"*{_FILE_SUFFIX}")) if folder.exists() else ():
            if path not in self._owners_by_file:
                self._read_in_folder(path)
        return frozenset[Owner]().union(*self._owners_by_file.values())

    def _read_in_folder(self, path: Path) -> _RecordLines:
        lines = _read_records(path)
        # each owner has a separate file in a folder: ignore records of others, which somebody has put there
        owners_of_file = (owner for owner in lines.lines_by_owner if self._anchor.file_of(owner.id) == path)
        self._owners_by_file[path] = frozenset(owners_of_file)
        return lines


def _read_records(path: Path, only_owner: Owner | None = None) -> _RecordLines:
    """Read the records in a file, of one owner or of all; empty if there is no file. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return _RecordLines()
    records = _RecordLines()
    with os.fdopen(fd, "rb") as file:
        _check_file(fd)
        if os.fstat(fd).st_size > _MAX_FILE_BYTES:
            raise OSError(
                errno.EFBIG, f"it has more than {_MAX_FILE_BYTES:,} bytes: name a folder, which has a file for each Job"
            )
        for line in _split_lines(file):
            try:
                owner = read_record(line).owner
                check_job_id(owner.id)
            except (ValueError, UsageError):
                records.invalid_count += 1
                continue
            if only_owner in (None, owner):
                records.lines_by_owner.setdefault(owner, []).append(line)
    return records


def _check_file(fd: int) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def _split_lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(MAX_RECEIPT_BYTES + 1):
        if line.strip():
            yield line.strip()


TIMEOUT_S = 10  # timeout for sending records at a stop, and for reading the records of one owner


class AnchorError(PerstackError):
    """Raised if an anchor cannot be reached, or rejects a record."""


class Anchor(Protocol):
    """A target for records."""

    @property
    def name(self) -> str:
        """The name in messages."""
        ...

    async def send(self, job_id: str, record: bytes) -> None:
        """Send one record, which contains no newline. Raises AnchorError or OSError. The caller sets the timeout."""
        ...


@dataclass(frozen=True, slots=True)
class HttpsAnchor:
    """An address to which records are posted."""

    url: str

    @property
    def name(self) -> str:
        """The address without its query, which may contain a secret."""
        return self.url.partition("?")[0]

    async def send(self, job_id: str, record: bytes) -> None:
        """Post a record. Any status but 2xx is an error; redirects are not followed."""
        import httpx

        try:
            async with (
                httpx.AsyncClient(timeout=TIMEOUT_S) as client,
                client.stream(
                    "POST", self.url, content=record, headers={"content-type": "application/json"}
                ) as response,
            ):
                if not response.is_success:
                    raise AnchorError(f"it answered with HTTP {response.status_code}")
        except httpx.HTTPError as error:
            raise AnchorError(f"it cannot be reached: {str(error) or type(error).__name__}") from error


@dataclass(frozen=True, slots=True)
class ProgramAnchor:
    """A program that is run for each record."""

    argv: tuple[str, ...]
    directory: Path
    env: Mapping[str, str]

    @property
    def name(self) -> str:
        """The command without its arguments, which may contain a secret."""
        return f"program `{self.argv[0]}`"

    async def send(self, job_id: str, record: bytes) -> None:
        """Run the program with a reduced environment. Any exit status but 0 is an error."""
        env = inherit_variables(self.env) | {"PERSTACK_JOB_ID": job_id}
        try:
            result = await run_program("it", self.argv, self.directory, env, TIMEOUT_S * 1000, record + b"\n")
        except SkillError as error:
            raise AnchorError(str(error)) from error
        if result.status:
            error_suffix = result.last_error_line and f": {result.last_error_line}"
            raise AnchorError(f"it ended with exit status {result.status}{error_suffix}")


def anchor_of(setting: str | tuple[str, ...], directory: Path, env: Mapping[str, str]) -> Anchor:
    """Return the anchor that `[audit] anchor` names; a program is run in `directory`. Raises UsageError."""
    problem = anchor_problem(setting)
    if problem is not None:
        raise UsageError(f"[audit] anchor {problem}")
    if not isinstance(setting, str):
        return ProgramAnchor(setting, directory, env)
    if setting.startswith("file:"):
        return FileAnchor(setting.removeprefix("file:"))
    return HttpsAnchor(setting)


def reason_of(error: Exception, seconds: int = TIMEOUT_S) -> str:
    """Return why an anchor failed, as text; `seconds` is the timeout that applied."""
    if isinstance(error, TimeoutError):
        return f"it did not answer within {seconds} s"
    reason = error.strerror if isinstance(error, OSError) else None
    return reason or str(error) or type(error).__name__
