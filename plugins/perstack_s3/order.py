"""Which Jobs were written to last: the server says it in whole seconds, and the objects themselves within one."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from perstack.ports.paging import newest_first, place_in_jobs
from perstack.ports.storage import Page
from perstack_s3.caches import place_in_time, unstamped
from perstack_s3.objects import Listed, Objects, at_once
from perstack_s3.stored import Marker, read


class Order:
    """Reads only what was written in the seconds that a page is of, and that once."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._said: dict[str, tuple[str, int]] = {}

    async def page(
        self, made: Mapping[str, Listed], written: Mapping[str, Listed], limit: int, after: str | None
    ) -> Page:
        """A page of Jobs, given their markers, and the summaries that there are. Raises UsageError for a bad cursor."""
        cursor = None if after is None else place_in_jobs(after)
        latest = {name: written.get(name, marker) for name, marker in made.items()}
        self._said = {name: said for name, said in self._said.items() if name in latest}
        found: list[tuple[int, str]] = []
        by_time = sorted(latest, key=lambda name: latest[name].written, reverse=True)
        for second, names in groupby(by_time, key=lambda name: place_in_time(latest[name].written)):
            if cursor is not None and second > cursor[0]:
                continue
            times = await self._times({name: latest[name] for name in names}, written)
            found += [one for one in times if cursor is None or one < cursor]
            if len(found) > limit:
                break
        return newest_first(found, limit, after)

    async def _times(self, latest: Mapping[str, Listed], written: Mapping[str, Listed]) -> list[tuple[int, str]]:
        """When each of one second was written: where there are several, by what they say."""
        if len(latest) == 1:
            return [(place_in_time(one.written), name) for name, one in latest.items()]
        unread = [name for name, one in latest.items() if self._said.get(name, ("", 0))[0] != one.tag]
        found = await at_once(self._objects.get(latest[name].key) for name in unread)
        for name, one in zip(unread, found, strict=True):
            said = 0 if one is None else unstamped(one.data)[0] if name in written else _made(one.data)
            self._said[name] = (latest[name].tag, said)
        return [(place_in_time(one.written, self._said[name][1]), name) for name, one in latest.items()]


def _made(data: bytes) -> int:
    marker = read(Marker, data)
    return 0 if marker is None else marker.made
