"""`replay` asks the recorded rules about the recorded calls again: a decision that they do not make is found."""

from __future__ import annotations

import json

import pytest
from approval_jobs import TEAM, answer, append, exec_, files, forge, hosted, messages_of
from hosts import Bench, Seen, expert, wait_for

from perstack.core.definitions.permissions import Permissions
from perstack.host import Host
from perstack.testing.scripted import text, tool, turn


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(tmp_path, "file:perstack")


def replace_text(event: dict, kind: str, old: str, new: str) -> None:
    """A text in an event of this kind in the place of another."""
    if event["type"] == kind:
        changed = json.loads(json.dumps(event).replace(old, new))
        event.clear()
        event.update(changed)


def run(bench: Bench, script, *experts, rules: Permissions, **more) -> Host:
    host = hosted(bench, script, *experts, rules=rules, **more)
    job = wait_for(host.run(experts[0].key if experts else "a", "q", job_id="job"))
    while job.asking is not None:
        job = answer(host, job, "always")
    assert job.status == "completed"
    replayed = wait_for(host.audit.replay("job"))
    assert (messages_of(replayed), replayed.unchecked) == ([], ())
    assert replayed.checked.rulings > 0
    return host


@pytest.mark.parametrize(("which", "makes"), [("deny", "denied"), ("ask", "waiting for approval")])
def test_a_call_that_ran_though_the_rules_in_force_do_not_let_it_is_found(bench: Bench, which: str, makes: str) -> None:
    files(bench, "a.txt")
    host = run(bench, [append("a.txt"), text("ok")], rules=Permissions(**{which: ("appendTextFile(zzz)",)}))
    forge(bench, lambda event: replace_text(event, "startRun", "(zzz)", "(a.txt)"))
    assert messages_of(wait_for(host.audit.replay("job"))) == [
        f"call call_0_0 of appendTextFile is recorded as allowed, but the rules in force make it {makes}"
        " (appendTextFile(a.txt))"
    ]


def test_a_delegates_call_is_held_to_the_rules_that_it_had(bench: Bench) -> None:
    files(bench, "a.txt")
    boss = expert("boss", delegates=("hand",), permissions=Permissions(deny=("appendTextFile(zzz)",)))
    host = run(bench, TEAM, boss, expert("hand"), rules=Permissions(deny=("exec(zzz)", "delegate/zzz")))
    forge(bench, lambda event: replace_text(event, "startRun", "appendTextFile(zzz)", "appendTextFile(a.txt)"), "job-2")
    assert "recorded as allowed" in messages_of(wait_for(host.audit.replay("job")))[0]
    forge(bench, lambda event: replace_text(event, "startRun", "delegate/zzz", "delegate/hand"))
    assert messages_of(wait_for(host.audit.replay("job")))[0].startswith("call call_0_0 of hand is recorded as allowed")


def test_an_approval_for_the_job_that_nobody_gave_is_found(bench: Bench) -> None:
    files(bench, "a.txt", "b.txt")
    script = [append("a.txt"), append("a.txt"), text("ok")]
    host = run(bench, script, rules=Permissions(ask=("appendTextFile",)))
    approvals = [line.event.id for line in wait_for(host.events("job-1")) if line.event.type == "decideApproval"]
    forge(
        bench,
        lambda event: replace_text(event, "callTools", f'"approvedBy": "{approvals[0]}"', '"approvedBy": "job-1-1"'),
    )
    assert "recorded as approved for the whole Job" in messages_of(wait_for(host.audit.replay("job")))[0]


def test_a_protected_path_that_no_rule_opens_is_found(bench: Bench) -> None:
    files(bench, "a.txt")
    host = run(bench, [append("a.txt"), text("ok")], rules=Permissions(deny=("exec",)))
    forge(bench, lambda event: replace_text(event, "callTools", '"skillName"', '"opens": [".env"], "skillName"'))
    assert messages_of(wait_for(host.audit.replay("job"))) == [
        "call call_0_0 of appendTextFile is recorded with .env opened, but no rule in force names it"
    ]


def test_a_command_line_is_taken_apart_again(bench: Bench) -> None:
    host = run(bench, [exec_("sh", "-c", "true; echo a"), text("ok")], rules=Permissions(deny=("exec(zzz)",)))
    forge(bench, lambda event: replace_text(event, "startRun", "exec(zzz)", "exec(echo *)"))
    assert "make it denied (exec(echo *))" in messages_of(wait_for(host.audit.replay("job")))[0]


def test_where_paths_led_is_recorded_so_that_a_link_that_has_gone_makes_no_difference(bench: Bench) -> None:
    (bench.workspace / "real").mkdir()
    files(bench, "real/a.txt", "b.txt")
    (bench.workspace / "dir").symlink_to("real")
    rules = Permissions(
        default="deny", deny=("appendTextFile(dir/**)",), allow=("appendTextFile(real/*)", "appendTextFile(b.txt)")
    )
    path = str(bench.workspace / "b.txt")
    seen, host = Seen(), hosted(bench, [turn(append("dir/a.txt"), append(path)), text("ok")], rules=rules)
    wait_for(host.run("a", "q", job_id="job", on_event=seen))
    assert [one.ways for one in seen.of("callTools")[0].calls] == [{"dir/a.txt": ("real/a.txt",)}, {path: ("b.txt",)}]
    (bench.workspace / "dir").unlink()
    replayed = wait_for(host.audit.replay("job"))
    assert (messages_of(replayed), replayed.unchecked) == ([], ())


