"""Ids as people type them: complete, an unambiguous prefix, or `@last`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perstack.core.base.ids import OwnerKind
from perstack.engine.log.event_log import job_ids
from perstack.engine.log.storage_access import OWNER_KINDS, space_of
from perstack.errors import NotFound, UsageError
from perstack.next_steps import Start
from perstack.ports.storage import Storage
from perstack.support.storage import pages

_LAST_PATTERN = r"@last(?:~([0-9]{1,9}))?((?:-[0-9]+){0,2})"
_ID_PATTERN = r"[A-Za-z0-9_-]{1,160}"
_MAX_ID_CHARACTERS = 128
_MAX_MATCHES_SHOWN = 10


async def resolve_id(storage: Storage, typed_id: str, kinds: Sequence[OwnerKind] = ("job",)) -> str:
    """Return the complete id for `typed_id`; the suffix of a Run, checkpoint or question is kept.

    `@last` is the most recently written owner of the first kind, `@last~1` the one before. An unknown id is returned
    unchanged. Raises UsageError for an ambiguous prefix, and NotFound for too large a number.
    """
    match = re.fullmatch(_LAST_PATTERN, typed_id)
    if match is not None:
        return await _nth_latest(storage, int(match[1] or 0), kinds[0]) + match[2]
    if re.fullmatch(_ID_PATTERN, typed_id) is None:
        return typed_id
    heads = [head for head in (typed_id, *_possible_job_ids(typed_id)) if len(head) <= _MAX_ID_CHARACTERS]
    for head in heads:
        for kind in kinds:
            if await space_of(storage, kind).has_job(head):
                return typed_id
    ids = [owner_id for kind in kinds for owner_id in await job_ids(space_of(storage, kind))]
    for head in heads:
        matches = [owner_id for owner_id in ids if owner_id.startswith(head)]
        if len(matches) == 1:
            return matches[0] + typed_id[len(head) :]
        if matches:
            raise _ambiguous_id_error(head, matches)
    return typed_id


def _possible_job_ids(typed_id: str) -> list[str]:
    """Return the typed id without its last numbers, in case these are a Run's and an event's."""
    candidates: list[str] = []
    head = typed_id
    for _ in range(2):
        head, dash, number = head.rpartition("-")
        if not (dash and head and number.isdigit()):
            break
        candidates.append(head)
    return candidates


def _ambiguous_id_error(typed_id: str, matches: list[str]) -> UsageError:
    more = f" and {len(matches) - _MAX_MATCHES_SHOWN} more" if len(matches) > _MAX_MATCHES_SHOWN else ""
    shown_ids = ", ".join(sorted(matches)[:_MAX_MATCHES_SHOWN])
    return UsageError(f"{typed_id} matches {shown_ids}{more}: type more characters of the id")


async def nth_latest_job(storage: Storage, number: int) -> str:
    """Return the begun Job that was written to last, or `number` places earlier. Raises NotFound."""
    return await _nth_latest(storage, number, "job")


async def _nth_latest(storage: Storage, number: int, kind: OwnerKind) -> str:
    remaining, space = number, space_of(storage, kind)
    async for page in pages(lambda after: space.jobs(limit=20, after=after)):
        for owner_id in page.ids:
            if (await space.runs(owner_id, limit=1)).ids:
                if not remaining:
                    return owner_id
                remaining -= 1
    raise too_few_error(kind, number - remaining, storage)


def position_from_last(typed_id: str) -> int | None:
    """Return the number in `@last~N`, 0 for `@last`; None for an id."""
    match = re.fullmatch(_LAST_PATTERN, typed_id)
    return None if match is None or match[2] else int(match[1] or 0)


def too_few_error(kind: OwnerKind, number: int, storage: Storage) -> NotFound:
    """Return the error for `@last~N` if only `number` owners of the kind exist."""
    info = OWNER_KINDS[kind]
    if number:
        return NotFound(
            f"there are only {number} {info.plural} in {storage.location}: use a smaller number after @last~"
        )
    return NotFound(f"there {info.none} yet in {storage.location}", next_steps=(Start(),) if kind == "job" else ())
