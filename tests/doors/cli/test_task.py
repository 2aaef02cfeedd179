"""`perstack task`: what one process pauses, another answers and a third resumes."""

from __future__ import annotations

import json
import signal

import pytest
from processes import start, wait_until
from terminal import ASKING, SECONDS, Terminal, reply


def task(terminal: Terminal, *words: str) -> dict:
    result = terminal.call("task", *words, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def run_apart(terminal: Terminal, *words: str) -> dict:
    """Run a `task` command in its own process, and return its output."""
    result = terminal.run("task", *words, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_a_task_that_one_process_creates_is_approved_by_another_and_resumed_by_a_third(terminal: Terminal) -> None:
    run_apart(terminal, "create", "deploy", "--state", '{"built": true}', "--agent", "me", "--start")
    paused = run_apart(terminal, "pause", "deploy", "--reason", "human_approval", "--message", "Deploy?")
    assert (paused["status"], paused["pauseReason"]) == ("paused", "human_approval")
    answered = run_apart(terminal, "answer", "deploy", '{"approved": true}')
    assert (answered["status"], answered["answered"]) == ("paused", True)
    second = terminal.run("task", "answer", "deploy", "no")
    assert (second.code, second.err) == (1, "error: task deploy has been answered already\n")
    resumed = run_apart(terminal, "resume", "deploy")
    assert (resumed["status"], resumed["state"], resumed["input"]) == ("running", {"built": True}, {"approved": True})
    assert run_apart(terminal, "complete", "deploy", "--result", "live")["result"] == "live"


def test_a_task_is_shown_and_listed_in_tables(terminal: Terminal) -> None:
    assert terminal.call("task", "list").out == "no such tasks\n"
    task(terminal, "create", "tidy", "--name", "Tidy up", "--agent", "me", "--state", '{"left": ["b"]}', "--start")
    task(terminal, "checkpoint", "tidy", "--name", "half", "--state", '{"left": []}')
    task(terminal, "pause", "tidy", "--reason", "human_input", "--message", "Which first?")
    task(terminal, "create", "other")
    output = terminal.call("task", "get", "tidy").out
    task(terminal, "create", "build", "--start")
    waits = task(terminal, "pause", "build", "--reason", "external_dependency", "--waiting-for", "the nightly build")
    assert waits["token"].startswith("build.")
    assert "the nightly build" in terminal.call("task", "list").out
    for words in ("Tidy up", "paused: human_input", "Which first?", '{"left": []}', "tidy-3 (1 in all)"):
        assert words in output
    listed = terminal.call("task", "list", "--status", "paused", "--agent", "me").out.splitlines()
    assert listed[0].split() == ["task", "agent", "status", "checkpoints", "when", "about"]
    assert len(listed) == 2
    assert "Which first?" in listed[1]
    assert "half" in terminal.call("task", "checkpoints", "tidy").out


def test_where_the_definition_cannot_be_used_tasks_are_shown_and_none_is_changed(terminal: Terminal) -> None:
    """It says which anchor is sent what changes: without that, a change would be sent nowhere."""
    config = terminal.workspace / "perstack.toml"
    config.write_text('[audit]\nanchor = "file:away/heads.jsonl"\n')
    task(terminal, "create", "deploy")
    config.write_text('[audit]\nanchor = "file:away/heads.jsonl"\n[audit\n')
    result = terminal.call("task", "list")
    assert (result.code, "deploy" in result.out) == (0, True)
    assert result.err.startswith("warning: perstack.toml cannot be used, so Jobs are searched for in file:perstack; ")
    for words in (("start", "deploy"), ("create", "other"), ("delete", "deploy")):
        refused = terminal.call("task", *words)
        assert (refused.code, refused.out) == (2, "")
        assert "perstack.toml:3: is not TOML" in refused.err
    assert len(terminal.call("task", "list", "--json").out.splitlines()) == 1


def test_a_task_whose_checkpoint_is_late_is_marked(terminal: Terminal) -> None:
    made = task(terminal, "create", "slow", "--checkpoint-interval", "1ms", "--start")
    assert made["checkpointDueAt"] == made["updatedAt"] + 1
    task(terminal, "create", "quick", "--checkpoint-interval", "1h", "--start")
    kept = task(terminal, "checkpoint", "quick")
    assert kept["checkpointDueAt"] == kept["checkpointedAt"] + 3_600_000
    late = [line.split()[0] for line in terminal.call("task", "list").lines if "running: checkpoint late" in line]
    assert late == ["slow"]
    assert "running: checkpoint late" in terminal.call("task", "get", "slow").out
    assert "checkpointDueAt" not in task(terminal, "pause", "slow", "--reason", "checkpoint")


def test_a_text_as_the_reason_is_a_question_that_a_person_answers_with_any_text(terminal: Terminal) -> None:
    terminal.project('[experts.a]\ninstruction = "x"\n')
    asked = "Waiting for code review approval"
    for name in ("review", "other"):
        task(terminal, "create", name, "--start")
        paused = task(terminal, "pause", name, "--reason", asked)
        assert (paused["pauseReason"], paused["pauseMessage"]) == ("human_input", asked)
    assert terminal.call("inbox").out.count(asked) == 2
    result = terminal.call("answer", "review", "Fine, but rename b.py")
    assert result.code == 0, result.err
    assert task(terminal, "resume", "review")["input"] == "Fine, but rename b.py"
    assert task(terminal, "resume", "other")["status"] == "running"
    assert asked not in terminal.call("inbox").out


def test_going_back_to_a_checkpoint_keeps_the_later_ones(terminal: Terminal) -> None:
    task(terminal, "create", "t", "--start")
    for number in (1, 2, 3):
        task(terminal, "checkpoint", "t", "--state", json.dumps({"n": number}), "--name", f"c{number}")
    task(terminal, "fail", "t", "broken")
    assert task(terminal, "resume", "t", "--checkpoint", "c1")["state"] == {"n": 1}
    task(terminal, "checkpoint", "t", "--state", '{"n": 4}')
    lines = terminal.call("task", "checkpoints", "t", "--json").out.splitlines()
    assert [json.loads(line)["state"]["n"] for line in lines] == [1, 2, 3, 4]
    missing = terminal.call("task", "resume", "t", "--checkpoint", "c9")
    assert missing.code == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("get", "nosuch"), "there is no task nosuch"),
        (("create", "a/b"), "not a valid task id"),
        (("create", "t"), "task t exists already, and is running: continue it"),
        (("start", "t"), "allowed now: checkpoint, pause, complete, fail, cancel, delete"),
        (("resume", "t"), "task t is running, so it cannot be resumed"),
        (("checkpoint", "t", "--state", "[1]"), "--state must be a JSON object"),
        (("checkpoint", "t", "--state", "{"), "--state is not JSON"),
        (("checkpoint", "t", "--state", "@nosuch.json"), "nosuch.json: no such file"),
        (("pause", "t", "--reason", "scheduled_wait"), "--reason scheduled_wait needs --resume-at"),
        (("pause", "t", "--reason", "scheduled_wait", "--resume-at", "soon"), "--resume-at soon: give a moment"),
        (("complete", "t", "--result", '{"a":'), "--result is not JSON"),
        (("list", "--older-than", "long"), "--older-than long: give a duration such as 90s, 5m, 2h or 7d"),
        (("list", "--after", "nonsense"), "is not a cursor of the list"),
        (("cancel", "t", "--expected-version", "1"), "task t has version 2, not 1"),
        (("pause", "t"), "--reason is missing: Why the task waits: human_approval, "),
        (("pause", "t", "--reason", "human_aproval"), "did you mean 'human_approval'?"),
        (("pause", "t", "--depends-on", "t"), "that would be a cycle, t -> t"),
        (("delete",), "name a TASK, or select tasks with options such as --status completed --older-than 30d"),
        (("delete", "t", "--status", "running"), "takes either a TASK, or options that select tasks"),
        (("delete", "--archived", "--expected-version", "1"), "--expected-version is for one TASK"),
    ],
)
def test_mistakes_are_told_in_one_line(terminal: Terminal, words: tuple[str, ...], says: str) -> None:
    task(terminal, "create", "t", "--start")
    result = terminal.call("task", *words)
    assert result.code in (1, 2)
    assert says in result.err
    assert len(result.err.splitlines()) == 1


