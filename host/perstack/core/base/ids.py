"""Ids, and how each says where it belongs.

A Run's id is its Job's with a number, `{jobId}-{n}`; a checkpoint's and an event's is its Run's with the number of the
event in the log, `{runId}-{seq}` (both from 1). So whatever has an id is found without a scan. A Job's id is the user's
own (`--job-id`), or 12 characters of a ULID: nine of its time, which
sort, and three of its chance; a storage refuses one that is taken, and the host takes another.

Two processes that drive Runs of one Job never give one number twice: who drives a delegate's Run apart from its Job has
a block of numbers of its own, those that begin with that Run's number; and the Job has those below the first block.
"""

from __future__ import annotations

import re

from perstack.errors import UsageError
from perstack.next_steps import Look

BLOCK = 10_000
"""So many numbers has a block, less one."""
OWN = range(1, 2 * BLOCK)
"""The numbers of the Runs that a Job's own driver decides on, once others drive some."""
_LAST = (1 << 63) - 1
"""Storages sort by these numbers, in 63 bits."""

_LEGAL = re.compile(r"[A-Za-z0-9_-]+")
_MAX_JOB_ID = 128
_MAX_DERIVED_ID = 160


def check_job_id(job_id: str) -> str:
    """The id itself. Raises UsageError if it could be a path, is empty, or is longer than 128."""
    return _check(job_id, "job", _MAX_JOB_ID)


def check_id(value: str, what: str) -> str:
    """The id of a Run, checkpoint or event, if it is one; `what` names it in the error."""
    return _check(value, what, _MAX_DERIVED_ID)


def job_id_of(ulid: str) -> str:
    """The short form of a ULID that Jobs are called by."""
    return ulid[1:13].lower()


def run_id_of(job_id: str, number: int) -> str:
    """The id of a Job's n-th Run."""
    return f"{job_id}-{number}"


def event_id_of(run_id: str, seq: int) -> str:
    """The id of the event, and of the checkpoint, at place `seq` of a Run's log."""
    return f"{run_id}-{seq}"


def job_of_run(run_id: str) -> str:
    """The Job that a Run belongs to. Raises UsageError if it is not a Run's id of ours."""
    return _split(run_id, "run")[0]


def place_of(checkpoint_id: str, what: str = "checkpoint") -> tuple[str, str, int]:
    """Job id, Run id and place in the log of a checkpoint, or of `what` the id is of."""
    run_id, seq = _split(checkpoint_id, what)
    return _split(run_id, what)[0], run_id, seq


def is_place(checkpoint_id: str) -> bool:
    """Whether a checkpoint's id says its Run and its place; those of other programs do not."""
    run_id, separator, seq = checkpoint_id.rpartition("-")
    return bool(separator) and seq.isdigit() and number_of_run(run_id) > 0


def number_of_run(run_id: str) -> int:
    """Which Run of its Job this is; 0 for an id that bears no number, as those of other programs."""
    head, separator, tail = check_id(run_id, "run").rpartition("-")
    return int(tail) if separator and head and tail.isdigit() else 0


def block_of(number: int) -> range:
    """The numbers that the driver of a Run gives to those below it; Run 0 stands for the Job."""
    return range(number * BLOCK + 1, (number + 1) * BLOCK) if number else OWN


def may_be_elsewhere(run_id: str) -> bool:
    """Whether a Run may have a driver of its own: there is a block for it, and its id may name a lease."""
    number = number_of_run(run_id)
    return number > 1 and (number + 1) * BLOCK <= _LAST and len(run_id) <= _MAX_JOB_ID


def _check(value: str, what: str, longest: int) -> str:
    if not _LEGAL.fullmatch(value) or len(value) > longest:
        shown = value if len(value) <= 40 else value[:37] + "…"
        raise UsageError(f"{shown!r} is not a valid {what} id: use 1 to {longest} of the characters A-Z a-z 0-9 _ -")
    return value


def _split(value: str, what: str) -> tuple[str, int]:
    check_id(value, what)
    head, separator, tail = value.rpartition("-")
    if not separator or not head or not tail.isdigit():
        raise UsageError(f"{value!r} is not the id of {_a(what)} of this host", next_steps=(Look("log"),))
    return head, int(tail)


def _a(what: str) -> str:
    return f"an {what}" if what[:1] in "aeiou" else f"a {what}"
