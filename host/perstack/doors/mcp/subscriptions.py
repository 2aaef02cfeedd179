"""Subscriptions to Jobs: clients are notified of changes, whichever process drives the Job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from urllib.parse import quote, unquote

from perstack.core.base.ids import job_of_run
from perstack.core.runs.events import StartRun, StoredEvent
from perstack.core.runs.step_events import FinishStep
from perstack.dataclass import dataclass
from perstack.engine.log.run_log import checkpoint_at
from perstack.errors import NotFound, PerstackError
from perstack.host import Host

# URIs of resources.

SCHEME = "perstack://"
JOBS = f"{SCHEME}jobs"


@dataclass(frozen=True, slots=True)
class UriTemplate:
    """A URI template with one variable in braces (RFC 6570, level 1)."""

    template: str

    @property
    def prefix(self) -> str:
        """The text before the variable."""
        return self.template.partition("{")[0]

    @property
    def suffix(self) -> str:
        """The text after the variable."""
        return self.template.partition("}")[2]

    def value_in(self, uri: str) -> str | None:
        """Return the variable's value in a URI; None if the template does not match."""
        if not uri.startswith(self.prefix) or not uri.endswith(self.suffix):
            return None
        raw = uri[len(self.prefix) : len(uri) - len(self.suffix)]
        return unquote(raw) if raw and "/" not in raw else None

    def uri(self, value: str) -> str:
        """Return the URI for a value."""
        return f"{self.prefix}{quote(value, safe='@')}{self.suffix}"


JOB = UriTemplate(f"{JOBS}/{{id}}")
CHECKPOINT = UriTemplate(f"{SCHEME}checkpoints/{{id}}")
EVENTS = UriTemplate(f"{SCHEME}runs/{{id}}/events")
EXPERT = UriTemplate(f"{SCHEME}experts/{{key}}")


Notify = Callable[[str], Awaitable[None]]  # notify the subscribers of a URI


def _job_of(uri: str) -> str | None:
    """Return the Job that a URI belongs to; None if it cannot be subscribed to."""
    run_id = EVENTS.value_in(uri)
    if run_id is not None:
        with suppress(PerstackError):
            return job_of_run(run_id)
        return None
    return JOB.value_in(uri)


class JobSubscriptions:
    """A task for each driven Job with subscribers."""

    def __init__(self, host: Host, notify: Notify, offers: Callable[[str], bool]) -> None:
        """Follow Jobs through `host`. `offers` tells by an Expert's key whether clients may see its Jobs."""
        self._host = host
        self._offers = offers
        self._notify = notify
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def watch(self, uri: str) -> None:
        """Start to notify of changes of this URI's contents; does nothing if its Job is followed already."""
        job_id = _job_of(uri)
        if job_id is None or job_id in self._tasks:
            return
        task = asyncio.create_task(self._follow(job_id))
        self._tasks[job_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job_id, None))

    async def close(self) -> None:
        """Stop following all Jobs."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _follow(self, job_id: str) -> None:
        began = self._host.clock.now()
        try:
            if not self._offers((await self._host.job(job_id)).expert_key):
                return
            async for line in self._host.jobs.watch(job_id):
                if line.event.timestamp >= began and _is_visible_change(line.event):
                    await self._notify(EVENTS.uri(line.event.run_id))
                    await self._notify(JOB.uri(job_id))
        except NotFound:
            return
        except PerstackError:
            pass  # a reader of the resource gets the error
        await self._notify(JOB.uri(job_id))


def _is_visible_change(event: StoredEvent) -> bool:
    """Return whether the event changes what a person sees: a Run starts, a step ends, a Run stops."""
    return isinstance(event, StartRun | FinishStep) or checkpoint_at(event) is not None
