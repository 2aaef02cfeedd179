"""Ids as people type them: whole, the beginning that only one has, or `@last`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perstack.core.owners import OwnerKind
from perstack.engine.pages import every_id, pages
from perstack.engine.spaces import space_of
from perstack.errors import NotFound, UsageError
from perstack.next_steps import Start
from perstack.ports.storage import Storage

_LAST = r"@last(?:~([0-9]{1,9}))?((?:-[0-9]+){0,2})"
_TYPED = r"[A-Za-z0-9_-]{1,160}"
_MOST_ID = 128
_SHOWN = 10
_MANY: dict[OwnerKind, str] = {
    "job": "Jobs",
    "task": "tasks",
    "iterations": "series of iterations",
    "schedule": "schedules",
}
_NONE: dict[OwnerKind, str] = {
    "job": "is no Job",
    "task": "is no task",
    "iterations": "are no iterations",
    "schedule": "is no schedule",
}


async def whole_id(storage: Storage, typed: str, kinds: Sequence[OwnerKind] = ("job",)) -> str:
    """The id that is meant, with what follows a Job's in the id of a Run, a checkpoint or a question.

    `@last` is what was written to last of the first of these kinds, `@last~1` the one before. What fits nothing is
    returned as it is, for whoever looks it up to say so. Raises UsageError that lists all that a beginning fits, and
    NotFound if there are not so many.
    """
    last = re.fullmatch(_LAST, typed)
    if last is not None:
        return await _nth(storage, int(last[1] or 0), kinds[0]) + last[2]
    if re.fullmatch(_TYPED, typed) is None:
        return typed
    heads = [head for head in (typed, *_heads(typed)) if len(head) <= _MOST_ID]
    for head in heads:
        for kind in kinds:
            if await space_of(storage, kind).has_job(head):
                return typed
    ids = [one for kind in kinds for one in await _ids(space_of(storage, kind))]
    for head in heads:
        found = [one for one in ids if one.startswith(head)]
        if len(found) == 1:
            return found[0] + typed[len(head) :]
        if found:
            raise _ambiguous(head, found)
    return typed


def _heads(typed: str) -> list[str]:
    """What it may be of, if it is the id of a Run, and if it is one of a checkpoint."""
    found: list[str] = []
    head = typed
    for _ in range(2):
        head, dash, number = head.rpartition("-")
        if not (dash and head and number.isdigit()):
            break
        found.append(head)
    return found


async def _ids(space: Storage) -> list[str]:
    return await every_id(lambda after: space.jobs(limit=1000, after=after))


def _ambiguous(typed: str, fitting: list[str]) -> UsageError:
    more = f" and {len(fitting) - _SHOWN} more" if len(fitting) > _SHOWN else ""
    every = ", ".join(sorted(fitting)[:_SHOWN])
    return UsageError(f"{typed} fits {every}{more}: type more of the one that you mean")


async def nth_job(storage: Storage, number: int) -> str:
    """The Job written to last, or the one that many before it, of those that have begun. Raises NotFound."""
    return await _nth(storage, number, "job")


async def _nth(storage: Storage, number: int, kind: OwnerKind) -> str:
    left, space = number, space_of(storage, kind)
    async for page in pages(lambda after: space.jobs(limit=20, after=after)):
        for one in page.ids:
            if (await space.runs(one, limit=1)).ids:
                if not left:
                    return one
                left -= 1
    raise not_so_many(kind, number - left, storage)


def last_typed(typed: str) -> int | None:
    """How many come after the one that is meant, in the order in which they were written to; None for an id."""
    last = re.fullmatch(_LAST, typed)
    return None if last is None or last[2] else int(last[1] or 0)


def not_so_many(kind: OwnerKind, number: int, storage: Storage) -> NotFound:
    """What is said of an `@last~N` where there are only so many."""
    if number:
        return NotFound(
            f"there are only {number} {_MANY[kind]} in {storage.location}: use a smaller number after @last~"
        )
    return NotFound(f"there {_NONE[kind]} yet in {storage.location}", next_steps=(Start(),) if kind == "job" else ())
