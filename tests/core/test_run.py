"""What a Run does next, and how its log folds into its state."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulation import SCRIPTS, Simulation, choices

from perstack.core.base.chain import EMPTY_LOG, link
from perstack.core.base.usage import NO_USAGE
from perstack.core.jobs.job import Job
from perstack.core.messages.messages import ExpertMessage, History, TextPart, ToolMessage, UserMessage
from perstack.core.runs.events import parse_event
from perstack.core.runs.events.generations import FinishGeneration, FinishStep, StartGeneration
from perstack.core.runs.events.questions import CallInteractiveTool
from perstack.core.runs.events.tool_calls import FinishToolCall
from perstack.core.runs.evolve import difference, evolve
from perstack.core.runs.facts import ContinuedFrom
from perstack.core.runs.pending import pending
from perstack.core.runs.state import INHERITANCE, Run, begin, inheritable_messages


@settings(deadline=None)
@given(SCRIPTS)
def test_a_log_read_back_folds_into_the_same_state(choose) -> None:
    simulation = Simulation(choose)
    simulation.drive()
    head = EMPTY_LOG
    state = None
    for event, expected in zip(simulation.events, simulation.states, strict=True):
        payload = event.to_json()
        _, head = link(head, payload)
        again = parse_event(payload)
        assert again == event
        state = begin(again, head) if state is None else evolve(state, again, head)
        assert state == expected


@settings(deadline=None)
@given(SCRIPTS)
def test_every_tool_call_gets_exactly_one_result_in_the_order_of_the_calls(choose) -> None:
    simulation = Simulation(choose)
    simulation.drive()
    messages = inheritable_messages(simulation.run)
    for index, message in enumerate(messages):
        if isinstance(message, ExpertMessage) and message.tool_calls:
            answer = messages[index + 1]
            assert isinstance(answer, ToolMessage)
            assert [part.tool_call_id for part in answer.contents] == [c.tool_call_id for c in message.tool_calls]


@settings(deadline=None)
@given(SCRIPTS)
def test_replay_finds_no_difference_in_what_the_loop_itself_wrote(choose) -> None:
    simulation = Simulation(choose)
    simulation.drive()
    for state, event in zip(simulation.states, simulation.events[1:], strict=False):
        assert difference(state, event) is None


@settings(deadline=None)
@given(SCRIPTS)
def test_steps_and_usage_are_those_of_the_generations_each_counted_once(choose) -> None:
    simulation = Simulation(choose)
    simulation.drive()
    job = Job("job")
    for state in simulation.states:
        job.update(state)
    generations = [event for event in simulation.events if isinstance(event, FinishGeneration)]
    asked = [event.usage for event in simulation.events if isinstance(event, CallInteractiveTool) and event.usage]
    expected = sum((event.usage for event in generations), sum(asked, NO_USAGE))
    assert simulation.run.spending.usage == expected == job.usage
    begun = {event.step_number for event in simulation.events if isinstance(event, StartGeneration)}
    assert job.total_steps == len(begun) == max(begun, default=0)


@settings(deadline=None)
@given(SCRIPTS)
def test_the_usage_of_the_finished_steps_sums_up_to_the_runs(choose) -> None:
    simulation = Simulation(choose)
    simulation.drive()
    if simulation.run.status == "completed":
        steps = [event.usage for event in simulation.events if isinstance(event, FinishStep)]
        assert sum(steps, NO_USAGE) == simulation.run.spending.usage


@settings(deadline=None)
@given(SCRIPTS)
def test_replay_finds_a_result_that_the_loop_would_not_have_written(choose) -> None:
    simulation = Simulation(choose)
    simulation.drive()
    for state, event in zip(simulation.states, simulation.events[1:], strict=False):
        if isinstance(event, FinishToolCall) and event.tool_name in ("todo", "clearTodo"):
            assert difference(state, event.model_copy(update={"contents": (TextPart(text="forged"),)}))
        if isinstance(event, FinishStep):
            forged = event.model_copy(update={"usage": event.usage + event.usage})
            assert difference(state, forged)


@settings(deadline=None)
@given(SCRIPTS)
@example(choices([1, 0, 1, 0, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0]))  # asked again, with no rule on offer
def test_a_run_is_never_at_a_loss_unless_it_has_stopped(choose) -> None:
    simulation = Simulation(choose)
    simulation.drive()
    for state in simulation.states:
        assert (pending(state) is None) == (state.status not in ("running", "stoppedByDelegate"))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=40))
def test_histories_that_share_their_beginning_never_see_each_others_messages(growth: list[tuple[int, int]]) -> None:
    versions = [(History(), ())]
    for which, number in growth:
        history, model = versions[which % len(versions)]
        message = UserMessage(contents=(TextPart(text=str(number)),))
        versions.append((history.append(message), (*model, message)))
    for history, model in versions:
        assert tuple(history) == model
        assert len(history) == len(model)


ROWS = {row: names.split() for row, names in INHERITANCE.items()}


def test_each_field_of_a_run_has_one_row_that_says_what_a_run_that_takes_over_has_of_it() -> None:
    assert sorted(name for names in ROWS.values() for name in names) == sorted(field.name for field in fields(Run))


@pytest.mark.parametrize("name", [*ROWS["kept"], *ROWS["started"], *ROWS["reset"]])
def test_a_run_that_takes_over_keeps_what_the_table_says_and_nothing_else(name: str) -> None:
    base_run = Simulation(lambda below: 0).run
    origin = ContinuedFrom(run_id=base_run.id, checkpoint_id=base_run.start.id, as_it_was=True)
    start = base_run.start.model_copy(update={"run_id": "job-2", "continued_from": origin})
    kept = object()
    value = getattr(begin(start, base_run.head, replace(base_run, **{name: kept})), name)
    assert (value is kept) == (name in ROWS["kept"])
    assert name not in ROWS["reset"] or value == getattr(Run(start), name)
