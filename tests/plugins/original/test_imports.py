"""Jobs that the original Perstack wrote, as events of ours."""

from __future__ import annotations

import base64
import hashlib

import pytest

from golden import CASES, original, plain, states
from perstack.core.base.chain import Head
from perstack.core.jobs.job import Job
from perstack.core.jobs.summary import summarize
from perstack.core.messages.messages import BlobPart
from perstack.core.runs.events import StartRun
from perstack.core.runs.events.tool_calls import FinishToolCall
from perstack.core.runs.evolve import evolve
from perstack.core.runs.state import begin
from perstack_original import models as theirs
from perstack_original.importing import from_original


@pytest.mark.parametrize("case", CASES)
def test_the_messages_at_every_checkpoint_are_those_of_the_original(case: str) -> None:
    job_id, runs, checkpoints = original(case)
    upgraded = from_original(job_id, runs)
    seen: list[list[object]] = []
    for log in upgraded.logs.values():
        state = None
        for seq, event in enumerate(log, 1):
            head = Head(seq)
            state = begin(event, head) if isinstance(event, StartRun) else evolve(state, event, head)
            seen.append(plain(state.messages))
    assert checkpoints
    for checkpoint in checkpoints:
        assert plain(checkpoint.messages) in seen, checkpoint.id


@pytest.mark.parametrize("case", CASES)
def test_every_run_ends_as_the_original_did_with_its_usage_counted_once(case: str) -> None:
    job_id, runs, checkpoints = original(case)
    upgraded = from_original(job_id, runs)
    job = Job(job_id)
    for state in states(upgraded).values():
        job.update(state)
    summary = summarize(job, is_driven=False)
    assert summary.status == "completed"
    assert summary.usage.total_tokens == max(checkpoint.usage.total_tokens for checkpoint in checkpoints)
    last = max((one for one in checkpoints if one.status == "completed"), key=lambda one: one.step_number)
    assert summary.text == last.messages[-1].contents[0].text


@pytest.mark.parametrize(
    ("case", "steps"), [("b_files", [3]), ("c_parallel_delegates", [2, 3, 1]), ("d_interactive", [4])]
)
def test_runs_that_went_on_are_one_run_and_steps_count_from_one(case: str, steps: list[int]) -> None:
    job_id, runs, _ = original(case)
    folded = states(from_original(job_id, runs))
    assert list(folded) == [f"{job_id}-{n}" for n in range(1, len(steps) + 1)]
    assert [run.step for run in folded.values()] == steps
    assert {run.status for run in folded.values()} == {"completed"}


def test_delegates_know_their_caller_and_the_caller_its_delegates() -> None:
    job_id, runs, _ = original("c_parallel_delegates")
    logs = from_original(job_id, runs).logs
    (called,) = [event for event in logs[f"{job_id}-1"] if event.type == "callDelegate"]
    assert [(one.expert_key, one.run_id, one.query) for one in called.delegates] == [
        ("alpha", f"{job_id}-2", "do A"),
        ("beta", f"{job_id}-3", "do B"),
    ]
    starts = [log[0] for log in logs.values()]
    assert [start.delegated_by and start.delegated_by.tool_call_id for start in starts] == [
        None,
        "toolu_coord_0_0",
        "toolu_coord_0_1",
    ]
    assert starts[0].expert.delegates == ("alpha", "beta")


@pytest.mark.parametrize("case", CASES)
def test_the_same_files_in_another_order_make_the_same_events(case: str) -> None:
    job_id, runs, _ = original(case)
    backwards = {name: events[::-1] for name, events in reversed(runs.items())}
    assert from_original(job_id, backwards) == from_original(job_id, runs)


@pytest.mark.parametrize("case", CASES)
def test_a_run_cut_at_any_event_still_folds(case: str) -> None:
    job_id, runs, _ = original(case)
    whole = sorted((event for events in runs.values() for event in events), key=lambda event: event.timestamp)
    last = states(from_original(job_id, runs))
    counts = [0]
    for end in range(1, len(whole)):
        kept = {name: [event for event in events if event in whole[:end]] for name, events in runs.items()}
        cut = states(from_original(job_id, kept))
        assert set(cut) <= set(last)
        counts.append(sum(state.step for state in cut.values()))
    assert [*counts, sum(state.step for state in last.values())] == [*sorted(counts), max(counts)]