def test_a_state_may_be_a_mebibyte_and_no_more(terminal: Terminal) -> None:
    task(terminal, "create", "t", "--start")
    big = terminal.workspace / "state.json"
    big.write_text(json.dumps({"x": "y" * (1 << 20)}))
    refused = terminal.call("task", "checkpoint", "t", "--state", "@state.json")
    assert refused.code == 2
    assert "may have 1,048,576" in refused.err


def test_run_due_wakes_an_expert_and_says_what_it_did(terminal: Terminal) -> None:
    terminal.project('[experts.fixer]\ninstruction = "[[fixer]] Fix."\n', fixer=[reply("Fixed.")])
    task(terminal, "create", "fix", "--agent", "fixer", "--start")
    task(terminal, "pause", "fix", "--reason", "scheduled_wait", "--resume-at", "1")
    result = terminal.call("task", "run-due", "--provider", "scripted", "--json")
    assert result.code == 0, result.err
    told = json.loads(result.out)
    assert (told["taskId"], told["did"], told["status"]) == ("fix", "worked", "completed")
    job = json.loads(terminal.call("jobs", "--json").out)
    assert (job["id"], job["status"]) == (told["jobId"], "completed")
    assert terminal.call("task", "run-due", "--provider", "scripted").out == ""


def deletable(terminal: Terminal) -> None:
    """Create two completed tasks, one of them needed by another task, and a running one."""
    for name in ("done", "needed", "runs"):
        task(terminal, "create", name, "--start")
    for name in ("done", "needed"):
        task(terminal, "complete", name)
    task(terminal, "create", "waits", "--depends-on", "needed", "--depends-on", "runs")


