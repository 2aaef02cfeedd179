"""Which fact may follow where a task or a series stands."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import ROOT

import perstack.iterations.evolve as series_evolve
import perstack.tasks.evolve as task_evolve
from perstack.core.base.ids import By
from perstack.core.base.records import IllegalEvent
from perstack.core.definitions.experts import Iterate
from perstack.errors import Conflict, NotAllowed, UsageError
from perstack.iterations.evolve import begin_series, evolve_series
from perstack.iterations.state import TRANSITIONS as OF_SERIES
from perstack.iterations.state import (
    FailSeries,
    FinishArtefact,
    FinishIteration,
    FinishSeries,
    PauseSeries,
    ResumeSeries,
    SeriesState,
    StartIteration,
    StartSeries,
    StoredSeriesEvent,
)
from perstack.tasks.events import CreateTask, StoredTaskEvent, TaskConfig
from perstack.tasks.evolve import begin_task, evolve_task
from perstack.tasks.operations import (
    AnswerCommand,
    ArchiveCommand,
    CancelCommand,
    ChangeCommand,
    CheckpointCommand,
    CompleteCommand,
    CreateCommand,
    DecisionInput,
    FailCommand,
    PauseCommand,
    ResumeCommand,
    RetryCommand,
    StartCommand,
)
from perstack.tasks.state import ALLOWED, TRANSITIONS, TaskState, TaskStatus, place_of

BY = By(user="a test", door="python")
NOW = DecisionInput(now=5, by=BY)
CHANGES: list[ChangeCommand] = [
    StartCommand("t"),
    CheckpointCommand("t", {"n": 1}),
    PauseCommand("t", "human_approval", "may I?"),
    PauseCommand("t", "external_dependency", state={"n": 2}),
    AnswerCommand("t", "yes"),
    ResumeCommand("t"),
    CompleteCommand("t", "done"),
    FailCommand("t", "broken"),
    RetryCommand("t"),
    CancelCommand("t", "no need"),
    ArchiveCommand("t"),
]


def stored_types(union: object) -> list[str]:
    return [event.model_fields["type"].default for event in get_args(union)]


def test_every_fact_but_the_first_has_its_place_in_the_table() -> None:
    assert ["createTask", *TRANSITIONS] == [*stored_types(StoredTaskEvent)]
    assert ["startSeries", *OF_SERIES] == [*stored_types(StoredSeriesEvent)]


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        (task_evolve.TaskChanges, get_type_hints(TaskState)),
        (series_evolve.SeriesChanges, get_type_hints(SeriesState)),
    ],
)
def test_what_a_fact_may_change_is_a_field_of_the_state_and_of_its_type(changes: type, known: dict) -> None:
    named = get_type_hints(changes)
    assert named == {name: known[name] for name in named}


@settings(deadline=None)
@given(
    st.sampled_from(["pause", "fail", "retry"]),
    st.sampled_from([None, {"n": 0}]),
    st.booleans(),
    st.lists(st.sampled_from(CHANGES), max_size=25),
)
def test_what_is_decided_of_a_task_follows_and_leads_where_the_table_says(
    on_failure: str, kept: dict | None, waits: bool, changes: list[ChangeCommand]
) -> None:
    config = TaskConfig(on_failure=on_failure, max_retries=1)
    create = CreateCommand("t", config=config, checkpoint_data=kept, start=not waits)
    first, *rest = create.decide(DecisionInput(now=1, by=BY, depends_on=("other",) if waits else ()))
    assert isinstance(first, CreateTask)
    task = begin_task(first)
    for event in rest:
        task = followed(task, event)
    for change in changes:
        try:
            decided = change.decide(task, NOW)
        except (NotAllowed, Conflict, UsageError):
            continue
        for event in decided:
            task = followed(task, event)


def followed(task: TaskState, event: StoredTaskEvent) -> TaskState:
    after = evolve_task(task, event)
    assert place_of(after) in (TRANSITIONS[event.type].to or {place_of(task)})
    assert after.version == task.version + 1
    return after


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("status", get_args(TaskStatus))
def test_a_fact_that_cannot_follow_is_refused_and_named_with_where_the_task_is(
    change: ChangeCommand, status: TaskStatus
) -> None:
    before = TaskState(task_id="t", name="t", status=status, pause_reason="human_approval")
    home = next(one for one in ("created", "running", "paused", "failed", "completed") if is_allowed(change, one))
    *_, event = change.decide(before.model_copy(update={"status": home}), NOW)
    if status in TRANSITIONS[event.type].states:
        evolve_task(before, event)
    else:
        with pytest.raises(IllegalEvent, match=rf"{event.type} cannot follow where task t is {status}"):
            evolve_task(before, event)
    with pytest.raises(IllegalEvent, match=rf"{event.type} cannot follow where task t is archived"):
        evolve_task(before.model_copy(update={"archived_at": 1}), event)


def is_allowed(change: ChangeCommand, status: TaskStatus) -> bool:
    return type(change).__name__.removesuffix("Command").lower() in ALLOWED[status]


PURE = next(
    contract["source_modules"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    if "perstack.core" in contract.get("source_modules", ()) and "asyncio" in contract["forbidden_modules"]
)
"""Modules with events, states and decisions, by the import contract."""


@pytest.mark.parametrize("package", ["tasks", "iterations"])
def test_no_state_is_changed_by_names_and_values_that_type_checkers_do_not_see(package: str) -> None:
    untyped = [
        f"{path.name}:{node.lineno}"
        for path in (Path(task_evolve.__file__).parents[1] / package).glob("*.py")
        if f"perstack.{package}.{path.stem}" in PURE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.keyword) and node.arg == "update" and isinstance(node.value, ast.Dict)
    ]
    assert untyped == []


def test_a_run_is_changed_by_names_and_values_that_type_checkers_see() -> None:
    untyped = [
        f"{path.name}:{node.lineno}"
        for path in (Path(task_evolve.__file__).parents[1] / "runs").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("replace", "vars")
        if ast.unparse(node.func) == "vars" or any(keyword.arg is None for keyword in node.keywords)
    ]
    assert untyped == []


def test_a_task_is_not_created_twice() -> None:
    first = CreateTask(task_id="t", timestamp=1, name="t", state={}, config=TaskConfig())
    with pytest.raises(IllegalEvent, match="a second createTask"):
        evolve_task(begin_task(first), first)


STAMP = {"series_id": "s", "timestamp": 3}
FACTS: list[StoredSeriesEvent] = [
    StartIteration(number=1, job_id="s-i1", **STAMP),
    FinishArtefact(number=1, artefact="made", duration=1, **STAMP),
    FinishIteration(number=1, metrics={"score": 1}, duration=1, **STAMP),
    PauseSeries(reason="checkpoint", message="later", **STAMP),
    FailSeries(error="broke", **STAMP),
    ResumeSeries(**STAMP),
    FinishSeries(reason="targetReached", **STAMP),
]


@settings(deadline=None)
@given(st.lists(st.sampled_from(FACTS), max_size=12))
def test_a_series_goes_where_the_table_says_and_refuses_the_rest(facts: list[StoredSeriesEvent]) -> None:
    first = StartSeries(expert_key="e", query="q", iterate=Iterate(evaluator="check"), **STAMP)
    series = begin_series(first)
    for fact in (*facts, first):
        known = OF_SERIES.get(fact.type)
        number = len(series.iterations) + (fact.type == "startIteration")
        if known is not None and series.place in known.states and getattr(fact, "number", number) == number:
            after = evolve_series(series, fact)
            assert after.place in (known.to or {series.place})
            series = after
            continue
        with pytest.raises(IllegalEvent) as refused:
            evolve_series(series, fact)
        assert fact.type in str(refused.value)
        if known is not None and series.place not in known.states:
            assert series.place in str(refused.value)
