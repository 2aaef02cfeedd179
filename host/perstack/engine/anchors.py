"""Anchors: places out of reach of who writes the logs, which are given the heads of each Job.

    file:PATH        a file, or one for each Job in a folder; appended to, and read again by `verify`
    https://…        each record is posted
    [program, …]     each record is a line on its stdin

A record is one line of JSON: what `core.receipts` reads. It may come twice: who sends does not know what arrived of a
record that failed. An address and a program are not asked what they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from perstack.core.owners import Owner
from perstack.core.receipts import Record
from perstack.core.rules import wrong_anchor
from perstack.dataclass import dataclass
from perstack.engine.anchor_files import FileAnchor
from perstack.engine.programs import ask_program
from perstack.errors import PerstackError, SkillError, UsageError
from perstack.ports.processes.environment import inherited

SECONDS = 10
"""How long an anchor is waited for: at a stop, and to be read for one Job."""


class AnchorError(PerstackError):
    """An anchor could not be reached, or did not take a record."""


class Anchor(Protocol):
    """A place to send records to."""

    @property
    def name(self) -> str:
        """What it is called in messages."""
        ...

    async def send(self, job_id: str, record: bytes) -> None:
        """Hand over one record, which has no newline. Raises AnchorError or OSError. Its time is for the caller to
        bound."""
        ...


@runtime_checkable
class ReadableAnchor(Anchor, Protocol):
    """An anchor that can be read again."""

    async def records(self, owner: Owner) -> tuple[list[Record], int]:
        """The records of a Job, a task or a series, in the order they came, and how many lines are none. Raises
        OSError."""
        ...

    async def contents(self) -> Contents:
        """All that it has, to be asked for one after the other. Raises OSError."""
        ...


class Contents(Protocol):
    """What an anchor has."""

    async def records(self, owner: Owner) -> tuple[list[Record], int]:
        """As of the anchor. Raises OSError."""
        ...

    async def owners(self) -> frozenset[Owner]:
        """All that it has records of. Raises OSError."""
        ...


@dataclass(frozen=True, slots=True)
class HttpsAnchor:
    """An address that records are posted to."""

    url: str

    @property
    def name(self) -> str:
        """The address, without its query, which may hold a secret."""
        return self.url.partition("?")[0]

    async def send(self, job_id: str, record: bytes) -> None:
        """Post it. Any answer but 2xx is a refusal; redirects are not followed."""
        import httpx

        try:
            async with (
                httpx.AsyncClient(timeout=SECONDS) as client,
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
    """A program that is given each record."""

    argv: tuple[str, ...]
    directory: Path
    env: Mapping[str, str]

    @property
    def name(self) -> str:
        """The command without its arguments, which may hold a secret."""
        return f"program `{self.argv[0]}`"

    async def send(self, job_id: str, record: bytes) -> None:
        """Run it, with few variables of the environment. Any exit status but 0 is a refusal."""
        env = inherited(self.env) | {"PERSTACK_JOB_ID": job_id}
        try:
            said = await ask_program("it", self.argv, self.directory, env, SECONDS * 1000, record + b"\n")
        except SkillError as error:
            raise AnchorError(str(error)) from error
        if said.status:
            words = said.last_words and f": {said.last_words}"
            raise AnchorError(f"it ended with exit status {said.status}{words}")


def anchor_of(setting: str | tuple[str, ...], directory: Path, env: Mapping[str, str]) -> Anchor:
    """The anchor that `[audit] anchor` names; a program is run in `directory`. Raises UsageError."""
    problem = wrong_anchor(setting)
    if problem is not None:
        raise UsageError(f"[audit] anchor {problem}")
    if not isinstance(setting, str):
        return ProgramAnchor(setting, directory, env)
    if setting.startswith("file:"):
        return FileAnchor(setting.removeprefix("file:"))
    return HttpsAnchor(setting)


def reason_of(error: Exception, seconds: int = SECONDS) -> str:
    """Why an anchor failed, in words; `seconds` is how long it was waited for."""
    if isinstance(error, TimeoutError):
        return f"it did not answer within {seconds} s"
    reason = error.strerror if isinstance(error, OSError) else None
    return reason or str(error) or type(error).__name__
