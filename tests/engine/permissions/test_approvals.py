"""Permission rules in a Run: denied calls, calls a person approves, and that only the approved call runs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from approval_jobs import ASK_WRITE, ME, TEAM, answer, append, exec_, files, hosted
from hosts import Bench, Seen, expert, results, wait_for

from perstack.audit.redact import redact_event
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.skills import PluginSkill
from perstack.engine.runs import job_drive
from perstack.errors import Conflict, UsageError
from perstack.oversight.cloud_events import CloudEvent
from perstack.testing.scripted import text, tool, turn


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
    assert wait_for(hosted(bench, []).audit.replay(job.id)).ok


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
    assert wait_for(host.audit.replay("job")).ok
    assert wait_for(host.audit.verify("job")).ok


def test_a_call_runs_with_other_arguments_of_a_person(bench: Bench) -> None:
    files(bench, "a.txt", "b.txt")
    seen, script = Seen(), [append("a.txt"), text("ok")]
    job = wait_for(hosted(bench, script, rules=ASK_WRITE).run("a", "q", job_id="job"))
    assert job.asking is not None
    host, changed = hosted(bench, script, rules=ASK_WRITE), {"path": "b.txt", "text": "y"}
    with pytest.raises(UsageError, match="give it without a text"):
        wait_for(host.answer("yes", changed=changed, question_id=job.asking.id))
    with pytest.raises(UsageError, match="must name the question"):
        wait_for(host.answer(changed=changed, job_id="job"))
    done = wait_for(host.answer(changed=changed, question_id=job.asking.id, by=ME, on_event=seen))
    assert done.status == "completed"
    assert [(bench.workspace / name).read_text() for name in ("a.txt", "b.txt")] == ["", "y"]
    (change,), (decided,) = seen.of("changeCall"), seen.of("decideChangedCall")
    assert (change.args, change.by, decided.approved) == (changed, ME, True)
    assert wait_for(host.audit.replay("job")).ok
    assert wait_for(host.audit.verify("job")).ok


def test_a_delegate_gets_the_query_of_a_person(bench: Bench) -> None:
    files(bench, "a.txt")
    rules, experts = Permissions(ask=("delegate/hand",)), (expert("boss", delegates=("hand",)), expert("hand"))
    job = wait_for(hosted(bench, TEAM, *experts, rules=rules).run("boss", "q", job_id="job"))
    assert job.asking is not None
    host = hosted(bench, TEAM, *experts, rules=rules)
    done = wait_for(host.answer(changed={"query": "go gently"}, question_id=job.asking.id, by=ME))
    assert done.status == "completed"
    (start,) = [line.event for line in wait_for(host.events("job-2")) if line.event.type == "startRun"]
    assert start.query == "go gently"
    assert wait_for(host.audit.replay("job")).ok
    assert wait_for(host.audit.verify("job")).ok


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
    assert wait_for(hosted(bench, []).audit.replay("job")).ok


def test_always_with_a_rule_that_is_offered_holds_for_what_it_names(bench: Bench) -> None:
    script = [exec_("echo", "hi", "-n"), exec_("echo", "hi", "-n"), exec_("echo", "hi", "-n", "you"), text("ok")]
    rules = Permissions(ask=("exec",))
    job = wait_for(hosted(bench, script, rules=rules).run("a", "q"))
    assert job.asking is not None
    assert job.asking.offers == ("exec(echo hi -n)",)
    host, seen = hosted(bench, script, rules=rules), Seen()
    with pytest.raises(
        UsageError, match=r"say yes, always, always: exec\(echo hi -n\), always in this project: .*, no"
    ):
        answer(host, job, "always: exec(echo hi *)")
    job = answer(host, job, "always: exec(echo hi -n)", on_event=seen)
    assert len(results(seen)) == 2
    assert job.asking is not None
    assert job.asking.args["args"] == ["hi", "-n", "you"]
    assert seen.of("decideApproval")[0].rule == "exec(echo hi -n)"


def test_no_approval_opens_what_a_rule_denies(bench: Bench) -> None:
    script = [exec_("echo", "hi", "rm"), exec_("echo", "hi", "rm"), text("ok")]
    rules, seen = Permissions(ask=("exec",)), Seen()
    job = wait_for(hosted(bench, script, rules=rules).run("a", "q"))
    denies = Permissions(ask=("exec",), deny=("exec(echo hi rm)",))
    answer(hosted(bench, script, rules=denies), job, "always: exec(echo hi rm)", on_event=seen)
    assert "denies this call" in results(seen)[-1]


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
    assert [permission.expert for permission in hand.permissions] == ["boss"]


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
    assert wait_for(host.audit.replay("job")).ok
    assert wait_for(host.audit.verify("job")).ok


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
    assert wait_for(host.audit.replay("job")).ok


def test_the_loops_own_tools_are_never_asked_about(bench: Bench) -> None:
    script = [turn(tool("todo", {"newTodos": ["t"]}), tool("clearTodo")), tool("attemptCompletion", {"result": "r"})]
    host = hosted(bench, script, rules=Permissions(default="deny", ask=("*",)))
    assert wait_for(host.run("a", "q")).text == "r"


def test_an_approval_names_its_question_and_is_a_persons(bench: Bench) -> None:
    files(bench, "a.txt", "b.txt")
    script = [append("a.txt"), append("b.txt"), text("ok")]
    first = wait_for(hosted(bench, script, rules=ASK_WRITE).run("a", "q", job_id="job"))
    host = hosted(bench, script, rules=ASK_WRITE)
    with pytest.raises(UsageError, match="an approval must name the question that it answers"):
        wait_for(host.answer("yes", job_id="job"))
    with pytest.raises(UsageError, match="which an event from outside cannot give"):
        wait_for(host.jobs.signal("job", CloudEvent(specversion="1.0", source="s", id="1", type="t", data="yes")))
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
    assert wait_for(host.audit.replay("job")).ok


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
    assert wait_for(host.audit.verify("job")).ok


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


@pytest.mark.parametrize(("rule", "opened"), [("writeTextFile(.env)", True), ("writeTextFile", False), ("exec", False)])
def test_a_shells_redirection_is_opened_like_the_file_tool(bench: Bench, rule: str, opened: bool) -> None:
    seen, script = Seen(), [exec_("sh", "-c", "echo x > .env"), text("ok")]
    wait_for(hosted(bench, script, rules=Permissions(allow=(rule,))).run("a", "q", on_event=seen))
    assert (bench.workspace / ".env").exists() is opened
    assert ("off limits" in results(seen)[0]) is not opened


# --- what it costs ------------------------------------------------------------------------------------------------


def test_without_rules_nothing_is_ruled_on_and_nothing_is_stored(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    files(bench, "a.txt")
    asked: list[object] = []
    monkeypatch.setattr(job_drive.Rulings, "apply_to", lambda *args: asked.append(args))
    seen = Seen()
    host = hosted(bench, [append("a.txt"), text("ok")])
    assert wait_for(host.run("a", "q", on_event=seen)).status == "completed"
    assert asked == []
    assert all(word not in line for line in seen.lines for word in (b"permissions", b'"asks"', b'"rule"', b'"opens"'))


def test_what_decides_is_imported_only_where_there_are_rules() -> None:
    code = "import sys, perstack.host; print([name for name in sys.modules if name.startswith('perstack.core.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "perstack.core.definitions.permissions" in done.stdout
    assert "perstack.core.permissions.decide_call" not in done.stdout