def task_ids(terminal: Terminal) -> list[str]:
    return sorted(item["taskId"] for item in json.loads(terminal.call("task", "list", "--json").out)["tasks"])


def test_tasks_are_deleted_in_bulk_but_for_those_that_others_wait_for(terminal: Terminal) -> None:
    deletable(terminal)
    unsure = terminal.run("task", "delete", "--status", "completed")
    assert (unsure.code, unsure.out) == (2, "")
    assert unsure.err == "error: 2 tasks would be deleted permanently: see them with task list, and add --yes\n"
    assert (
        terminal.call("task", "delete", "--status", "completed", "--older-than", "30d", "--yes").out
        == "no such tasks\n"
    )
    done = terminal.call("task", "delete", "--status", "completed", "--older-than", "0s", "--yes")
    assert (done.code, done.out) == (1, "deleted 1 task\n")
    assert done.err == (
        "kept: task needed cannot be deleted, since task waits waits for it: resume or delete waits first\n"
    )
    assert task_ids(terminal) == ["needed", "runs", "waits"]
    task(terminal, "resume", "waits")
    result = terminal.call("task", "delete", "--status", "completed", "--yes", "--json")
    assert (result.code, json.loads(result.out)) == (0, {"deleted": ["needed"], "kept": {}})


@pytest.mark.parametrize(
    ("says", "stay"),
    [
        ("y", ["needed", "runs", "waits"]),
        ("maybe\nok", ["needed", "runs", "waits"]),
        ("n", ["done", "needed", "runs", "waits"]),
        ("", ["done", "needed", "runs", "waits"]),
    ],
)
def test_a_person_is_asked_before_tasks_are_deleted_in_bulk(terminal: Terminal, says: str, stay: list[str]) -> None:
    deletable(terminal)
    seen = terminal.look("task", "delete", "--status", "completed", types=f"{says}\n")
    assert "Delete 2 tasks permanently? [y/N]" in seen
    assert ("nothing was deleted" in seen) is ("done" in stay)
    assert ("answer yes or no" in seen) is ("maybe" in says)
    assert task_ids(terminal) == stay


def test_what_a_task_waits_for_is_shown_with_what_became_of_it(terminal: Terminal) -> None:
    deletable(terminal)
    assert "waits for runs (running)" in terminal.call("task", "list").out
    task(terminal, "fail", "runs", '{"message": "no disk", "errno": 28}')
    output = terminal.call("task", "get", "waits").out
    assert "depends on  needed, runs" in output
    assert "held up     waits for runs (failed: no disk)" in output
    assert "held up" not in terminal.call("task", "get", "runs").out
    (item,) = terminal.call("inbox", "--json").events
    assert (item["id"], item["text"]) == ("waits", "waits for runs (failed: no disk)")
    assert item["next"] == "perstack task retry runs; perstack task resume waits continues without them"
    assert "help" in terminal.call("inbox").out


