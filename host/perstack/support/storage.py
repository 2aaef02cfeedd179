"""For storages: ids in the order that the port promises, by pages; names of spaces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from perstack.core.ids import check_id, number_of_run, place_of
from perstack.errors import UsageError
from perstack.ports.storage import Page

Order = tuple[int, int, str]

_NO_TIME = 1 << 63


def check_space(name: str) -> str:
    """The name of a space, if it may be one. Raises UsageError."""
    if not re.fullmatch("[a-z]{1,20}", name) or name == "jobs":
        raise UsageError(f"{name!r} is not a name of a space: use up to 20 of a-z, and not `jobs`")
    return name


def run_order(run_id: str) -> Order:
    """By number. Ids that have none, those of other programs, come first."""
    return number_of_run(run_id), 0, run_id


def checkpoint_order(checkpoint_id: str) -> Order:
    """By the Run's number and the place in its log. Ids that have none come first."""
    try:
        _, run_id, seq = place_of(checkpoint_id)
    except UsageError:
        return 0, 0, checkpoint_id
    return number_of_run(run_id), seq, run_id


def is_id(name: str) -> bool:
    """Whether a name can be an id."""
    try:
        check_id(name, "listed")
    except UsageError:
        return False
    return True


def page_of(ids: Iterable[str], order: Callable[[str], Order], limit: int, after: str | None) -> Page:
    """One page; the cursor is the last id of the page before, which need not exist any more.

    Names that are no ids are somebody else's, and left out.
    """
    ordered = sorted((one for one in ids if is_id(one)), key=order)
    if after is not None:
        last = order(after)
        ordered = [one for one in ordered if order(one) > last]
    return Page(tuple(ordered[:limit]), ordered[limit - 1] if len(ordered) > limit else None)


def newest_first(jobs: Iterable[tuple[int, str]], limit: int, after: str | None) -> Page:
    """A page of Jobs, given each with the time (or count) of its last writing."""
    ordered = sorted(jobs, reverse=True)
    if after is not None:
        cursor = place_in_jobs(after)
        ordered = [one for one in ordered if one < cursor]
    page = ordered[:limit]
    more = f"{page[-1][0]}:{page[-1][1]}" if page and len(ordered) > limit else None
    return Page(tuple(name for _, name in page), more)


def place_in_jobs(cursor: str) -> tuple[int, str]:
    """The last Job of the page before, and its time (or count), below 2^63. Raises UsageError."""
    written, separator, name = cursor.partition(":")
    place = int(written) if written.isascii() and written.isdigit() and len(written) < 20 else _NO_TIME
    if not separator or place >= _NO_TIME or not is_id(name):
        raise UsageError(f"{cursor[:200]!r} is not a place in the list of jobs: use `next` of the page before")
    return place, name
