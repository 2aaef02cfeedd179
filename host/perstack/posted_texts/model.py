"""Texts that people post to a Run of a Job: which are accepted, and the events by which a Run takes them.

A text waits in a mailbox (mailboxes.py) until the process that drives its Run takes it. Each has an id that its event
repeats, so that a text which is still in the mailbox after a crash is not taken twice.
"""

from collections.abc import Collection, Sequence

from pydantic import Field

from perstack.core.base.ids import By
from perstack.core.base.records import Record, Text, falsy
from perstack.core.base.text import is_blank
from perstack.core.definitions.job_status import RunStatus
from perstack.core.jobs.job import Job
from perstack.core.jobs.resuming import check_not_closed
from perstack.core.messages.standing import sayings_of_definition
from perstack.core.runs.decide import stamp_for_next_step
from perstack.core.runs.events import StoredEvent
from perstack.core.runs.events.context import DropText, TellRun
from perstack.core.runs.facts import Stamps
from perstack.core.runs.state import Run
from perstack.errors import NotFound, UsageError
from perstack.next_steps import Continue, Inspect

MAX_TEXT_CHARS = 20_000
MAX_WAITING = 100  # texts that wait for one Run


class PostedText(Record):
    """A text that waits for a Run, or the removal of an earlier one."""

    id: str
    timestamp: int  # milliseconds since 1970, UTC
    by: By
    text: Text = Field(default="", exclude_if=falsy)
    drops: str = Field(default="", exclude_if=falsy)  # id of the text to remove; empty for a new text


class Delivery(Record):
    """A posted text, and how it reaches its Run."""

    id: str
    run_id: str
    status: RunStatus  # status of the Run when the text was posted
    is_driven: bool  # True if a process drives the Job, so that the next generation has the text

    @property
    def words(self) -> str:
        if self.is_driven:
            return f"it takes effect before the next generation of {self.run_id}"
        if self.status == "queued":
            return f"it takes effect when a worker continues {self.run_id}"
        return "it takes effect when the Job continues"


class StandingText(Record):
    """A text that is never summarised away, from a person or the Expert's definition."""

    id: str = Field(default="", exclude_if=falsy)  # id of the event that brought it, or of a waiting text
    text: Text
    run_id: str
    by: By | None = None  # None if unknown, as for a query, and for a text of the definition
    is_of_definition: bool = Field(default=False, exclude_if=falsy)
    is_waiting: bool = Field(default=False, exclude_if=falsy)  # True if no generation of the Run has had it yet


def standing_texts(run: Run, waiting: Sequence[PostedText]) -> tuple[StandingText, ...]:
    """Return the texts that are never summarised away for a Run: of its definition, of people, and waiting ones."""
    dropped_ids = {waiting_texts.drops for waiting_texts in waiting}
    definition_texts = [
        StandingText(text=saying.text, run_id=run.id, is_of_definition=True)
        for saying in sayings_of_definition(run.start.expert.standing)
    ]
    told_texts = [
        StandingText(id=saying.id, text=saying.text, run_id=run.id, by=saying.by)
        for saying in run.sayings
        if saying.id not in dropped_ids
    ]
    waiting_texts = [
        StandingText(id=text.id, text=text.text, run_id=run.id, by=text.by, is_waiting=True)
        for text in waiting
        if text.text and text.id not in dropped_ids and text.id not in run.taken_posts
    ]
    return (*definition_texts, *told_texts, *waiting_texts)


def check_posted(text: str) -> str:
    """Return the text of a person. Raises UsageError if it is empty or too long."""
    if is_blank(text):
        raise UsageError("TEXT is empty: say what the Run is to know")
    if len(text) > MAX_TEXT_CHARS:
        raise UsageError(
            f"TEXT has {len(text):,} characters, more than {MAX_TEXT_CHARS:,}: put it in a file of the workspace, and"
            " post its path"
        )
    return text


def find_receiver(job: Job, run_id: str | None) -> Run:
    """Return the Run that takes a text, by default the Coordinator. Raises UsageError if it has ended."""
    check_not_closed(job)
    coordinator = job.coordinator
    run = coordinator if run_id is None else job.runs.get(run_id)
    if run is None:
        raise NotFound(f"Job {job.id} has no Run {run_id}", next_steps=(Inspect("log", job.id),))
    if coordinator.status == "completed":
        raise UsageError(f"Job {job.id} is completed", next_steps=(Continue(job.id, coordinator.start.expert_key),))
    if run.status == "completed" or (run.is_coordinator and run is not coordinator):
        raise UsageError(f"Run {run.id} has ended: post the text to the Coordinator {coordinator.id}")
    return run


def posted_events(
    run: Run, texts: Sequence[PostedText], taken_ids: Collection[str], stamp: Stamps
) -> tuple[StoredEvent, ...]:
    """Return the events by which a Run takes posted texts, in order, without those that any Run has `taken_ids`.

    A text that is removed while it waits is not taken at all.
    """
    withdrawn_ids = {text.drops for text in texts}
    known_ids = {saying.id for saying in run.sayings}
    events: list[StoredEvent] = []
    for posted in texts:
        if posted.id in taken_ids or posted.id in withdrawn_ids:
            continue
        fields = stamp_for_next_step(run, stamp, len(events))
        if posted.text:
            events.append(TellRun(**fields, posted=posted.id, text=posted.text, by=posted.by))
        elif posted.drops in known_ids:
            known_ids.discard(posted.drops)
            events.append(DropText(**fields, posted=posted.id, dropped=posted.drops, by=posted.by))
    return tuple(events)
