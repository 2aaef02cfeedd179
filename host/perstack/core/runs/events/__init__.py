"""All events of a Run, by subject. `evolve.py` says how they make up its state, and how to add one.

A stored event is a line of the Run's log: it happened once and is never edited. Display events are shown and forgotten.
Old logs must stay readable: a new field needs a default.
"""

from typing import Annotated

from pydantic import Field, TypeAdapter

from perstack.core.base.ids import event_id_of
from perstack.core.base.records import EventParser
from perstack.core.runs import display_events
from perstack.core.runs.events.changed_calls import *
from perstack.core.runs.events.context import *
from perstack.core.runs.events.files import *
from perstack.core.runs.events.generations import *
from perstack.core.runs.events.lifecycle import *
from perstack.core.runs.events.questions import *
from perstack.core.runs.events.tool_calls import *
from perstack.core.runs.start import StartRun as StartRun

StoredEvent = (
    StartRun
    | GenerationEvent
    | ToolCallEvent
    | QuestionEvent
    | ChangedCallEvent
    | ContextEvent
    | FileEvent
    | LifecycleEvent
)

TransientEvent = (
    display_events.InitializeRuntime
    | display_events.SkillStarting
    | display_events.SkillConnected
    | display_events.SkillStderr
    | display_events.SkillDisconnected
    | display_events.ToolProgress
    | display_events.WaitForEndpoint
    | display_events.StreamReasoning
    | display_events.StreamText
)

Event = StoredEvent | TransientEvent

parse_event = EventParser[StoredEvent](lambda: TypeAdapter(Annotated[StoredEvent, Field(discriminator="type")]))


def is_at_home(event: StoredEvent, job_id: str, run_id: str, seq: int) -> bool:
    """Return True if the event's ids match position `seq` of this Run's log, and it names only Runs of this Job.

    The ids in a log are untrusted input: check them against the location that the event was read from.
    """
    if event.id != event_id_of(run_id, seq) or event.run_id != run_id or event.job_id != job_id:
        return False
    named = event.named_runs
    return not named or all(_is_run_of(other, job_id) for other in named)


def _is_run_of(run_id: str, job_id: str) -> bool:
    owner, separator, number = run_id.rpartition("-")
    return bool(separator) and owner == job_id and number.isdecimal() and number.isascii()
