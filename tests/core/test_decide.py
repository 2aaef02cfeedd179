"""What is recorded without any effect: stops, answers, and how a Run continues."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from simulation import SCRIPTS, Simulation

from perstack.core.definitions.settings import Limits
from perstack.core.runs.commands import Generate, StopAtLimit
from perstack.core.runs.decide import (
    changed_definition,
    has_ended,
    interrupt_events,
    resume_event,
    stop_event_after_delegates,
)
from perstack.core.runs.evolve import evolve
from perstack.core.runs.facts import Definition
from perstack.core.runs.pending import pending
from perstack.core.runs.state import Run


@pytest.fixture
def simulation() -> Simulation:
    return Simulation(lambda below: 0)


@settings(deadline=None)
@given(SCRIPTS)
def test_what_is_at_work_can_always_be_interrupted_and_what_has_stopped_stays_as_it_is(choose) -> None:
    simulation = Simulation(choose)
    simulation.drive()
    for state in simulation.states:
        facts = interrupt_events(state, simulation.stamps)
        assert bool(facts) == (state.status in ("running", "stoppedByDelegate"))
        assert all(evolve(state, fact, state.head).status == "stoppedByInterrupt" for fact in facts)


@settings(deadline=None)
@given(SCRIPTS)
def test_a_job_that_has_used_its_steps_begins_no_step_and_ends_the_one_at_hand(choose) -> None:
    simulation = Simulation(choose)
    simulation.drive()
    for state in simulation.states:
        free, bound = pending(state), pending(state, 7)
        begins = isinstance(free, Generate) and free.step > state.step
        assert bound == (StopAtLimit(7) if begins else free)


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["stoppedByMaxSteps", "stoppedByInterrupt", "stoppedByInteractiveTool"], "stopRunByInteractiveTool"),
        (["stoppedByMaxSteps", "stoppedByInterrupt"], "stopRunByInterrupt"),
        (["stoppedByMaxSteps"], "stopRunByExceededMaxSteps"),
    ],
)
def test_a_question_of_a_delegate_goes_before_a_pause_and_that_before_the_limit(
    simulation: Simulation, statuses: list[str], expected: str
) -> None:
    stopped = [replace(simulation.run, status=status, resume_at=5) for status in statuses]
    event = stop_event_after_delegates(stopped, 3, simulation.stamps)
    assert event.type == expected
    assert getattr(event, "resume_at", 5) == 5


def test_a_delegate_that_has_ended_is_not_driven_again(simulation: Simulation) -> None:
    def end_flags(*statuses: str) -> list[bool]:
        return [has_ended(replace(simulation.run, status=status)) for status in statuses]

    assert end_flags("completed", "stoppedByError") == [True, True]
    assert end_flags("running", "stoppedByMaxSteps", "stoppedByInteractiveTool") == [False, False, False]


def test_an_event_from_outside_is_recorded_with_the_coordinator_alone(simulation: Simulation) -> None:
    run = replace(simulation.run, status="stoppedByInterrupt")

    def signal_of(reason: str) -> str | None:
        given = {"limits": None, "settled": {}, "signal": "sensor/1", "definition": None, "permissions": ()}
        return resume_event(run, reason, simulation.stamps, **given).signal

    assert signal_of("interrupt") == "sensor/1"
    assert signal_of("parent") is None


def _today(run: Run, **changes: object) -> Definition:
    now = {name: getattr(run.start, name) for name in Definition.model_fields}
    return Definition.model_validate({**now, "instruction": "at another time", **changes})


def test_a_definition_that_differs_only_by_its_time_is_not_recorded_anew(simulation: Simulation) -> None:
    run = simulation.run
    assert changed_definition(run, _today(run), run.limits, None) == (None, None)
    definition, _ = changed_definition(run, _today(run, model="other"), run.limits, None)
    assert definition is not None
    assert definition.model == "other"


def test_a_limit_that_was_asked_for_goes_before_todays(simulation: Simulation) -> None:
    run = simulation.run
    _, limits = changed_definition(run, _today(run), Limits(max_steps=9), Limits(max_steps=4))
    assert limits == Limits(max_steps=4)
