"""The stages that decide a call: a verdict only gets stricter, the log says whose it is, and a replay repeats it."""

from __future__ import annotations

import pytest
from approval_jobs import ME, answer, append, exec_, files, forge, hosted, messages_of
from hosts import Bench, Seen, results, wait_for

from perstack.config.grants import ProjectGrants
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.skills import DecidedCall
from perstack.core.runs.call_stages import Judge, StagedCall, StageVerdict, after_stage, with_verdict
from perstack.core.runs.state import Run
from perstack.engine.runs import call_stages
from perstack.testing.scripted import text, turn

HELD = StageVerdict("ask", "held back")
BARRED = StageVerdict("deny", "barred")


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(tmp_path, "file:perstack")


def with_stage(monkeypatch: pytest.MonkeyPatch, verdict: StageVerdict, *names: str) -> None:
    """Add a stage that has this verdict on calls of these tools."""

    def judge(run: Run, call: StagedCall) -> StageVerdict | None:
        return verdict if call.part.tool_name in names else None

    added: Judge = judge
    monkeypatch.setattr(call_stages, "STAGES", (*call_stages.STAGES, call_stages.pure_stage("guard", added)))


def test_a_stage_denies_a_call_and_the_log_names_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    files(bench, "a.txt")
    with_stage(monkeypatch, BARRED, "appendTextFile")
    seen, host = Seen(), hosted(bench, [turn(append("a.txt"), exec_("true")), text("ok")], rules=None)
    assert wait_for(host.run("a", "q", job_id="job", on_event=seen)).status == "completed"
    denied, allowed = seen.of("callTools")[0].calls
    assert (denied.kind, denied.stage, denied.decider, denied.rule) == ("refused", "guard", "guard", "barred")
    assert (allowed.stage, allowed.decider) == ("", "")
    assert "Not run: barred denies this call." in results(seen)[0]
    assert (bench.workspace / "a.txt").read_text() == ""
    replayed = wait_for(host.audit.replay("job"))
    assert (messages_of(replayed), replayed.unchecked) == ([], ())
    assert wait_for(host.audit.verify("job")).ok


def test_a_replay_finds_a_verdict_of_an_added_stage_that_is_hidden_or_invented(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(bench, "a.txt")
    with_stage(monkeypatch, BARRED, "appendTextFile")
    host = hosted(bench, [turn(append("a.txt"), exec_("true")), text("ok")], rules=Permissions(deny=("exec(zzz)",)))
    wait_for(host.run("a", "q", job_id="job"))

    def hide(event: dict) -> None:
        if event["type"] == "callTools":
            event["calls"][0] = {k: v for k, v in event["calls"][0].items() if k not in ("kind", "stage", "rule")}

    def invent(event: dict) -> None:
        if event["type"] == "callTools":
            event["calls"][0] |= {"kind": "refused", "stage": "guard", "rule": "barred"}
            event["calls"][1] |= {"kind": "refused", "stage": "guard", "rule": "barred", "problem": "Not run."}

    def blame_arguments(event: dict) -> None:
        if event["type"] == "callTools":
            event["calls"][1] = {k: v for k, v in event["calls"][1].items() if k not in ("kind", "stage", "rule")}
            del event["calls"][0]["stage"], event["calls"][0]["rule"]

    forge(bench, hide)
    assert messages_of(wait_for(host.audit.replay("job"))) == [
        "call call_0_0 of appendTextFile is recorded as allowed, where the stage 'guard' makes it denied (barred)"
    ]
    forge(bench, invent)
    assert messages_of(wait_for(host.audit.replay("job"))) == [
        "call call_0_1 of exec is recorded as denied by the stage 'guard', where the stage 'guard' lets it pass"
    ]
    forge(bench, blame_arguments)
    assert messages_of(wait_for(host.audit.replay("job"))) == [
        "call call_0_0 of appendTextFile is recorded as refused for its arguments, which fit"
    ]


def test_only_a_person_settles_the_question_of_an_added_stage(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with_stage(monkeypatch, HELD, "exec")
    ProjectGrants(bench.workspace).add("exec(true)", ME)
    script, rules = [exec_("true"), exec_("true"), text("ok")], Permissions(ask=("exec",))
    seen = Seen()
    host = hosted(bench, script, rules=rules, open=False, attended=True)
    job = wait_for(host.run("a", "q", job_id="job", on_event=seen))
    (asked,) = seen.of("requestApproval")
    assert (asked.stage, asked.rule, asked.offers) == ("guard", "held back", ())
    job = answer(host, job, "always")
    assert job.asking is not None  # for the second call: an approval for the Job lifts questions of rules
    assert answer(host, job, "yes").status == "completed"
    replayed = wait_for(host.audit.replay("job"))
    assert (messages_of(replayed), replayed.unchecked) == ([], ())

    def rename(event: dict) -> None:
        if event["type"] == "requestApproval":
            event.pop("stage", None)

    forge(bench, rename)
    assert "says the stage that asks '', where an earlier" in messages_of(wait_for(host.audit.replay("job")))[0]


def test_unattended_the_question_of_an_added_stage_is_a_no(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with_stage(monkeypatch, HELD, "exec")
    seen, host = Seen(), hosted(bench, [exec_("true"), text("ok")], unattended=True)
    assert wait_for(host.run("a", "q", job_id="job", on_event=seen)).status == "completed"
    assert [(event.decision, event.by.door) for event in seen.of("decideApproval")] == [("no", "unattended")]


PLAIN = DecidedCall(id="1", tool_name="exec", skill_name="base")
ASKED = PLAIN.model_copy(update={"asks": True, "rule": "exec"})
APPROVED = PLAIN.model_copy(update={"approved_by": "job-1-4", "rule": "exec"})


@pytest.mark.parametrize("before", [PLAIN, APPROVED, ASKED])
@pytest.mark.parametrize("verdict", [None, HELD, BARRED])
def test_a_verdict_only_gets_stricter(before: DecidedCall, verdict: StageVerdict | None) -> None:
    after = after_stage("guard", before, with_verdict(before, verdict))
    assert after.strictness >= before.strictness
    assert after.decider == (before.decider if verdict is None else "guard")
    assert after_stage("guard", after, PLAIN) == after  # a milder verdict changes nothing


def test_what_the_first_stages_decide_adds_nothing_to_the_log() -> None:
    refused = DecidedCall(id="1", tool_name="none", kind="refused", problem="There is no tool.")
    assert refused.decider == "catalogue"
    assert refused.model_copy(update={"skill_name": "base"}).decider == "arguments"
    assert (ASKED.decider, APPROVED.decider, PLAIN.decider) == ("rules", "rules", "")
    for decided in (refused, ASKED, APPROVED, PLAIN):
        assert after_stage(decided.decider, PLAIN, decided).stage == ""
    nameless = after_stage("arguments", PLAIN, refused)  # of a tool without a skill
    assert (nameless.stage, nameless.decider) == ("arguments", "arguments")
