"""Permission rules in a Run: what they deny, what a person approves of, and that it is that call alone which runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hosting import Bench, Seen, expert, results, wait_for

from perstack.core.by import By
from perstack.core.cloudevents import CloudEvent
from perstack.core.definitions import PluginSkill
from perstack.core.job import JobSummary
from perstack.core.policy.permissions import Permissions
from perstack.core.policy.widening import Widening
from perstack.engine import driver as driving
from perstack.engine.redact import redact_event
from perstack.errors import Conflict, NotFound, UsageError
from perstack.host import Host
from perstack.testing.crashing_storage import Crash, CrashingStorage, CrashPoint, crash_points
from perstack.testing.scripted import text, tool, turn

ME = By(user="ann", door="python")
ASK_WRITE = Permissions(ask=("appendTextFile",))


def append(name: str, line: str = "x\n"):
    return tool("appendTextFile", {"path": name, "text": line})


def exec_(*words: str):
    return tool(
        "exec", {"command": words[0], "args": [*words[1:]], "cwd": "", "env": {}, "stdout": True, "stderr": True}
    )


def hosted(bench: Bench, script, *experts, rules: Permissions | None = None, **overrides) -> Host:
    """A Host whose project has these rules."""
    host = bench.host(script, *(experts or (expert("a"),)), **overrides)
    host.use(host.project.model_copy(update={"permissions": rules}))
    return host


def files(bench: Bench, *names: str) -> None:
    for name in names:
        (bench.workspace / name).write_text("")


def answer(host: Host, job: JobSummary, said: str, **more) -> JobSummary:
    assert job.asking is not None
    return wait_for(host.answer(said, question_id=job.asking.id, by=ME, **more))


def test_a_denied_call_does_nothing_and_the_model_sees_which_rule_denies_it(bench: Bench) -> None:
    files(bench, "a.txt")
    seen, rules = Seen(), Permissions(deny=("appendTextFile(a.*)",))
    job = wait_for(hosted(bench, [append("a.txt"), text("ok")], rules=rules).run("a", "q", on_event=seen))
    assert job.status == "completed"
    assert (bench.workspace / "a.txt").read_text() == ""
    assert results(seen) == [
        "Not run: the rule appendTextFile(a.*) of perstack.toml [permissions].deny denies this call."
        " Do not try to get round it."
    ]
    (decided,) = seen.of("callTools")[0].calls
    assert (decided.kind, decided.rule) == ("refused", "appendTextFile(a.*)")
    assert wait_for(hosted(bench, []).replay(job.id)).ok


def test_an_asked_call_waits_while_the_others_of_its_reply_run_and_runs_once_it_is_approved(bench: Bench) -> None:
    files(bench, "a.txt", "b.txt")
    rules, seen = Permissions(ask=("appendTextFile(a.txt)",)), Seen()
    script = [turn(append("a.txt"), append("b.txt"), tool("todo", {"newTodos": ["t"]})), text("ok")]
    job = wait_for(hosted(bench, script, rules=rules).run("a", "q", job_id="job", on_event=seen))
    assert (job.status, job.pause_reason) == ("stoppedByInteractiveTool", "human_approval")
    assert ((bench.workspace / "a.txt").read_text(), (bench.workspace / "b.txt").read_text()) == ("", "x\n")
    asking = job.asking
    assert asking is not None
    assert (asking.expert_key, asking.tool_name, asking.rule) == ("a", "appendTextFile", "appendTextFile(a.txt)")
    assert asking.args == {"path": "a.txt", "text": "x\n"}
    host = hosted(bench, script, rules=rules)
    done = answer(host, job, "yes", on_event=seen)
    assert done.status == "completed"
    assert (bench.workspace / "a.txt").read_text() == "x\n"
    (request,), (decided,), (began,) = (
        seen.of(kind) for kind in ("requestApproval", "decideApproval", "startToolCall")
    )
    assert request.call_digest == decided.call_digest == began.call_digest == asking.call_digest
    assert (decided.decision, decided.by) == ("once", ME)
    types = seen.types()
    assert types.index("requestApproval") > types.index("finishToolCall")
    assert types.index("decideApproval") < types.index("startToolCall")
    assert wait_for(host.replay("job")).ok
    assert wait_for(host.verify("job")).ok


def test_a_no_is_a_result_with_the_persons_words(bench: Bench) -> None:
    files(bench, "a.txt")
    seen, script = Seen(), [append("a.txt"), text("ok")]
    job = wait_for(hosted(bench, script, rules=ASK_WRITE).run("a", "q"))
    done = answer(hosted(bench, script, rules=ASK_WRITE), job, "no: write to b.txt", on_event=seen)
    assert (done.status, (bench.workspace / "a.txt").read_text()) == ("completed", "")
    assert results(seen) == ["Not run: a person did not approve this call: write to b.txt"]


def test_always_holds_for_the_same_arguments_and_no_others(bench: Bench) -> None:
    files(bench, "a.txt", "b.txt")
    script = [append("a.txt"), append("a.txt"), append("b.txt"), text("ok")]
    seen = Seen()
    job = wait_for(hosted(bench, script, rules=ASK_WRITE).run("a", "q", job_id="job"))
    job = answer(hosted(bench, script, rules=ASK_WRITE), job, "always", on_event=seen)
    assert (bench.workspace / "a.txt").read_text() == "x\nx\n"
    assert job.asking is not None
    assert job.asking.args["path"] == "b.txt"
    assert (bench.workspace / "b.txt").read_text() == ""
    (decided,) = seen.of("decideApproval")
    covered = seen.of("callTools")[0].calls[0]
    assert (covered.asks, covered.approved_by) == (False, decided.id)
    assert wait_for(hosted(bench, []).replay("job")).ok


def test_always_with_a_rule_that_is_offered_holds_for_what_it_names(bench: Bench) -> None:
    script = [exec_("echo", "hi", "you"), exec_("echo", "hi", "me"), exec_("echo", "ho"), text("ok")]
    rules = Permissions(ask=("exec",))
    job = wait_for(hosted(bench, script, rules=rules).run("a", "q"))
    assert job.asking is not None
    assert job.asking.offers == ("exec(echo hi *)",)
    host, seen = hosted(bench, script, rules=rules), Seen()
    with pytest.raises(UsageError, match=r"say yes, always, always: exec\(echo hi \*\), no"):
        answer(host, job, "always: exec(*)")
    job = answer(host, job, "always: exec(echo hi *)", on_event=seen)
    assert len(results(seen)) == 2
    assert job.asking is not None
    assert job.asking.args["args"] == ["ho"]
    assert seen.of("decideApproval")[0].rule == "exec(echo hi *)"


def test_no_approval_opens_what_a_rule_denies(bench: Bench) -> None:
    script = [exec_("echo", "hi", "you"), exec_("echo", "hi", "rm"), text("ok")]
    rules, seen = Permissions(ask=("exec",), deny=("exec(echo hi rm)",)), Seen()
    job = wait_for(hosted(bench, script, rules=rules).run("a", "q"))
    answer(hosted(bench, script, rules=rules), job, "always: exec(echo hi *)", on_event=seen)
    assert "denies this call" in results(seen)[-1]


TEAM = {
    "[[boss]]": [tool("hand", {"query": "go"}), text("done")],
    "[[hand]]": [append("a.txt"), text("written")],
}


def test_a_delegates_call_is_held_to_the_rules_above_it_stops_the_job_and_gets_the_answer(bench: Bench) -> None:
    files(bench, "a.txt")
    boss = expert("boss", delegates=("hand",), permissions=ASK_WRITE)
    seen = Seen()
    job = wait_for(hosted(bench, TEAM, boss, expert("hand")).run("boss", "q", job_id="job", on_event=seen))
    assert (job.pause_reason, job.asking and job.asking.expert_key) == ("human_approval", "hand")
    done = answer(hosted(bench, TEAM, boss, expert("hand")), job, "yes", on_event=seen)
    assert (done.status, (bench.workspace / "a.txt").read_text()) == ("completed", "x\n")
    assert [event.run_id for event in seen.of("decideApproval")] == ["job-2"]
    hand = next(event for event in seen.of("startRun") if event.expert_key == "hand")
    assert [one.expert for one in hand.permissions] == ["boss"]


def test_of_two_delegates_that_wait_each_gets_its_own_answer(bench: Bench) -> None:
    files(bench, "a.txt", "b.txt")
    script = {
        "[[boss]]": [turn(tool("left", {"query": "go"}), tool("right", {"query": "go"})), text("done")],
        "[[left]]": [append("a.txt"), text("left")],
        "[[right]]": [append("b.txt"), text("right")],
    }
    experts = (expert("boss", delegates=("left", "right")), expert("left"), expert("right"))
    job = wait_for(hosted(bench, script, *experts, rules=ASK_WRITE).run("boss", "q", job_id="job"))
    said = {"a.txt": "no", "b.txt": "always"}
    for _ in said:
        assert job.asking is not None
        job = answer(hosted(bench, script, *experts, rules=ASK_WRITE), job, said[str(job.asking.args["path"])])
    assert job.status == "completed"
    assert [(bench.workspace / name).read_text() for name in said] == ["", "x\n"]
    host = hosted(bench, script)
    assert wait_for(host.replay("job")).ok
    assert wait_for(host.verify("job")).ok


def test_an_experts_tasks_are_ruled_on_like_its_files(bench: Bench) -> None:
    skill = PluginSkill(name="memory", plugin="@perstack/execution-memory")
    keeper, seen = expert("a").model_copy(update={"skills": (skill,)}), Seen()
    host = hosted(bench, [tool("listTasks", {}), text("ok")], keeper, rules=Permissions(deny=("memory/*",)))
    wait_for(host.run("a", "q", on_event=seen))
    assert "the rule memory/* of perstack.toml [permissions].deny denies this call" in results(seen)[0]


def test_a_delegate_starts_when_a_person_approves_and_not_when_a_rule_denies_it(bench: Bench) -> None:
    files(bench, "a.txt")
    experts, seen = (expert("boss", delegates=("hand",)), expert("hand")), Seen()
    rules = Permissions(ask=("delegate/hand",))
    job = wait_for(hosted(bench, TEAM, *experts, rules=rules).run("boss", "q", on_event=seen))
    assert (job.pause_reason, len(job.runs)) == ("human_approval", 1)
    done = answer(hosted(bench, TEAM, *experts, rules=rules), job, "yes", on_event=seen)
    assert (done.status, len(done.runs)) == ("completed", 2)
    denied = wait_for(hosted(bench, TEAM, *experts, rules=Permissions(deny=("delegate/*",))).run("boss", "q"))
    assert (denied.status, len(denied.runs)) == ("completed", 1)


def test_with_nobody_there_it_is_denied_and_the_model_sees_why(bench: Bench) -> None:
    files(bench, "a.txt")
    seen = Seen()
    host = hosted(bench, [append("a.txt"), text("ok")], rules=ASK_WRITE, unattended=True)
    assert wait_for(host.run("a", "q", job_id="job", on_event=seen)).status == "completed"
    assert (bench.workspace / "a.txt").read_text() == ""
    assert results(seen) == ["Not run: it needs a person's approval (appendTextFile), and nobody is there to give it."]
    assert seen.of("decideApproval")[0].by.door == "unattended"
    assert wait_for(host.replay("job")).ok


def test_the_loops_own_tools_are_never_asked_about(bench: Bench) -> None:
    script = [turn(tool("todo", {"newTodos": ["t"]}), tool("clearTodo")), tool("attemptCompletion", {"result": "r"})]
    host = hosted(bench, script, rules=Permissions(default="deny", ask=("*",)))
    assert wait_for(host.run("a", "q")).text == "r"


def test_an_approval_names_its_question_and_is_a_persons(bench: Bench) -> None:
    files(bench, "a.txt", "b.txt")
    script = [append("a.txt"), append("b.txt"), text("ok")]
    first = wait_for(hosted(bench, script, rules=ASK_WRITE).run("a", "q", job_id="job"))
    host = hosted(bench, script, rules=ASK_WRITE)
    with pytest.raises(UsageError, match="an approval names the question that it answers"):
        wait_for(host.answer("yes", job_id="job"))
    with pytest.raises(UsageError, match="which no event from outside gives"):
        wait_for(host.signal("job", CloudEvent(specversion="1.0", source="s", id="1", type="t", data="yes")))
    second = answer(host, first, "no")
    assert second.asking is not None
    with pytest.raises(Conflict, match="has been answered already"):
        answer(host, first, "yes")  # it was for a.txt, and b.txt is asked by now
    assert [(bench.workspace / name).read_text() for name in ("a.txt", "b.txt")] == ["", ""]


def test_an_approved_path_that_leads_elsewhere_by_now_is_not_written_to(bench: Bench) -> None:
    files(bench, "a.txt", "b.txt")
    script, seen = [append("a.txt"), text("ok")], Seen()
    job = wait_for(hosted(bench, script, rules=ASK_WRITE).run("a", "q"))
    (bench.workspace / "a.txt").unlink()
    (bench.workspace / "a.txt").symlink_to("b.txt")
    answer(hosted(bench, script, rules=ASK_WRITE), job, "yes", on_event=seen)
    assert (bench.workspace / "b.txt").read_text() == ""
    assert results(seen) == ["Not run: this is not the call that was approved, or its paths lead elsewhere by now."]


def test_an_old_question_is_decided_otherwise_in_a_branch(bench: Bench) -> None:
    files(bench, "a.txt")
    script = [append("a.txt"), text("ok")]
    job = wait_for(hosted(bench, script, rules=ASK_WRITE).run("a", "q", job_id="job"))
    host = hosted(bench, script, rules=ASK_WRITE)
    answer(host, job, "no")
    place = next(
        e.id for e in [line.event for line in wait_for(host.events("job-1"))] if e.type == "stopRunByInteractiveTool"
    )
    assert wait_for(host.answer("yes", resume_from=place)).status == "completed"
    assert (bench.workspace / "a.txt").read_text() == "x\n"


def test_a_branch_at_an_old_question_is_held_to_the_rules_of_its_day(bench: Bench) -> None:
    files(bench, "a.txt")
    script, seen = [append("a.txt"), text("ok")], Seen()
    job = wait_for(hosted(bench, script, rules=ASK_WRITE).run("a", "q", job_id="job"))
    answer(hosted(bench, script, rules=ASK_WRITE), job, "no")
    host = hosted(bench, script, rules=Permissions(deny=("appendTextFile",)))
    events = [line.event for line in wait_for(host.events("job-1"))]
    place = next(event.id for event in events if event.type == "stopRunByInteractiveTool")
    wait_for(host.answer("yes", resume_from=place, on_event=seen))
    assert (bench.workspace / "a.txt").read_text() == ""
    assert "denies this call" in results(seen)[0]
    assert wait_for(host.replay("job")).ok


def test_a_call_whose_arguments_were_redacted_is_not_run_by_a_later_yes(bench: Bench) -> None:
    files(bench, "a.txt")
    script, seen = [append("a.txt"), text("ok")], Seen()
    job = wait_for(hosted(bench, script, rules=ASK_WRITE).run("a", "q", job_id="job", on_event=seen))
    host = hosted(bench, script, rules=ASK_WRITE)
    for kind in ("finishGeneration", "requestApproval"):
        wait_for(redact_event(host.storage, seen.of(kind)[0].id, reason="test", by=ME))
    job = wait_for(host.job("job"))
    assert job.asking is not None
    assert (job.asking.args, job.asking.rule) == ({}, "[redacted]")
    done = answer(host, job, "yes")
    assert (done.status, (bench.workspace / "a.txt").read_text()) == ("completed", "")
    assert wait_for(host.verify("job")).ok


@pytest.mark.parametrize("kind", ["allow", "ask"])
def test_a_protected_file_is_opened_by_a_rule_that_names_it_for_that_call(bench: Bench, kind: str) -> None:
    (bench.workspace / ".env").write_text("KEY=1")
    script, seen = [tool("readTextFile", {"path": ".env"}), text("ok")], Seen()
    wait_for(hosted(bench, script, rules=Permissions(allow=("readTextFile",))).run("a", "q", on_event=seen))
    assert "KEY=1" not in results(seen)[-1]
    rules = Permissions(**{kind: ("readTextFile(.env)",)})
    job = wait_for(hosted(bench, script, rules=rules).run("a", "q", on_event=seen))
    if kind == "ask":
        answer(hosted(bench, script, rules=rules), job, "yes", on_event=seen)
    assert "KEY=1" in results(seen)[-1]


# --- rules of another day -----------------------------------------------------------------------------------------


def stopped(bench: Bench, rules: Permissions | None, *turns, **more) -> JobSummary:
    """A Job `job` that was interrupted by its step limit after its first step."""
    host = hosted(bench, [tool("todo", {"newTodos": ["t"]}), *turns], rules=rules, max_steps=1, **more)
    job = wait_for(host.run("a", "q", job_id="job"))
    assert job.status == "stoppedByMaxSteps"
    return job


def resumed(bench: Bench, rules: Permissions | None, *turns, seen: Seen | None = None, **more) -> JobSummary:
    host = hosted(bench, [tool("todo", {"newTodos": ["t"]}), *turns], rules=rules, **more)
    return wait_for(host.resume("job", max_steps=9, on_event=seen))


def test_a_resumed_run_keeps_its_rules_though_the_file_has_none_any_more(bench: Bench) -> None:
    files(bench, "a.txt")
    seen, turns = Seen(), (append("a.txt"), text("ok"))
    stopped(bench, Permissions(deny=("appendTextFile",)), *turns)
    resumed(bench, None, *turns, seen=seen)
    assert "denies this call" in results(seen)[0]
    assert not seen.of("resumeRun")[0].permissions


def test_a_resumed_run_is_held_to_a_file_that_has_become_stricter(bench: Bench) -> None:
    files(bench, "a.txt")
    seen, turns = Seen(), (append("a.txt"), text("ok"))
    stopped(bench, None, *turns)
    resumed(bench, Permissions(deny=("appendTextFile",)), *turns, seen=seen)
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
    assert wait_for(host.replay("job")).ok


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
    # the fourth write is of the result: the call had its effect
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
    stopped(bench, rules, *turns)
    resumed(bench, rules, *turns, seen=seen, widening=widening, widened_by=ME)
    assert (bench.workspace / "a.txt").read_text() == "x\n"
    assert [("denies this call" in one) for one in results(seen)] == [False, True, True]
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


# --- what it costs ------------------------------------------------------------------------------------------------


def test_without_rules_nothing_is_ruled_on_and_nothing_is_stored(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    files(bench, "a.txt")
    asked: list[object] = []
    monkeypatch.setattr(driving.Rulings, "of", lambda *args: asked.append(args))
    seen = Seen()
    host = hosted(bench, [append("a.txt"), text("ok")])
    assert wait_for(host.run("a", "q", on_event=seen)).status == "completed"
    assert asked == []
    assert all(word not in line for line in seen.lines for word in (b"permissions", b'"asks"', b'"rule"', b'"opens"'))


def test_what_decides_is_imported_only_where_there_are_rules() -> None:
    code = (
        "import sys, perstack.host; print([name for name in sys.modules if name.startswith('perstack.core.policy.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "perstack.core.policy.permissions" in done.stdout
    assert "perstack.core.policy.decide" not in done.stdout


# --- crashes ------------------------------------------------------------------------------------------------------

CRASHING = {
    "[[boss]]": [turn(append("boss.txt"), tool("hand", {"query": "go"})), text("done")],
    "[[hand]]": [turn(append("hand.txt"), append("free.txt")), text("written")],
}
ASKING = Permissions(ask=("appendTextFile(boss.txt)", "appendTextFile(hand.txt)"))
NAMES = ("boss.txt", "hand.txt", "free.txt")


async def live(bench: Bench, point: CrashPoint | None) -> int:
    """One process: begins the Job or goes on with it, approves of what is asked, and crashes at the point."""
    experts = (expert("boss", delegates=("hand",)), expert("hand"))
    host = bench.host(CRASHING, *experts, wrap=lambda inner: CrashingStorage(inner, point))
    host.use(host.project.model_copy(update={"permissions": ASKING}))
    async with host:
        storage = host.storage
        assert isinstance(storage, CrashingStorage)
        try:
            try:
                job = await host.job("job")
            except NotFound:
                job = await host.run("boss", "go", job_id="job")
            else:
                # a call that had begun, and may have had its effect, is not repeated
                if job.asking is None and job.status != "completed":
                    calls = {call.key: "done" for call in await host.unsettled("job")}
                    job = await host.resume("job", settle=calls)
            while job.asking is not None:
                job = await host.answer("yes", question_id=job.asking.id, by=ME)
            assert job.status == "completed"
        except BaseExceptionGroup as error:
            if error.split(Crash)[0] is None:
                raise
        except Crash:
            pass
        return storage.appends


def test_killed_at_any_write_each_approved_call_has_run_once_and_no_other(tmp_path: Path) -> None:
    def fresh(name: str) -> Bench:
        folder = tmp_path / name
        folder.mkdir()
        bench = Bench(folder, "file:perstack")
        files(bench, *NAMES)
        return bench

    appends = wait_for(live(fresh("plain"), None))
    assert appends > 8
    for number, point in enumerate(crash_points(appends)):
        bench = fresh(str(number))
        wait_for(live(bench, point))
        lost = _begun(bench)
        wait_for(live(bench, None))
        written = {name: (bench.workspace / name).read_text().count("x") for name in NAMES}
        # a call that has begun, and not yet had its effect when the process dies, is the one thing that nobody knows
        expected = {"boss.txt": 1, "hand.txt": 1, "free.txt": 1}
        assert all(expected[name] - written[name] in (0, lost.count(name)) for name in NAMES), (point, written, lost)
        host = bench.host(CRASHING)
        approvals, starts = [], []
        for run_id in ("job-1", "job-2"):
            events = [line.event for line in wait_for(host.events(run_id))]
            approvals += [(run_id, e.tool_call_id) for e in events if e.type == "decideApproval"]
            starts += [(run_id, e.tool_call_id) for e in events if e.type == "startToolCall"]
        assert sorted(approvals) == sorted(set(approvals)) == sorted(starts), (point, approvals, starts)
        assert wait_for(host.replay("job")).ok, point
        assert wait_for(host.verify("job")).ok, point


def _begun(bench: Bench) -> list[str]:
    """The files of calls that have begun and have no result, which died before they were written to."""

    async def look() -> list[str]:
        async with bench.host(CRASHING) as host:
            try:
                calls = await host.unsettled("job")
            except NotFound:
                return []
            return [json.loads(call.args)["path"] for call in calls]

    return wait_for(look())
