"""Whether a Job may be resumed, why it goes on, and how it stands that a series has to wait for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulation import Simulation

from perstack.core.base.ids import By
from perstack.core.definitions.experts import Iterate
from perstack.core.definitions.job_status import lifecycle_of
from perstack.core.definitions.settings import Overrides
from perstack.core.jobs.job import Job
from perstack.core.jobs.resuming import UnsettledCall, resumption
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.facts import Closed
from perstack.core.runs.state import Run
from perstack.errors import Conflict, UsageError
from perstack.iterations.evolve import evolve_series
from perstack.iterations.next_step import Evaluate, evaluation_query, job_of_evaluation, stop_event
from perstack.iterations.state import FailSeries, StartSeries
from perstack.next_steps import Continue, GiveAnswer

CALL = UnsettledCall("job-1-1-c", "c", "job-1", "e", "pay", "{}")


@pytest.fixture
def run() -> Run:
    return replace(Simulation(lambda below: 0).run, has_generated=True)


def resume(run: Run, asked: Overrides | None = None, max_steps=None, signal=None, calls=(), settled=None):
    job = Job(run.start.job_id)
    job.update(run)
    return resumption(
        job, run, asked or Overrides(), max_steps=max_steps, signal=signal, calls=calls, settled=settled or {}
    )


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("running", "crash"),
        ("stoppedByDelegate", "crash"),
        ("stoppedByInterrupt", "interrupt"),
        ("stoppedByMaxSteps", "maxSteps"),
        ("stoppedByError", "error"),
    ],
)
def test_a_run_that_stopped_goes_on_for_the_reason_that_it_stopped_for(run: Run, status: str, reason: str) -> None:
    assert resume(replace(run, status=status)) == (reason, None)


@pytest.mark.parametrize(
    ("status", "step", "words"),
    [("completed", Continue, "is completed"), ("stoppedByInteractiveTool", GiveAnswer, "waits for an answer")],
)
def test_one_that_has_ended_or_asks_is_not_resumed_and_the_error_says_what_to_do(
    run: Run, status: str, step: type, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        resume(replace(run, status=status))
    assert [type(one) for one in refused.value.next_steps] == [step]


def test_limits_that_were_asked_for_take_the_place_of_those_that_it_had(run: Run) -> None:
    _, limits = resume(run, Overrides(max_steps=3, timeout=5), max_steps=9)
    assert limits == run.limits.model_copy(update={"max_steps": 9, "timeout": 5})


def test_another_model_needs_a_new_query_unless_no_model_has_replied_yet(run: Run) -> None:
    other = Overrides(model="another")
    with pytest.raises(UsageError, match="model another: a Run is resumed with the model that it was started with"):
        resume(run, other)
    failed = replace(run, has_generated=False, status="stoppedByError")
    assert failed.may_be_redefined
    assert resume(failed, other) == ("error", None)


def test_what_is_settled_must_be_an_open_call_and_a_signal_is_taken_once(run: Run) -> None:
    assert resume(run, calls=(CALL,), settled={"c": "done"})
    with pytest.raises(UsageError, match="settle d: there is no such open call; open calls: job-1-1-c"):
        resume(run, calls=(CALL,), settled={"d": "done"})
    with pytest.raises(Conflict, match="has already received the event e1"):
        resume(replace(run, signals=frozenset({"e1"})), signal="e1")


STAMP = {"series_id": "s", "timestamp": 3}


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        ("stoppedByInteractiveTool", "human_input", "Job j asks: well?"),
        ("stoppedByMaxSteps", "checkpoint", "Job j has reached its step limit"),
        ("stoppedByInterrupt", "checkpoint", "Job j was interrupted"),
        ("stoppedByInterrupt", "rate_limit", "Job j waits for the provider's rate limit"),
        ("stoppedByError", None, "Job j failed: broke"),
    ],
)
def test_a_series_pauses_as_its_job_does_and_fails_with_it(status, reason, message) -> None:
    named = {"expert_key": "e", "query": "q", "coordinator_run_id": "j-1", "question": "well?", "error": "broke"}
    lifecycle = lifecycle_of(status)
    job = JobSummary(id="j", status=status, lifecycle=lifecycle, pause_reason=reason, resume_at=7, **named)
    event = stop_event(job, STAMP)
    if isinstance(event, FailSeries):
        assert (event.error, event.invalid_answer, status) == (message, False, "stoppedByError")
    else:
        expected = (reason, message, status, "j", 7)
        assert (event.reason, event.message, event.job_status, event.job_id, event.resume_at) == expected


def test_a_series_fails_with_a_job_that_was_closed_for_good_however_that_stood() -> None:
    closed = Closed(by=By(user="ann", door="cli"), at=1)
    named = {"expert_key": "e", "query": "q", "coordinator_run_id": "j-1", "closed": closed}
    event = stop_event(JobSummary(id="j", status="stoppedByInteractiveTool", lifecycle="failed", **named), STAMP)
    assert isinstance(event, FailSeries)
    assert event.error == "Job j was closed for good by ann, cli"


def test_an_evaluator_is_asked_in_a_job_of_its_own_for_each_try_and_told_what_is_compared() -> None:
    assert [job_of_evaluation("s", Evaluate(2, "made", tried)) for tried in (0, 1, 2)] == ["s-e2", "s-e2-2", "s-e2-3"]
    first = StartSeries(expert_key="e", query="do it", iterate=Iterate(evaluator="x", metric=("a", "b")), **STAMP)
    question = evaluation_query(evolve_series(None, first), "made")
    assert '{"metrics": {"a": NUMBER, "b": NUMBER}' in question
    assert question.endswith("do it\n\nThe result:\nmade")