def test_a_question_that_waits_waits_here_too() -> None:
    job_id, runs, _ = original("d_interactive")
    first = min(runs.items(), key=lambda item: item[1][0].timestamp)
    (state,) = states(from_original(job_id, dict([first]))).values()
    assert state.status == "stoppedByInteractiveTool"
    assert state.asked_call_id == "toolu_asker_1_0"


def test_a_new_query_continues_from_the_place_where_the_other_run_ended() -> None:
    job_id, runs, _ = original("b_files")
    (events,) = runs.values()
    end = next(event.checkpoint for event in events if event.type == "completeRun")
    assert end is not None
    query = theirs.Message(
        type="userMessage", id="m", contents=(theirs.OriginalPart(type="textPart", text="and now?"),)
    )
    start = theirs.Event(
        type="startRun",
        id="e",
        timestamp=end.step_number + 2 * 10**12,
        job_id=job_id,
        run_id="later",
        step_number=4,
        initial_checkpoint=end,
        input_messages=(query,),
    )
    upgraded = from_original(job_id, {**runs, "later": [start]})
    begun = upgraded.logs[f"{job_id}-2"][0]
    assert isinstance(begun, StartRun)
    assert (begun.query, begun.continued_from and begun.continued_from.run_id) == ("and now?", f"{job_id}-1")
    assert plain(states(upgraded)[f"{job_id}-2"].messages) == plain((*end.messages, query))


def test_images_in_messages_become_blobs() -> None:
    job_id, runs, _ = original("b_files")
    (events,) = runs.values()
    data = b"\x89PNG"
    image = theirs.OriginalPart(
        type="imageInlinePart", encoded_data=base64.b64encode(data).decode(), mime_type="image/png"
    )
    index = next(
        index for index, event in enumerate(events) if event.type == "finishToolCall" and event.step_number == 1
    )
    finished = events[index]
    (message,) = finished.new_messages or ()
    result = message.contents[0].model_copy(update={"contents": (image,)})
    changed = message.model_copy(update={"contents": (result,)})
    events[index] = finished.model_copy(update={"new_messages": (changed,)})
    upgraded = from_original(job_id, {"r": events})
    digest = hashlib.sha256(data).hexdigest()
    assert upgraded.blobs == {digest: data}
    (event, *_) = (event for event in upgraded.logs[f"{job_id}-1"] if isinstance(event, FinishToolCall))
    assert event.contents == (BlobPart(sha256=digest, mime_type="image/png", size=4),)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("messages_left", [0, 1, 2], ids=["streamed", "with the result", "without the result"])
@pytest.mark.parametrize("has_attempt", [True, False])
def test_a_reply_with_text_beside_attempt_completion_ends_the_run_with_that_text(
    is_first: bool, messages_left: int, has_attempt: bool
) -> None:
    job_id, runs, _ = original("b_files")
    ((name, events),) = runs.items()
    text = theirs.OriginalPart(type="textPart", text="It is written.")
    changed: list[theirs.Event] = []
    for event in events:
        if event.type == "callTools" and event.step_number == 3:
            assert event.new_message is not None
            parts = event.new_message.contents
            parts = (text, *parts) if is_first else (*parts, text)
            changed.append(
                event.model_copy(update={"new_message": event.new_message.model_copy(update={"contents": parts})})
            )
        elif event.type == "completeRun":
            assert event.checkpoint is not None
            kept = event.checkpoint.messages[: len(event.checkpoint.messages) - messages_left]
            checkpoint = event.checkpoint.model_copy(update={"messages": kept})
            changed.append(event.model_copy(update={"checkpoint": checkpoint, "text": "It is written."}))
        elif "treamingRunResult" not in event.type and (has_attempt or event.type != "attemptCompletion"):
            changed.append(event)
    (state,) = states(from_original(job_id, {name: changed})).values()
    assert (state.status, state.result, state.open_calls) == ("completed", "It is written.", ())
