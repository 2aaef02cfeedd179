"""Which fact may follow in which state."""

from __future__ import annotations

from copy import copy
from typing import get_args

import pytest
from hypothesis import given, settings
from simulation import SCRIPTS, Simulation

from perstack.core.base.records import IllegalEvent
from perstack.core.definitions.job_status import RunStatus
from perstack.core.runs.events import StartRun, StoredEvent
from perstack.core.runs.events.base import LaterEvent
from perstack.core.runs.events.tool_calls import FinishToolCall
from perstack.core.runs.evolve import TRANSITIONS, evolve
from perstack.core.runs.state import Phase, Run

STATES = [(phase, status) for phase in Phase for status in get_args(RunStatus)]


def test_every_event_but_the_first_has_a_transition() -> None:
    first, *later = get_args(StoredEvent)
    assert first is StartRun
    assert all(issubclass(event, LaterEvent) for event in later)
    assert [event.model_fields["type"].default for event in later] == list(TRANSITIONS)


@settings(deadline=None)
@given(SCRIPTS)
def test_the_loop_goes_where_the_table_says(choose) -> None:
    simulation = Simulation(choose)
    simulation.drive()
    for before, event, after in zip(simulation.states, simulation.events[1:], simulation.states[1:], strict=False):
        known = TRANSITIONS[event.type]
        assert after.phase in (known.to_phases or {before.phase})
        assert after.status == (known.to_status or before.status)


@settings(deadline=None)
@given(SCRIPTS)
def test_a_fact_in_any_other_state_is_refused_and_named_with_that_state(choose) -> None:
    simulation = Simulation(choose)
    simulation.drive()
    for before, event in zip(simulation.states, simulation.events[1:], strict=False):
        known = TRANSITIONS[event.type]
        # as `replace` does, in a tenth of the time; whoever refuses changes nothing, so one does for all states
        elsewhere = copy(before)
        for phase, status in STATES:
            if phase in known.phases and status in known.statuses:
                continue
            vars(elsewhere).update(phase=phase, status=status)
            where = f"the Run is {status} in phase {phase.name}"
            assert refusal(elsewhere, event) == f"{event.type} cannot follow where {where}"


def refusal(run: Run, event: StoredEvent) -> str:
    """What an event that cannot follow is refused with: `pytest.raises` takes longer than all else, and is asked for
    hundreds of thousands of them."""
    try:
        evolve(run, event, run.head)
    except IllegalEvent as error:
        return str(error)
    return "taken"


@settings(deadline=None)
@given(SCRIPTS)
def test_a_call_never_gets_a_second_result(choose) -> None:
    simulation = Simulation(choose)
    simulation.drive()
    for event, after in zip(simulation.events[1:], simulation.states[1:], strict=False):
        if isinstance(event, FinishToolCall) and after.phase is Phase.CALLING:
            with pytest.raises(IllegalEvent, match="no open call"):
                evolve(after, event, after.head)
