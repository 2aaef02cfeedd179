"""A person's approval: of which call it is, for how long it holds, and what is never run without it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import Simulation

from perstack.core.definitions.permissions import Approval, call_digest
from perstack.core.jobs.answer_reading import read_job_answer
from perstack.core.runs.events.changed_calls import ChangeCall, DecideChangedCall
from perstack.core.runs.events.questions import DecideApproval, RequestApproval
from perstack.core.runs.events.tool_calls import StartToolCall
from perstack.core.runs.evolve import IllegalEvent, evolve
from perstack.core.runs.open_questions import OpenQuestion
from perstack.errors import UsageError


def choices(numbers: list[int]):
    stream = iter(numbers)
    return lambda below: next(stream, 1) % below


scripts = st.lists(st.integers(0, 1000), max_size=400).map(choices)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=3), values, max_size=4)


@settings(deadline=None)
@given(scripts)
def test_no_call_that_a_rule_asks_about_is_run_before_it_was_approved(choose) -> None:
    simulation = Simulation(choose)
    simulation.drive()
    _check_approved_before_run(simulation)


def test_approved_calls_run_in_many_random_runs_and_none_before_its_approval() -> None:
    approved = 0
    for seed in range(200):
        simulation = Simulation(Random(seed).randrange)
        simulation.drive()
        approved += _check_approved_before_run(simulation)
    assert approved > 20


def _check_approved_before_run(simulation: Simulation) -> int:
    """Check each call that ran although a rule asks about it. Return their number."""
    approved = 0
    for call_id, place in simulation.ran:
        call = simulation.states[place - 1].calls[call_id]
        if call.decided.asks:
            approved += 1
            before = [event for event in simulation.events[:place] if getattr(event, "tool_call_id", None) == call_id]
            requests = [event for event in before if isinstance(event, RequestApproval)]
            answers = [event for event in before if isinstance(event, DecideApproval | ChangeCall)]
            assert len(answers) == len(requests)  # one for each time that it was asked about
            assert {event.decision for event in answers if isinstance(event, DecideApproval)} <= {"once", "job"}
            *_, approval = [
                event
                for event in before
                if isinstance(event, DecideApproval) or (isinstance(event, DecideChangedCall) and event.approved)
            ]
            starts = {event.call_digest for event in before if isinstance(event, StartToolCall)}
            assert starts <= {approval.call_digest} == {call.digest}
    delegated = [call for state in simulation.states for call in state.calls.values() if call.delegation is not None]
    assert all(not call.decided.asks or (call.approval and call.approval.decision != "no") for call in delegated)
    return approved


@settings(deadline=None)
@given(scripts)
def test_a_call_with_a_side_effect_that_was_approved_is_run_once_whenever_the_run_is_stopped(choose) -> None:
    simulation = Simulation(choose)
    simulation.drive()
    ran: dict[str, int] = {}
    for call_id, place in simulation.ran:
        call = simulation.states[place - 1].calls[call_id]
        # a tool that asks something is called again with the answer: that is the same call, which has done nothing yet
        if (
            call.decided.asks
            and call.decided.effect == "sideEffect"
            and not call.answers
            and call.tool_question is None
        ):
            ran[call_id] = ran.get(call_id, 0) + 1
    assert set(ran.values()) <= {1}


def _run_to_approval(choose) -> Simulation | None:
    """A Run up to where a person is asked for approval first."""
    simulation = Simulation(choose)
    for _ in range(40):
        simulation.drive(1)
        if isinstance(simulation.events[-2:][0], RequestApproval):
            return simulation
    return None


def test_an_approval_of_another_digest_and_a_rule_that_was_not_offered_are_refused() -> None:
    waiting = [_run_to_approval(Random(seed).randrange) for seed in range(100)]
    asked = [
        simulation for simulation in waiting if simulation is not None and simulation.run.asked_call_id is not None
    ]
    assert len(asked) > 20
    for simulation in asked:
        _check_other_approvals_refused(simulation)


def _check_other_approvals_refused(simulation: Simulation) -> None:
    run = replace(simulation.run, status="running")
    request = next(event for event in reversed(simulation.events) if isinstance(event, RequestApproval))
    common = {**simulation.stamp(), "tool_call_id": request.tool_call_id, "by": {"door": "cli"}}
    other = DecideApproval(**common, call_digest=call_digest("s", "t", {"path": "b.txt"}), decision="once")
    with pytest.raises(IllegalEvent, match="not for call"):
        evolve(run, other, run.head)
    wider = DecideApproval(**common, call_digest=request.call_digest, decision="job", rule="*")
    with pytest.raises(IllegalEvent, match="was not offered"):
        evolve(run, wider, run.head)
    changed = ChangeCall(**common, call_digest=other.call_digest, args={"path": "b.txt"})
    with pytest.raises(IllegalEvent, match="not for call"):
        evolve(run, changed, run.head)
    unasked = StartToolCall(**simulation.stamp(), tool_call_id=request.tool_call_id, call_digest=request.call_digest)
    with pytest.raises(IllegalEvent, match="starts without an approval"):
        evolve(run, unasked, run.head)


@given(objects, st.randoms())
def test_the_digest_of_a_call_does_not_depend_on_the_order_of_its_arguments(args, random) -> None:
    names = list(args)
    random.shuffle(names)
    assert call_digest("s", "t", {name: args[name] for name in names}) == call_digest("s", "t", args)


@given(objects, objects)
def test_other_arguments_another_tool_or_another_skill_have_another_digest(args, others) -> None:
    same = call_digest("s", "t", args)
    assert same not in (call_digest("s", "u", args), call_digest("u", "t", args), call_digest("st", "", args))
    # 0 and false are equal in Python and other texts in JSON
    if repr(sorted(args.items())) != repr(sorted(others.items())) and args != others:
        assert same != call_digest("s", "t", others)


ASKING = OpenQuestion(
    id="job-1-4",
    run_id="job-1",
    expert_key="e",
    tool_call_id="c",
    tool_name="exec",
    text="?",
    approval=True,
    call_digest="v1:x",
    rule="exec",
    offers=("exec(git push *)",),
)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("yes", Approval(decision="once")),
        (" Y ", Approval(decision="once")),
        ("always", Approval(decision="job")),
        ("Always.", Approval(decision="job")),
        ("always: exec(git push *)", Approval(decision="job", rule="exec(git push *)")),
        ("always in this project: exec(git push *)", Approval(decision="project", rule="exec(git push *)")),
        ("no", Approval(decision="no")),
        ("No: use a branch", Approval(decision="no", text="use a branch")),
    ],
)
def test_an_approval_is_said_in_a_word(said: str, meant: Approval) -> None:
    assert read_job_answer(ASKING, said) == meant


@pytest.mark.parametrize("said", ["", "perhaps", "always: exec(*)", "yes: but to a branch", "{}", "always exec"])
def test_what_is_no_clear_approval_is_refused_and_says_what_is_taken(said: str) -> None:
    with pytest.raises(
        UsageError,
        match=r"say yes, always, always: exec\(git push \*\), always in this project: .*, no; a text for the model",
    ):
        read_job_answer(ASKING, said)
