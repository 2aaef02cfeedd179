"""Jobs that the original Perstack wrote, as events of ours."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from perstack.core import original_shapes as theirs
from perstack.core.chain import EMPTY_LOG, seal
from perstack.core.events import FinishToolCall, StartRun, parse_event
from perstack.core.job import Job, summarize
from perstack.core.messages import BlobPart, History
from perstack.core.original import Upgraded, from_original
from perstack.core.run import Run, begin, evolve, inheritable

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = ["b_files", "c_parallel_delegates", "d_interactive"]


def original(case: str) -> tuple[str, dict[str, list[theirs.Event]], list[theirs.Checkpoint]]:
    """Job id, events by run, and checkpoints of a golden Job."""
    (job,) = (GOLDEN / case / "perstack" / "jobs").iterdir()
    runs = {
        run.name: [theirs.Event.model_validate_json(file.read_bytes()) for file in run.glob("event-*.json")]
        for run in (job / "runs").iterdir()
    }
    files = (job / "checkpoints").glob("*.json")
    return job.name, runs, [theirs.Checkpoint.model_validate_json(file.read_bytes()) for file in files]


def states(upgraded: Upgraded) -> dict[str, Run]:
    """Each Run after its last event, folded from lines as the host folds them."""
    found: dict[str, Run] = {}
    places: dict[str, Run] = {}
    for run_id, log in upgraded.logs.items():
        head = EMPTY_LOG
        for event in log:
            lines, head = seal(head, [event.to_json()])
            again = parse_event(lines[0].split(b',"digest":')[0] + b"}")
            assert again == event
            if isinstance(again, StartRun):
                base = places.get(again.continued_from.checkpoint_id) if again.continued_from else None
                found[run_id] = begin(again, head, inheritable(base) if base else None)
            else:
                found[run_id] = evolve(found[run_id], again, head)
            places[event.id] = found[run_id]
    return found


def plain(messages: History | tuple[theirs.Message, ...]) -> list[object]:
    """Messages without their ids, which only the original has, and without the instruction."""

    def strip(value: object) -> object:
        if isinstance(value, dict):
            kept = {key: strip(item) for key, item in value.items() if key != "id"}
            return {key: item for key, item in kept.items() if item not in (None, False)}
        return [strip(item) for item in value] if isinstance(value, list) else value

    dumped = [strip(message.model_dump(mode="json")) for message in messages]
    return [message for message in dumped if isinstance(message, dict) and message["type"] != "instructionMessage"]


@pytest.mark.parametrize("case", CASES)
def test_the_messages_at_every_checkpoint_are_those_of_the_original(case: str) -> None:
    job_id, runs, checkpoints = original(case)
    upgraded = from_original(job_id, runs)
    seen: list[list[object]] = []
    for log in upgraded.logs.values():
        state = None
        for seq, event in enumerate(log, 1):
            head = EMPTY_LOG.__class__(seq)
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
    for log in upgraded.logs.values():
        for event in log:
            job.apply(event)
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
    for end in range(1, len(whole)):
        kept = {name: [event for event in events if event in whole[:end]] for name, events in runs.items()}
        states(from_original(job_id, kept))


def test_a_question_that_waits_waits_here_too() -> None:
    job_id, runs, _ = original("d_interactive")
    first = min(runs.items(), key=lambda item: item[1][0].timestamp)
    (state,) = states(from_original(job_id, dict([first]))).values()
    assert state.status == "stoppedByInteractiveTool"
    assert state.asked == "toolu_asker_1_0"


def test_a_new_query_continues_from_the_place_where_the_other_run_ended() -> None:
    job_id, runs, _ = original("b_files")
    (events,) = runs.values()
    end = next(event.checkpoint for event in events if event.type == "completeRun")
    assert end is not None
    query = theirs.Message(type="userMessage", id="m", contents=(theirs.Part(type="textPart", text="and now?"),))
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
    image = theirs.Part(type="imageInlinePart", encoded_data=base64.b64encode(data).decode(), mime_type="image/png")
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
