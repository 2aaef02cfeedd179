"""Structured results: checked against a schema, corrected once, and passed from a delegate to its caller."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hosts import Bench, Seen, expert, results, sampled, until_it_crashes, wait_for

from perstack.audit.redact import redact_event
from perstack.core.base.ids import By
from perstack.core.messages.messages import text_of
from perstack.core.runs.context_window import always_kept
from perstack.errors import UsageError
from perstack.testing.crashing_storage import CrashingStorage, CrashPoint, crash_points
from perstack.testing.scripted import ScriptedProvider, text, tool, turn

CITY = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name", "people"],
}
FITS = '{"name": "Ulm", "people": 128000}'


def test_a_result_that_fits_its_schema_is_json_beside_the_text(bench: Bench) -> None:
    provider, seen = ScriptedProvider([text(FITS)]), Seen()
    host = bench.host(provider, expert("a", output=CITY))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.status, job.text, job.result) == ("completed", FITS, json.loads(FITS))
    assert seen.of("finishRun")[0].result == json.loads(FITS)
    assert json.dumps(CITY) in provider.requests[0].instruction
    assert provider.requests[0].output == CITY, "for a provider that has structured output of its own"
    assert wait_for(host.audit.replay(job.id)).ok
    assert wait_for(host.job(job.id)).result == json.loads(FITS)


def test_what_is_wrong_is_shown_to_the_model_once_and_the_correction_is_a_step(bench: Bench) -> None:
    provider, seen = ScriptedProvider([text('{"name": "Ulm"}'), text(FITS)]), Seen()
    host = bench.host(provider, expert("a", output=CITY))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.status, job.result, job.total_steps) == ("completed", json.loads(FITS), 2)
    shown = provider.requests[1].messages[-1].contents[0].text
    assert "'people' is a required property" in shown
    assert [event.problem for event in seen.of("rejectResult")] == [
        "it does not fit the schema: 'people' is a required property"
    ]
    assert wait_for(host.audit.replay(job.id)).ok


def test_a_second_result_that_does_not_fit_fails_the_run_and_a_resume_gives_one_more_try(bench: Bench) -> None:
    script = [text("I am done"), text("Really done"), text("Done!"), text(FITS)]
    host, seen = bench.host(script, expert("a", output=CITY)), Seen()
    job = wait_for(host.run("a", "q", on_event=seen))
    assert job.status == "stoppedByError"
    assert job.error is not None
    assert "is not JSON" in job.error
    assert job.result is None
    assert len(seen.of("rejectResult")) == 2
    again = wait_for(host.resume(job.id))
    assert (again.status, again.total_steps) == ("stoppedByError", 3)
    assert wait_for(host.resume(job.id)).result == json.loads(FITS)
    assert wait_for(host.audit.replay(job.id)).ok


def test_a_step_limit_holds_for_the_correction_too(bench: Bench) -> None:
    host = bench.host([text("no"), text(FITS)], expert("a", output=CITY), max_steps=1)
    job = wait_for(host.run("a", "q"))
    assert (job.status, job.total_steps) == ("stoppedByMaxSteps", 1)
    assert wait_for(host.resume(job.id, max_steps=2)).result == json.loads(FITS)


def test_a_result_given_with_attempt_completion_is_held_to_the_schema(bench: Bench) -> None:
    script = [tool("attemptCompletion", {"result": "done"}), tool("attemptCompletion", {"result": FITS})]
    host = bench.host(script, expert("a", output=CITY))
    job = wait_for(host.run("a", "q"))
    assert (job.status, job.result) == ("completed", json.loads(FITS))
    assert wait_for(host.audit.replay(job.id)).ok


def test_a_result_in_one_fenced_block_is_taken_and_in_two_it_is_not(bench: Bench) -> None:
    two = f"```json\n{FITS}\n```\nor\n```json\n{FITS}\n```"
    host, seen = (
        bench.host([text(two), text(f"Here it is:\n```json\n{FITS}\n```\nBye.")], expert("a", output=CITY)),
        Seen(),
    )
    job = wait_for(host.run("a", "q", on_event=seen))
    assert job.result == json.loads(FITS)
    assert "2 fenced blocks" in seen.of("rejectResult")[0].problem


def test_a_caller_wants_another_schema_than_the_expert_declares(bench: Bench) -> None:
    host = bench.host([text('{"ok": true}')], expert("a", output=CITY), output={"type": "object", "required": ["ok"]})
    assert wait_for(host.run("a", "q")).result == {"ok": True}


def test_output_is_for_the_coordinator_and_returns_for_a_delegate(bench: Bench) -> None:
    script = {
        "[[boss]]": [turn(tool("left", {"query": "L"}), tool("right", {"query": "R"})), text("joined")],
        "[[left]]": [text("no JSON"), text(f"```\n{FITS}\n```")],
        "[[right]]": [text("no JSON"), text("none either")],
    }
    experts = (
        expert("boss", delegates=("left", "right"), returns=CITY),
        expert("left", returns=CITY),
        expert("right", output=CITY, returns=CITY),
    )
    host, seen = bench.host(script, *experts), Seen()
    job = wait_for(host.run("boss", "q", on_event=seen))
    assert (job.status, job.text, job.result) == ("completed", "joined", None)
    assert results(seen, "left") == [FITS]
    (failed,) = results(seen, "right")
    assert failed.startswith("Delegation failed: the result does not fit the schema")
    assert job.total_steps == 2 + 2 + 2
    assert wait_for(host.audit.replay(job.id)).ok


# --- what the caller sees ----------------------------------------------------------------------------------------


def test_a_caller_sees_how_its_delegate_came_out_and_how_many_calls_had_an_effect(bench: Bench) -> None:
    write = tool("writeTextFile", {"path": "a.txt", "text": "x"})
    script = {
        "[[boss]]": [tool("mid", {"query": "L"}), text("joined")],
        "[[mid]]": [write, tool("leaf", {"query": "L"}), tool("readTextFile", {"path": "a.txt"}), text("mid done")],
        "[[leaf]]": [write, tool("readTextFile", {"path": "none.txt"})],
    }
    provider, seen = ScriptedProvider(script), Seen()
    host = bench.host(provider, expert("boss", delegates=("mid",)), expert("mid", delegates=("leaf",)), expert("leaf"))
    job = wait_for(host.run("boss", "q", on_event=seen))
    reports = {event.tool_name: event.report for event in seen.of("finishToolCall") if event.report}
    assert (reports["leaf"].outcome, reports["leaf"].steps, reports["leaf"].effects) == ("failed", 3, 1)
    assert (reports["mid"].outcome, reports["mid"].steps, reports["mid"].effects) == ("completed", 4, 2)
    shown = provider.requests[-1].messages[-1].contents[0].contents
    assert [part.text for part in shown] == ["mid done", "(mid: completed in 4 steps, 2 calls with an effect)"]
    assert wait_for(host.audit.replay(job.id)).ok


def test_work_that_should_have_an_effect_and_has_none_is_marked_for_caller_and_person(bench: Bench) -> None:
    script = {
        "[[boss]]": [tool("idle", {"query": "L"}), tool("busy", {"query": "L"}), text("joined")],
        "[[idle]]": [tool("readTextFile", {"path": "none.txt"}), text("all written!")],
        "[[busy]]": [tool("writeTextFile", {"path": "a.txt", "text": "x"}), text("written")],
    }
    experts = (expert("boss", delegates=("idle", "busy"), effects=True), expert("idle", effects=True), expert("busy"))
    provider, seen = ScriptedProvider(script), Seen()
    host = bench.host(provider, *experts)
    job = wait_for(host.run("boss", "q", on_event=seen))
    assert (job.status, job.without_effect) == ("completed", False)
    first = next(event for event in seen.of("finishToolCall") if event.tool_name == "idle")
    assert first.report.without_effect
    assert "check before you rely on its result" in first.report.text
    assert [event.without_effect for event in seen.of("finishRun")] == [True, False, False]
    alone = wait_for(host.run("idle", "q"))
    assert alone.without_effect
    assert wait_for(host.audit.replay(job.id)).ok


def test_a_long_result_is_head_and_tail_and_all_of_it_is_read_by_the_blobs_name(bench: Bench) -> None:
    long = "".join(f"line {number}\n" for number in range(1000))

    def play(request):
        if request.expert_key == "helper":
            return text(long)
        if request.step == 1:
            return tool("helper", {"query": "q"})
        if request.step == 2:
            shown = request.messages[-1].contents[0].contents[0].text
            assert len(shown) < 700
            assert shown.startswith("line 0\n")
            assert shown.endswith("line 999\n")
            name = shown.split("path ")[1].split(" ")[0]
            return tool("readTextFile", {"path": name, "from": 500, "to": 502})
        return text(request.messages[-1].contents[0].contents[0].text)

    host = bench.host(ScriptedProvider(play), expert("boss", delegates=("helper",)), expert("helper", result_limit=500))
    job = wait_for(host.run("boss", "q"))
    assert job.status == "completed", job.error
    assert "line 500\\nline 501" in (job.text or "")
    assert wait_for(host.audit.verify(job.id)).ok


# --- whatever happens in between --------------------------------------------------------------------------------

TEAM = (
    expert("boss", delegates=("left", "right"), output=CITY),
    expert("left", returns=CITY),
    expert("right", returns=CITY),
)
SCRIPT = {
    "[[boss]]": [turn(tool("left", {"query": "L"}), tool("right", {"query": "R"})), text("no"), text(FITS)],
    "[[left]]": [text("no"), text(FITS)],
    "[[right]]": [tool("todo", {"newTodos": ["t"]}), text("no"), text("no again")],
}


async def live(bench: Bench, point: CrashPoint | None) -> int:
    """Run one process, which starts or continues the Job and crashes at the point. Return the number of appends."""
    async with bench.host(SCRIPT, *TEAM, wrap=lambda inner: CrashingStorage(inner, point)) as host:
        storage = host.storage
        assert isinstance(storage, CrashingStorage)
        with until_it_crashes():
            if (bench.workspace / "begun").exists():
                await host.resume("job")
            else:
                await host.run("boss", "go", job_id="job")
        return storage.appends


async def outcome(bench: Bench) -> None:
    async with bench.host(SCRIPT, *TEAM) as host:
        job = await host.job("job")
        assert (job.status, job.result, job.total_steps) == ("completed", json.loads(FITS), 3 + 2 + 3)
        rejected = {
            run.expert_key: sum(line.event.type == "rejectResult" for line in await host.events(run.id))
            for run in job.runs
        }
        assert rejected == {"boss": 1, "left": 1, "right": 2}
        assert (await host.audit.verify("job")).ok
        assert (await host.audit.replay("job")).ok


@pytest.mark.sweep
def test_a_process_that_dies_at_any_write_corrects_a_result_once_all_the_same(tmp_path: Path) -> None:
    def folder(name: str) -> Bench:
        (tmp_path / name).mkdir()
        return Bench(tmp_path / name, "sqlite:perstack/state.db")

    appends = wait_for(live(folder("plain"), None))
    assert appends > 10
    for point in sampled(crash_points(appends)):
        one = folder(f"{point.moment}-{point.append}")
        wait_for(live(one, point))
        if point != CrashPoint("before", 1):
            (one.workspace / "begun").touch()
        if point.append < appends or point.moment == "before":
            wait_for(live(one, None))
        wait_for(outcome(one))


def test_a_question_between_the_wrong_result_and_its_correction_changes_nothing(bench: Bench) -> None:
    script = [text("no"), tool("askUser", {"question": "How many?"}), text(FITS)]
    host = bench.host(script, expert("a", ask=True, output=CITY))
    job = wait_for(host.run("a", "q"))
    assert job.status == "stoppedByInteractiveTool"
    job = wait_for(host.answer("128000", job_id=job.id))
    assert job.result == json.loads(FITS)
    assert wait_for(host.audit.replay(job.id)).ok


def test_a_correction_is_within_the_budget(bench: Bench) -> None:
    script = [text("no", usage=(1000, 10)), text(FITS, usage=(1000, 10))]
    host = bench.host(script, expert("a", output=CITY), max_tokens=9000)
    first = wait_for(host.run("a", "q"))
    assert (first.status, first.usage.total_tokens) in (("completed", 2020), ("stoppedByBudget", 1010))


def test_the_query_stays_in_the_context_when_a_correction_follows_it(bench: Bench) -> None:
    host = bench.host([text("first"), text("no"), text("no"), text(FITS)], expert("a", output=CITY))
    job = wait_for(host.run("a", "one"))
    assert job.status == "stoppedByError"
    job = wait_for(host.continue_job("a", "two", job_id=job.id))
    assert job.result == json.loads(FITS)
    run = wait_for(host.jobs.load(job.id)).runs[job.coordinator_run_id]
    kept = [text_of(run.messages[index].contents) for index in sorted(always_kept(run))]
    assert (kept[0], kept[1], len(kept)) == ("one", "two", 3)
    assert kept[2].startswith("Your result was not taken")


def test_a_redacted_job_with_a_json_result_can_be_read_and_continued(bench: Bench) -> None:
    host = bench.host([text("no"), text(FITS), text(FITS)], expert("a", output=CITY))
    job = wait_for(host.run("a", "q"))
    for seq, line in enumerate(wait_for(host.events(job.runs[0].id)), 1):
        if line.event.type in ("startRun", "rejectResult", "finishRun"):
            place = f"{job.runs[0].id}-{seq}"
            wait_for(redact_event(host.storage, place, reason="private", by=By(user="alice", door="cli")))
    again = wait_for(host.job(job.id))
    assert (again.status, again.result, again.text) == ("completed", None, "[redacted]")
    assert wait_for(host.audit.verify(job.id)).ok
    assert wait_for(host.continue_job("a", "more", job_id=job.id)).result == json.loads(FITS)


def test_a_schema_that_cannot_be_used_is_refused_before_anything_is_written(bench: Bench) -> None:
    host = bench.host([text("x")], expert("a"), output={"type": "object", "$ref": "file:///etc/passwd"})
    with pytest.raises(UsageError, match="file:///etc/passwd, which is not in it"):
        wait_for(host.run("a", "q", job_id="job"))
    assert wait_for(host.jobs.list()).jobs == ()
