"""`replay` asks the recorded rules about the recorded calls again: a decision that they do not make is found."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from approval_jobs import TEAM, answer, append, exec_, files, hosted
from hosts import Bench, Seen, expert, wait_for

from perstack.audit.verification import Report
from perstack.core.base.chain import EMPTY_LOG, open_line, seal
from perstack.core.definitions.permissions import Permissions
from perstack.host import Host
from perstack.testing.scripted import text, turn


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(tmp_path, "file:perstack")


def forged(bench: Bench, change: Callable[[dict], None], run: str = "job-1") -> None:
    """A log with events changed and its chain made anew, as somebody might who knows how."""
    path = bench.workspace / "perstack" / "jobs" / "job" / "runs" / run / "events.jsonl"
    payloads = []
    for line in path.read_bytes().splitlines():
        event = json.loads(open_line(line).payload)
        change(event)
        payloads.append(json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode())
    lines, _ = seal(EMPTY_LOG, payloads)
    path.write_bytes(b"\n".join((*lines, b"")))


def messages_of(report: Report) -> list[str]:
    return [finding.message for finding in report.findings]


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
    forged(bench, lambda event: replace_text(event, "startRun", "(zzz)", "(a.txt)"))
    assert messages_of(wait_for(host.audit.replay("job"))) == [
        f"call call_0_0 of appendTextFile is recorded as allowed, where the rules in force make it {makes}"
        " (appendTextFile(a.txt))"
    ]


def test_a_delegates_call_is_held_to_the_rules_that_it_had(bench: Bench) -> None:
    files(bench, "a.txt")
    boss = expert("boss", delegates=("hand",), permissions=Permissions(deny=("appendTextFile(zzz)",)))
    host = run(bench, TEAM, boss, expert("hand"), rules=Permissions(deny=("exec(zzz)", "delegate/zzz")))
    forged(
        bench, lambda event: replace_text(event, "startRun", "appendTextFile(zzz)", "appendTextFile(a.txt)"), "job-2"
    )
    assert "recorded as allowed" in messages_of(wait_for(host.audit.replay("job")))[0]
    forged(bench, lambda event: replace_text(event, "startRun", "delegate/zzz", "delegate/hand"))
    assert messages_of(wait_for(host.audit.replay("job")))[0].startswith("call call_0_0 of hand is recorded as allowed")


def test_an_approval_for_the_job_that_nobody_gave_is_found(bench: Bench) -> None:
    files(bench, "a.txt", "b.txt")
    script = [append("a.txt"), append("a.txt"), text("ok")]
    host = run(bench, script, rules=Permissions(ask=("appendTextFile",)))
    approvals = [line.event.id for line in wait_for(host.events("job-1")) if line.event.type == "decideApproval"]
    forged(
        bench,
        lambda event: replace_text(event, "callTools", f'"approvedBy": "{approvals[0]}"', '"approvedBy": "job-1-1"'),
    )
    assert "recorded as approved for the whole Job" in messages_of(wait_for(host.audit.replay("job")))[0]


def test_a_protected_path_that_no_rule_opens_is_found(bench: Bench) -> None:
    files(bench, "a.txt")
    host = run(bench, [append("a.txt"), text("ok")], rules=Permissions(deny=("exec",)))
    forged(bench, lambda event: replace_text(event, "callTools", '"skillName"', '"opens": [".env"], "skillName"'))
    assert messages_of(wait_for(host.audit.replay("job"))) == [
        "call call_0_0 of appendTextFile is recorded with .env opened, which no rule in force names"
    ]


def test_a_command_line_is_taken_apart_again(bench: Bench) -> None:
    host = run(bench, [exec_("sh", "-c", "true; echo a"), text("ok")], rules=Permissions(deny=("exec(zzz)",)))
    forged(bench, lambda event: replace_text(event, "startRun", "exec(zzz)", "exec(echo *)"))
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

    forged(bench, change)
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
    forged(bench, lambda event: replace_text(event, "resumeRun", "(b.txt)", "(zzz)"))
    assert wait_for(host.audit.replay("job")).findings == ()  # stricter than rules about files make it: not certain
    forged(bench, lambda event: replace_text(event, "resumeRun", "(zzz)", "(b.txt)"))

    def allowed(event: dict) -> None:
        if event["type"] == "callTools":
            event["calls"] = [{**one, "kind": "tool"} for one in event["calls"]]

    forged(bench, allowed)
    assert "where the rules in force make it denied" in messages_of(wait_for(host.audit.replay("job")))[0]
