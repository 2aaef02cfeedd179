"""What a person chooses from by a number: past Jobs, open questions, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.plain import one_line
from perstack.frontends.shared.entry_rows import question_at
from perstack.frontends.shared.log_entries import Place, places_of
from perstack.frontends.shared.words import ago, count, shorten, status_of
from perstack.frontends.tui.view.history import matching, name_of, name_of_place
from perstack.host import Host

_MOST = 1_000
"""Jobs that are looked through: the newest."""

_SHOWN = 20
_WIDEST = 200


class Lists:
    """Keeps what was listed last, so that a number says which."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._jobs: list[str | None] = []
        self._places: Sequence[Place] = ()
        self._of: str | None = None

    async def history(self, words: str) -> list[str]:
        """Past Jobs, newest first. Raises PerstackError."""
        page = await self._host.jobs.list(limit=_MOST)
        found = matching(page.jobs, words)
        self._jobs = [job.id for job in found[:_SHOWN]]
        lines = [
            shorten(f"{number}. {name_of(job)} {status_of(job)}: {job.query}", _WIDEST)
            for number, job in enumerate(found[:_SHOWN], 1)
        ]
        more = len(found) - _SHOWN
        if more > 0:
            lines.append(f"{count(more, 'more Job')}; /history WORDS finds them")
        if not lines and page.next is not None:
            return [f"none of the newest {len(page.jobs):,} Jobs has these words"]
        return [*lines, "/open NUMBER opens one"] if lines else ["no Job has these words" if words else "no Jobs yet"]

    async def inbox(self) -> list[str]:
        """Every open question, the oldest first. Raises PerstackError."""
        items, now = await self._host.inbox(), self._host.clock.now()
        self._jobs = [item.job_id for item in items]
        lines: list[str] = []
        for number, item in enumerate(items, 1):
            lines.append(shorten(f"{number}. {item.who}: {item.text} ({ago(item.since, now)})", _WIDEST))
            if item.task_id is not None and not item.damaged:
                lines.append(one_line(f"  a task is answered by: perstack answer {item.task_id} ANSWER"))
        return [*lines, "/open NUMBER opens one"] if lines else ["nothing waits for you"]

    async def checkpoints(self, job_id: str | None) -> list[str]:
        """Those of a Job. Raises PerstackError."""
        self._places, self._of = () if job_id is None else places_of(await self._host.logs(job_id)), job_id
        lines = [
            shorten(f"{number}. {name_of_place(one)} {one.expert}{_asks(one)}", _WIDEST)
            for number, one in enumerate(self._places, 1)
        ]
        return [*lines, "/branch NUMBER begins another way there"] if lines else ["this Job has no checkpoint yet"]

    def job(self, typed: str) -> str | None:
        """The Job of that number."""
        at = _number(typed, len(self._jobs))
        return None if at is None else self._jobs[at]

    def place(self, typed: str, job_id: str | None) -> Place | None:
        """The checkpoint of that number, if those of this Job were listed."""
        at = _number(typed, len(self._places)) if job_id == self._of else None
        return None if at is None else self._places[at]


def _asks(place: Place) -> str:
    return f" asks {question_at(place)}".rstrip() if place.asks else ""


def _number(typed: str, most: int) -> int | None:
    if not (typed.isascii() and typed.isdecimal() and len(typed) < 6):
        return None
    return int(typed) - 1 if 0 < int(typed) <= most else None
