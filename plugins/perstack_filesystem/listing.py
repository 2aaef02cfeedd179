"""Lists of ids, in their order and by pages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from perstack.core.ids import check_id, number_of_run, place_of
from perstack.errors import UsageError
from perstack.ports.storage import Page
from perstack_filesystem.folders import Folder, explained

Order = tuple[int, int, str]


def run_order(run_id: str) -> Order:
    """By number; ids that have none (the original Perstack's) come first."""
    try:
        return number_of_run(run_id), 0, run_id
    except UsageError:
        return 0, 0, run_id


def checkpoint_order(checkpoint_id: str) -> Order:
    """By the Run's number and the place in its log."""
    try:
        _, run_id, seq = place_of(checkpoint_id)
    except UsageError:
        return 0, 0, checkpoint_id
    return number_of_run(run_id), seq, run_id


def page_of(ids: Iterable[str], order: Callable[[str], Order], limit: int, after: str | None) -> Page:
    """One page; the cursor is the last id of the page before, which need not exist any more.

    Names that are no ids are somebody else's files, and left out.
    """
    ordered = sorted((one for one in ids if is_id(one)), key=order)
    if after is not None:
        last = order(after)
        ordered = [one for one in ordered if order(one) > last]
    return Page(tuple(ordered[:limit]), ordered[limit - 1] if len(ordered) > limit else None)


def is_id(name: str) -> bool:
    """Whether a name can be an id."""
    try:
        check_id(name, "listed")
    except UsageError:
        return False
    return True


def job_page(jobs: Folder, summary: str, limit: int, after: str | None) -> Page:
    """Jobs by the time of their summary, or else of their folder, newest first; logs are not looked at."""
    found: list[tuple[int, str]] = []
    with explained(jobs.path):
        for entry in jobs.entries():
            if is_id(entry.name) and entry.is_dir(follow_symlinks=False):
                found.append((_changed(jobs, entry.name, summary), entry.name))
    found.sort(reverse=True)
    if after is not None:
        cursor = _place(after)
        found = [one for one in found if one < cursor]
    page = found[:limit]
    more = f"{page[-1][0]}:{page[-1][1]}" if page and len(found) > limit else None
    return Page(tuple(name for _, name in page), more)


def _changed(jobs: Folder, name: str, summary: str) -> int:
    for path in (f"{name}/{summary}", name):
        try:
            return os.stat(path, dir_fd=jobs.fd, follow_symlinks=False).st_mtime_ns
        except FileNotFoundError:
            continue
    return 0


def _place(cursor: str) -> tuple[int, str]:
    time, separator, name = cursor.partition(":")
    if not separator or not time.isdigit():
        raise UsageError(f"{cursor!r} is no place in the list of jobs: use `next` of the page before")
    return int(time), name