def test_what_a_paused_task_asks_is_a_line_for_the_shell(terminal: Terminal) -> None:
    terminal.project('[experts.fixer]\ninstruction = "x"\n')
    task(terminal, "create", "deploy", "--start")
    line = "test -f built && echo '{\"ok\": true}' | cat"
    paused = task(terminal, "pause", "deploy", "--reason", "external_dependency", "--command", line)
    assert paused["waitingFor"]["command"] == ["sh", "-c", line]
    assert f"asks     {line}" in terminal.call("task", "get", "deploy").out
    assert terminal.call("task", "run-due", "--provider", "scripted").out == ""
    (terminal.workspace / "built").touch()
    assert terminal.call("task", "run-due", "--provider", "scripted").out == "deploy: resumed, now running\n"
    assert task(terminal, "get", "deploy")["input"] == {"ok": True}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_run_due_watches_until_ctrl_c(terminal: Terminal, number: signal.Signals) -> None:
    terminal.project('[experts.fixer]\ninstruction = "[[fixer]] Fix."\n', fixer=[reply("Fixed.")])
    process = start(terminal, "task", "run-due", "--watch", "--interval", "10ms")
    assert process.stdout is not None
    for name, agent, told in (("one", "me", "resumed, now running"), ("two", "fixer", "worked, now completed")):
        task(terminal, "create", name, "--agent", agent, "--start")
        task(terminal, "pause", name, "--reason", "scheduled_wait", "--resume-at", "+20ms")
        assert process.stdout.readline() == f"{name}: {told}\n"
    process.send_signal(number)
    assert process.communicate(timeout=SECONDS) == ("", "")
    assert process.returncode == 0


def test_run_due_is_interrupted_and_the_next_goes_on_with_the_same_job(terminal: Terminal) -> None:
    late = {**reply("late"), "delay_ms": 100_000}
    terminal.project('[experts.fixer]\ninstruction = "[[fixer]] Fix."\n', fixer=[late])
    task(terminal, "create", "fix", "--agent", "fixer", "--start")
    task(terminal, "pause", "fix", "--reason", "scheduled_wait", "--resume-at", "1")
    process = start(terminal, "task", "run-due")
    logs = "*/runs/*/events.jsonl"
    wait_until(
        lambda: any('"startGeneration"' in log.read_text() for log in terminal.jobs().glob(logs)), "the Job to begin"
    )
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    job = task(terminal, "get", "fix")["jobId"]
    terminal.script(fixer=[reply("Fixed.")])
    assert terminal.call("task", "run-due", "--provider", "scripted").out == "fix: worked, now completed\n"
    assert task(terminal, "get", "fix")["jobId"] == job


def test_what_a_tasks_job_asks_is_told_and_the_answer_ends_the_task(terminal: Terminal) -> None:
    turns = [reply("", ("askUser", {"question": "Tea or coffee?"})), reply("Served.")]
    terminal.project(ASKING, guest=turns)
    task(terminal, "create", "serve", "--agent", "guest", "--start")
    task(terminal, "pause", "serve", "--reason", "scheduled_wait", "--resume-at", "1")
    asked = terminal.call("task", "run-due", "--provider", "scripted")
    assert (asked.code, asked.out) == (0, "serve: worked, now running, and asks: Tea or coffee?; see perstack inbox\n")
    assert terminal.call("task", "run-due", "--provider", "scripted").out == "", "it is told once"
    job = task(terminal, "get", "serve")["jobId"]
    (question,) = terminal.call("inbox", "--json").events
    assert (question["jobId"], question["text"]) == (job, "Tea or coffee?")
    assert terminal.call("answer", job, "Tea", "--provider", "scripted").code == 0
    assert terminal.call("task", "run-due", "--provider", "scripted").out == "serve: worked, now completed\n"
    assert task(terminal, "get", "serve")["result"] == "Served."


def test_an_experts_task_waits_on_until_its_job_can_begin(terminal: Terminal) -> None:
    terminal.project('[experts.fixer]\ninstruction = "[[fixer]] Fix."\n', fixer=[reply("Fixed.")])
    task(terminal, "create", "fix", "--agent", "fixer", "--start")
    task(terminal, "pause", "fix", "--reason", "human_approval")
    before = task(terminal, "answer", "fix", "yes")
    failed = terminal.call("task", "run-due", "--provider", "nosuch")
    assert (failed.code, failed.out, failed.err.count("\n")) == (1, "", 1)
    assert failed.err.startswith("fix: failed: no provider 'nosuch' is installed")
    assert task(terminal, "get", "fix") == before
    assert terminal.call("task", "run-due", "--provider", "scripted").out == "fix: worked, now completed\n"


def test_tasks_are_no_jobs(terminal: Terminal) -> None:
    task(terminal, "create", "t", "--start")
    assert "no Jobs" in terminal.call("jobs").out
    task(terminal, "delete", "t")
    assert terminal.call("task", "list").out == "no such tasks\n"
