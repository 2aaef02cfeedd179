"""Logs as lines, before anybody knows what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perstack.core.chain import EMPTY_LOG, Head, Sealed, check, open_line, seal
from perstack.engine.pages import every_id
from perstack.errors import Damaged
from perstack.ports.storage import RunRef, Storage


async def readable(
    storage: Storage, ref: RunRef, after: int = 0, limit: int | None = None
) -> tuple[list[bytes], Damaged | None]:
    """The lines after place `after`, at most `limit`, as far as they can be read, and what is wrong after that, if
    anything is."""
    try:
        return await storage.read(ref, after=after, limit=limit), None
    except Damaged as error:
        good = error.readable - after
        return await storage.read(ref, after=after, limit=good) if good > 0 else [], error


def checked(lines: Iterable[bytes]) -> Iterator[tuple[Sealed, Head]]:
    """Each line of a whole log, taken apart, with the head after it. Raises BrokenSeal at the first that does not
    hold."""
    head = EMPTY_LOG
    for line in lines:
        sealed, head = check(head, line)
        yield sealed, head


async def add_payload(storage: Storage, ref: RunRef, payload: bytes) -> None:
    """Append what is no event, and adds up to nothing. Raises Conflict if another process was quicker."""
    lines = await storage.read(ref)
    head = Head(len(lines), open_line(lines[-1]).hash) if lines else EMPTY_LOG
    await storage.append(ref, head.seq, seal(head, [payload])[0])


async def run_ids(storage: Storage, job_id: str) -> list[str]:
    """All Runs of a Job that have a log, by their number. Raises NotFound."""
    return await every_id(lambda after: storage.runs(job_id, after=after))