def test_of_a_plugin_that_is_not_there_nothing_is_said(bench: Bench) -> None:
    files(bench, "a.txt")
    host = run(bench, [append("a.txt"), text("ok")], rules=Permissions(deny=("exec",)))
    skill = {"type": "pluginSkill", "name": "mine", "plugin": "gone"}

    def change(event: dict) -> None:
        if event["type"] == "startRun":
            event["expert"]["skills"] = [skill]
        replace_text(event, "callTools", '"@perstack/base"', '"mine"')

    forge(bench, change)
    replayed = wait_for(host.audit.replay("job"))
    assert messages_of(replayed) == []
    assert [(one.kind, one.count) for one in replayed.unchecked] == [("rules", 1)]


def test_widened_rules_and_those_of_a_later_day_are_those_in_force(bench: Bench) -> None:
    files(bench, "a.txt", "b.txt")
    turns = [append("a.txt"), append("b.txt"), text("ok")]
    rules = Permissions(deny=("appendTextFile(a.txt)",))
    wait_for(hosted(bench, turns, rules=rules, max_steps=1).run("a", "q", job_id="job"))
    host = hosted(bench, turns, rules=Permissions(deny=("appendTextFile(b.txt)",)))
    wait_for(host.resume("job", max_steps=9))
    assert messages_of(wait_for(host.audit.replay("job"))) == []
    forge(bench, lambda event: replace_text(event, "resumeRun", "(b.txt)", "(zzz)"))
    assert wait_for(host.audit.replay("job")).findings == ()  # stricter than rules about files make it: not certain
    forge(bench, lambda event: replace_text(event, "resumeRun", "(zzz)", "(b.txt)"))

    def allowed(event: dict) -> None:
        if event["type"] == "callTools":
            event["calls"] = [{**one, "kind": "tool"} for one in event["calls"]]

    forge(bench, allowed)
    assert "but the rules in force make it denied" in messages_of(wait_for(host.audit.replay("job")))[0]


# Refusals without a rule: by the catalogue of tools, and by the check of arguments.

TODO = tool("todo", {"newTodos": ["tea"]})


def refused_run(bench: Bench, call, **more) -> Host:
    files(bench, "a.txt")
    host = run(bench, [turn(TODO, append("a.txt"), call), text("ok")], rules=Permissions(deny=("exec",)), **more)
    assert wait_for(host.audit.verify("job")).ok
    return host


def change_call(number: int, **changed: object):
    """Return a change of the decision on one call of a reply; None removes a key."""

    def change(event: dict) -> None:
        if event["type"] == "callTools":
            call = {**event["calls"][number], **changed}
            event["calls"][number] = {key: value for key, value in call.items() if value is not None}

    return change


WRONG = tool("appendTextFile", {"path": "a.txt"})
OUT = "Not run."


@pytest.mark.parametrize(
    ("call", "number", "changed", "finding"),
    [
        (TODO, 1, {"kind": "refused", "problem": OUT}, "refused for its arguments, which fit"),
        (TODO, 1, {"kind": "refused", "problem": OUT, "skillName": None}, "there is no such tool, and the model was"),
        (TODO, 0, {"kind": "refused", "problem": OUT, "rule": "exec"}, "recorded as denied, but the rules in force"),
        (TODO, 1, {"stage": "hooks"}, "decided by the stage 'hooks', and there is none of that name"),
        (TODO, 1, {"stage": "arguments"}, "recorded as allowed, and a stage is named for it"),
        (WRONG, 2, {"kind": None}, "recorded as allowed, and its arguments are wrong"),
        (WRONG, 2, {"skillName": None}, "there is no such tool, and the model was offered it"),
        (WRONG, 2, {"stage": "catalogue"}, "there is no such tool, and the model was offered it"),
        (WRONG, 2, {"rule": "exec"}, "recorded as denied by the stage 'rules', and its arguments are wrong"),
        (exec_("ls"), 2, {"rule": None}, "refused for its arguments, which fit"),
        (exec_("ls"), 2, {"rule": None, "skillName": None}, "there is no such tool, and the model was offered it"),
        (exec_("ls"), 2, {"stage": "arguments"}, "refused for its arguments, which fit"),
        (tool("exec", "no object"), 2, {"kind": None}, "recorded as allowed, and its arguments are no JSON object"),
    ],
)
def test_a_decision_that_another_stage_is_said_to_have_made_is_found(
    bench: Bench, call, number: int, changed: dict[str, object], finding: str
) -> None:
    host = refused_run(bench, call)
    forge(bench, change_call(number, **changed))
    assert finding in messages_of(wait_for(host.audit.replay("job")))[0]


@pytest.mark.parametrize("call", [WRONG, tool("none", {}), exec_("ls"), tool("exec", "no object")])
def test_what_the_stages_refuse_is_refused_again_and_nothing_is_left_unchecked(bench: Bench, call) -> None:
    refused_run(bench, call)


def test_without_the_tools_that_the_model_was_offered_a_refusal_is_unchecked(bench: Bench) -> None:
    host = refused_run(bench, WRONG)

    def change(event: dict) -> None:
        event.pop("toolsDigest", None)
        event.pop("requestDigest", None)

    forge(bench, change)
    replayed = wait_for(host.audit.replay("job"))
    assert messages_of(replayed) == []
    assert "of tools that the log does not describe" in [one.message for one in replayed.unchecked]
