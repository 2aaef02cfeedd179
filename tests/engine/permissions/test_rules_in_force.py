"""Rules for a Job that continues after they changed: the stricter of the recorded and the current rules holds."""

from __future__ import annotations

import pytest
from approval_jobs import ASK_WRITE, ME, TEAM, answer, append, files, hosted
from hosts import Bench, Seen, expert, results, wait_for

from perstack.core.definitions.permissions import Permissions, Widening
from perstack.core.jobs.summary import JobSummary
from perstack.testing.crashing_storage import Crash, CrashingStorage, CrashPoint
from perstack.testing.scripted import text, tool


def run_one_step(bench: Bench, rules: Permissions | None, *turns, **more) -> JobSummary:
    """Run a Job `job` that its step limit interrupts after its first step."""
    host = hosted(bench, [tool("todo", {"newTodos": ["t"]}), *turns], rules=rules, max_steps=1, **more)
    job = wait_for(host.run("a", "q", job_id="job"))
    assert job.status == "stoppedByMaxSteps"
    return job


def resume_job(bench: Bench, rules: Permissions | None, *turns, seen: Seen | None = None, **more) -> JobSummary:
    host = hosted(bench, [tool("todo", {"newTodos": ["t"]}), *turns], rules=rules, **more)
    return wait_for(host.resume("job", max_steps=9, on_event=seen))


def test_a_resumed_run_keeps_its_rules_though_the_file_has_none_any_more(bench: Bench) -> None:
    files(bench, "a.txt")
    seen, turns = Seen(), (append("a.txt"), text("ok"))
    run_one_step(bench, Permissions(deny=("appendTextFile",)), *turns)
    resume_job(bench, None, *turns, seen=seen)
    assert "denies this call" in results(seen)[0]
    assert not seen.of("resumeRun")[0].permissions


def test_a_resumed_run_is_held_to_a_file_that_has_become_stricter(bench: Bench) -> None:
    files(bench, "a.txt")
    seen, turns = Seen(), (append("a.txt"), text("ok"))
    run_one_step(bench, None, *turns)
    resume_job(bench, Permissions(deny=("appendTextFile",)), *turns, seen=seen)
    assert "denies this call" in results(seen)[0]
    assert len(seen.of("resumeRun")[0].permissions) == 1


def test_what_waits_for_approval_is_denied_if_the_file_denies_it_by_then(bench: Bench) -> None:
    files(bench, "a.txt")
    seen, script = Seen(), [append("a.txt"), text("ok")]
    job = wait_for(hosted(bench, script, rules=ASK_WRITE).run("a", "q", job_id="job"))
    host = hosted(bench, script, rules=Permissions(deny=("appendTextFile",)))
    answer(host, job, "yes", on_event=seen)
    assert (bench.workspace / "a.txt").read_text() == ""
    assert "denies this call" in results(seen)[0]
    assert wait_for(host.audit.replay("job")).ok


def test_what_a_delegate_waits_for_is_denied_if_the_expert_above_it_may_not_do_it_any_more(bench: Bench) -> None:
    files(bench, "a.txt")
    hand, seen = expert("hand", permissions=ASK_WRITE), Seen()
    job = wait_for(hosted(bench, TEAM, expert("boss", delegates=("hand",)), hand).run("boss", "q", job_id="job"))
    strict = expert("boss", delegates=("hand",), permissions=Permissions(deny=("appendTextFile",)))
    done = answer(hosted(bench, TEAM, strict, hand), job, "yes", on_event=seen)
    assert (done.status, (bench.workspace / "a.txt").read_text()) == ("completed", "")
    assert "[experts.boss.permissions].deny denies this call" in results(seen)[0]
    assert [len(event.permissions) for event in seen.of("resumeRun")] == [1, 1]


def test_a_call_that_may_have_had_its_effect_is_told_as_that_though_it_is_denied_by_now(bench: Bench) -> None:
    files(bench, "a.txt")
    script, seen = [append("a.txt"), text("ok")], Seen()
    # the fourth write has the result: the call had its effect
    dying = bench.host(script, expert("a"), wrap=lambda inner: CrashingStorage(inner, CrashPoint("before", 4)))

    async def die() -> None:
        async with dying:
            with pytest.raises(Crash):
                await dying.run("a", "q", job_id="job")

    wait_for(die())
    assert (bench.workspace / "a.txt").read_text() == "x\n"
    wait_for(hosted(bench, script, rules=Permissions(deny=("appendTextFile",))).resume("job", on_event=seen))
    assert "It may have had its effect" in results(seen)[0]


def test_only_what_is_named_is_widened_and_who_did_it_is_recorded(bench: Bench) -> None:
    files(bench, "a.txt", "b.txt")
    rules = Permissions(default="deny", deny=("deleteFile", "appendTextFile(b.txt)"))
    turns = (append("a.txt"), append("b.txt"), tool("deleteFile", {"path": "a.txt"}), text("ok"))
    seen, widening = Seen(), Widening(source="wide.toml", allow=("appendTextFile",))
    run_one_step(bench, rules, *turns)
    resume_job(bench, rules, *turns, seen=seen, widening=widening, widened_by=ME)
    assert (bench.workspace / "a.txt").read_text() == "x\n"
    assert [("denies this call" in result) for result in results(seen)] == [False, True, True]
    (event,) = seen.of("widenPermissions")
    assert (event.widening, event.by) == (widening, ME)


def test_what_was_widened_stays_so_in_a_later_resume_and_for_delegates(bench: Bench) -> None:
    files(bench, "a.txt")
    rules = Permissions(deny=("appendTextFile",))
    experts = (expert("boss", delegates=("hand",)), expert("hand", permissions=Permissions(ask=("appendTextFile",))))
    script = {**TEAM, "[[boss]]": [tool("todo", {"newTodos": ["t"]}), *TEAM["[[boss]]"]]}
    widening = Widening(source="wide.toml", allow=("appendTextFile",))
    host = hosted(bench, script, *experts, rules=rules, max_steps=1, widening=widening)
    assert wait_for(host.run("boss", "q", job_id="job")).status == "stoppedByMaxSteps"
    seen = Seen()
    done = wait_for(hosted(bench, script, *experts, rules=rules).resume("job", max_steps=9, on_event=seen))
    assert (done.status, (bench.workspace / "a.txt").read_text()) == ("completed", "x\n")
    assert not seen.of("widenPermissions")


def test_a_continued_job_keeps_the_rules_that_it_had(bench: Bench) -> None:
    files(bench, "a.txt")
    seen = Seen()
    wait_for(hosted(bench, [text("ok")], rules=Permissions(deny=("appendTextFile",))).run("a", "q", job_id="job"))
    host = hosted(bench, [text("ok"), append("a.txt"), text("ok")])
    wait_for(host.continue_job("a", "more", job_id="job", on_event=seen))
    assert "denies this call" in results(seen)[0]
