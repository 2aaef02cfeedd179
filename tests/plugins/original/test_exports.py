"""Jobs of ours in the original's form, and back."""

from __future__ import annotations

import json
import re

import pytest

from golden import CASES, original, plain, states
from perstack.core.jobs.job import Job
from perstack.core.jobs.summary import summarize
from perstack.ports.formats import ForeignJob
from perstack_original import models as theirs
from perstack_original.export import to_original
from perstack_original.importing import from_original


def read_back(job_id: str, files: dict[str, bytes]) -> ForeignJob:
    """What the files say, read as the original's."""
    runs: dict[str, list[theirs.Event]] = {}
    for path, content in files.items():
        _, _, kind, owner, *name = path.split("/")
        if kind == "runs" and name[0].startswith("event-"):
            event = theirs.Event.model_validate_json(content)
            assert (event.run_id, event.file_name) == (owner, name[0])
            runs.setdefault(owner, []).append(event)
    return from_original(job_id, runs)


def summary_of(upgraded: ForeignJob, job_id: str):
    job = Job(job_id)
    for state in states(upgraded).values():
        job.update(state)
    return summarize(job, is_driven=False)


@pytest.mark.parametrize("case", CASES)
def test_there_and_back_the_messages_and_totals_are_the_same(case: str) -> None:
    job_id, runs, _ = original(case)
    ours = from_original(job_id, runs)
    again = read_back(job_id, to_original(ours.logs))
    before, after = states(ours), states(again)
    assert list(before) == list(after)
    for run_id, state in before.items():
        assert after[run_id].messages == state.messages
        assert (after[run_id].status, after[run_id].step, after[run_id].spending.usage) == (
            state.status,
            state.step,
            state.spending.usage,
        )
        assert [event.type for event in again.logs[run_id]] == [event.type for event in ours.logs[run_id]]
    one, two = summary_of(ours, job_id), summary_of(again, job_id)
    assert (one.status, one.text, one.total_steps, one.usage) == (two.status, two.text, two.total_steps, two.usage)


@pytest.mark.parametrize("case", CASES)
def test_the_files_are_called_as_the_originals_and_tell_of_the_same_steps(case: str) -> None:
    job_id, runs, checkpoints = original(case)
    files = to_original(from_original(job_id, runs).logs)
    name = r"event-\d{13}-\d+-[A-Za-z]+\.json|run-setting\.json"
    pattern = re.compile(rf"jobs/{job_id}/(checkpoints/[a-z0-9]{{24}}\.json|runs/[a-z0-9]{{24}}/({name}))")
    assert all(pattern.fullmatch(path) for path in files)
    written = [json.loads(content) for path, content in files.items() if "/event-" in path]
    silent = {"streamRunResult", "resolveToolResults"}
    expected = sorted((event.expert_key, event.step_number, event.type) for one in runs.values() for event in one)
    assert sorted((event["expertKey"], event["stepNumber"], event["type"]) for event in written) == [
        event for event in expected if event[2] not in silent
    ]
    kept = [
        theirs.OriginalCheckpoint.model_validate_json(data) for path, data in files.items() if "/checkpoints/" in path
    ]
    for checkpoint in kept:
        assert plain(checkpoint.messages) in [plain(one.messages) for one in checkpoints]
        assert checkpoint.messages[0].type == "instructionMessage"


@pytest.mark.parametrize("case", CASES)
def test_the_same_job_makes_the_same_files(case: str) -> None:
    job_id, runs, _ = original(case)
    ours = from_original(job_id, runs)
    assert to_original(ours.logs) == to_original(ours.logs)


@pytest.mark.parametrize("case", CASES)
def test_a_job_cut_at_any_event_comes_back_as_it_was(case: str) -> None:
    job_id, runs, _ = original(case)
    ours = from_original(job_id, runs)
    for run_id, log in ours.logs.items():
        for end in range(1, len(log) + 1):
            again = read_back(job_id, to_original({run_id: log[:end]}))
            (state,) = states(again).values()
            assert plain(state.messages) == plain(
                states(ForeignJob({run_id: log[: state.head.seq]}, {}))[run_id].messages
            )
