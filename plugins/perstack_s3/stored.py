"""The small JSON objects of a store, as models."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perstack_s3.layout import MERGED

_LONGEST = 1_000_000

M = TypeVar("M", bound="Stored")


class Stored(BaseModel):
    """What all have in common."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    def to_bytes(self) -> bytes:
        """The object, in one line."""
        return self.model_dump_json(exclude_none=True).encode()


class Marker(Stored):
    """That a Job is there."""

    incarnation: str = Field(pattern="^[A-Za-z0-9_-]{1,64}$")
    made: int = 0


class RunList(Stored):
    """The Runs of a Job."""

    runs: tuple[str, ...] = Field(strict=False)
    nonce: str = ""


class LeaseState(Stored):
    """Who drives a Job; nobody, if the holder is empty."""

    holder: str = Field(max_length=4000)
    fence: int = Field(ge=0, le=1 << 53)
    nonce: str
    beat: str = ""
    unfenced: bool = False
    """Whether one that lost it may still write: whoever has it next fences the logs first."""


class EntryHeader(Stored):
    """What an entry is of, and the place in the log that it tells of."""

    of: str
    seq: int
    nonce: str = ""


class Stamp(Stored):
    """When a summary was written, in nanoseconds."""

    at: int


class AppendHeader(Stored):
    """The first line of an append."""

    fence: int = 0
    writer: str
    records: int = 0
    end: bool = False


class MergedHeader(Stored):
    """The first line of many appends in one object."""

    sizes: tuple[int, ...] = Field(strict=False, min_length=MERGED, max_length=MERGED)


class Version(Stored):
    """Which layout a store has."""

    version: int


def read(model: type[M], data: bytes) -> M | None:
    """What the bytes say; None if they are not valid."""
    if len(data) > _LONGEST:
        return None
    try:
        return model.model_validate_json(data)
    except (ValidationError, RecursionError):
        return None
