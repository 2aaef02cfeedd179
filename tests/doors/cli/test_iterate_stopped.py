"""Iterations that are stopped: by Ctrl-C, by SIGKILL, and by another process that drives them."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest
from iteration_project import SCRIPTED, list_series, project, report, scores
from processes import Attended, alive, start, wait_until
from terminal import SECONDS, Terminal, reply


def paused_at(terminal: Terminal, number: int) -> int:
    """Wait until the evaluator of an iteration runs, and return its process id."""
    reached = terminal.workspace / "reached"
    wait_until(lambda: reached.exists() and reached.read_text(), f"iteration {number} to be measured")
    pid = int(reached.read_text())
    reached.unlink()
    return pid


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_pauses_and_resume_goes_on_with_what_is_in_hand(terminal: Terminal, number: signal.Signals) -> None:
    project(terminal, scores(1, 5, 3), "maxIterations = 3")
    (terminal.workspace / "pause-2").touch()
    command = Attended(terminal, "iterate", "solo", "do it", "--id", "it")
    evaluator = paused_at(terminal, 2)
    command.process.send_signal(number)
    out, err = command.end()
    assert command.process.returncode == 130
    assert json.loads(out.splitlines()[-1])["type"] == "pauseSeries"
    paused = "paused after 1 iteration, the best is iteration 1 with 1: interrupted; continue with: perstack resume it"
    assert paused in err
    wait_until(lambda: not alive(evaluator), "the evaluator to end")
    summary = list_series(terminal)
    assert (summary["status"], summary["pauseReason"], summary["message"]) == ("paused", "checkpoint", "interrupted")
    resumed = terminal.call("resume", "it", *SCRIPTED)
    assert resumed.code == 0, resumed.err
    assert (terminal.workspace / "measured").read_text().split() == ["1", "2", "2", "3"]
    assert report(terminal)["bestIteration"] == 2


def test_ctrl_c_in_a_job_pauses_and_the_same_job_goes_on(terminal: Terminal) -> None:
    project(terminal, scores(1), "maxIterations = 1")
    terminal.script(solo=[{**reply("late"), "delay_ms": 100_000}])
    process = start(terminal, "iterate", "solo", "do it", "--id", "it")
    assert process.stdout is not None
    while '"startGeneration"' not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    terminal.script(solo=[reply("made")])
    assert terminal.call("resume", "it", *SCRIPTED).code == 0
    assert [path.name for path in terminal.jobs().iterdir()] == ["it-i1"]


TEAM = """
model = "{model}"
[experts.solo]
instruction = "{word} You lead."
delegates = ["helper"]
[experts.solo.skills.web]
type = "mcpSseSkill"
endpoint = "https://example.invalid/mcp"
headers = {{ Authorization = "Bearer secret-of-{word}" }}
lazyInit = true
[experts.solo.iterate]
evaluator = "exit 1"
maxIterations = 3
[experts.helper]
instruction = "{word} You help."
"""


def starts(terminal: Terminal) -> dict[str, tuple[str, str]]:
    """Return what each Run began with: the first word of its instruction, and its model."""
    starts_by_run: dict[str, tuple[str, str]] = {}
    for log in sorted(terminal.jobs().glob("*/runs/*/events.jsonl")):
        start = json.loads(log.read_text().splitlines()[0])
        starts_by_run[start["runId"]] = (start["expert"]["instruction"].split()[0], start["model"])
    return starts_by_run


def test_iterations_keep_the_definition_that_they_were_started_with_until_todays_is_asked_for(
    terminal: Terminal,
) -> None:
    turns = [reply("", ("helper", {"query": "help"})), reply("made")]
    terminal.project(TEAM.format(word="Old", model="old"), solo=turns, helper=[reply("helped")])
    failed = terminal.call("iterate", "solo", "do it", "--id", "it", "--provider", "scripted", "--max-steps", "9")
    assert failed.code == 1, failed.err
    assert "secret" not in (terminal.workspace / "perstack/iterations/it/runs/it-1/events.jsonl").read_text()
    score = 'evaluator = "echo \'{{\\"score\\": 1}}\'"'
    today = TEAM.replace('evaluator = "exit 1"', score).format(word="New", model="new")
    (terminal.workspace / "perstack.toml").write_text(today.replace("You help.", "You help. [[helper]]"))
    went = terminal.call("resume", "it", "--target", "1")
    assert went.code == 0, went.err
    assert starts(terminal) == {"it-i1-1": ("Old", "old"), "it-i1-2": ("Old", "old")}
    went = terminal.call("resume", "it", "--target", "2", "--max-iterations", "1")
    assert went.code == 0, went.err
    assert set(starts(terminal).values()) == {("Old", "old")}
    log = terminal.log_of("it-i2-1").read_text().splitlines()
    assert json.loads(log[0])["limits"]["maxSteps"] == 9
    went = terminal.call("resume", "it", "--target", "2", "--max-iterations", "2", "--definition", "current", *SCRIPTED)
    assert went.code == 0, went.err
    found = starts(terminal)
    assert {found[run] for run in ("it-i2-1", "it-i2-2", "it-i3-1", "it-i3-2")} == {("Old", "old")}
    assert {found[run] for run in ("it-i5-1", "it-i5-2", "it-i6-1", "it-i6-2")} == {("New", "new")}


def test_a_limit_that_was_raised_for_the_job_in_hand_stays_raised(terminal: Terminal) -> None:
    project(terminal, scores(1), "maxIterations = 1")
    think = reply("", ("think", {"thought": "hm"}))
    terminal.script(solo=[think, {"error": {"message": "no", "status": 400}}])
    stopped = terminal.call("iterate", "solo", "do it", "--id", "it", "--max-steps", "1", *SCRIPTED)
    assert stopped.code == 4, stopped.err
    assert terminal.call("resume", "it", "--max-steps", "3", *SCRIPTED).code == 1
    terminal.script(solo=[think, think, reply("made")])
    went = terminal.call("resume", "it", *SCRIPTED)
    assert went.code == 0, went.err


def test_a_wrong_setting_is_put_right_with_todays_definition(terminal: Terminal) -> None:
    project(terminal, scores(1), "maxIterations = 1")
    toml = terminal.workspace / "perstack.toml"
    right = toml.read_text()
    toml.write_text('model = "nosuch"\n' + right)
    terminal.script(solo=[{"error": {"message": "no such model", "status": 404}}])
    assert terminal.call("iterate", "solo", "do it", "--id", "it", "--provider", "scripted").code == 1
    toml.write_text('model = "right"\n' + right)
    terminal.script(solo=[reply("made")])
    went = terminal.call("resume", "it", "--definition", "current", "--provider", "scripted")
    assert went.code == 0, went.err
    start = json.loads(terminal.log_of("it-i1-1").read_text().splitlines()[0])
    assert start["type"] == "startRun"


def test_definition_is_an_option_for_iterations_alone(terminal: Terminal) -> None:
    project(terminal, [])
    refused = terminal.call("resume", "nosuch", "--definition", "current", *SCRIPTED)
    assert refused.code == 2
    assert "--definition are for iterations" in refused.err


def test_what_is_driven_cannot_be_driven_twice(terminal: Terminal) -> None:
    project(terminal, scores(1), "maxIterations = 1")
    (terminal.workspace / "pause-1").touch()
    process = start(terminal, "iterate", "solo", "do it", "--id", "it")
    paused_at(terminal, 1)
    assert list_series(terminal)["status"] == "running"
    refused = terminal.call("resume", "it", *SCRIPTED)
    assert refused.code == 1
    assert f"pid {process.pid}" in refused.err
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=SECONDS)


STEPS = ("startSeries", *("startIteration", "startGeneration", "finishArtefact", "finishIteration") * 5)


def killed_at(process: subprocess.Popen[str], kind: str) -> int:
    """Kill a process at its first event of this kind. Return the number of iterations it reported as finished."""
    assert process.stdout is not None
    finished = 0
    for line in process.stdout:
        event_type = json.loads(line)["type"]
        finished += event_type == "finishIteration"
        if event_type == kind:
            break
    process.kill()
    process.communicate(timeout=SECONDS)
    return finished


@pytest.mark.parametrize("storage", ["file:perstack", "sqlite:perstack/state.db"])
def test_killed_at_every_step_of_five_loops_it_reports_the_same_best(terminal: Terminal, storage: str) -> None:
    project(terminal, scores(1, 4, 2, 5, 3))
    terminal.script(solo=[{**reply("made", usage=(10, 1)), "delay_ms": 5}])
    args = ["iterate", "solo", "do it", "--id", "it"]
    told, killed = 0, 0
    for kind in STEPS:
        told += killed_at(start(terminal, *args, "--storage", storage), kind)
        (line,) = terminal.call("iterations", "--json", "--storage", storage).lines
        assert json.loads(line)["done"] >= told, kind
        args = ["resume", "it"]
        killed += 1
        if json.loads(line)["status"] == "completed":
            break
    else:
        assert terminal.call("resume", "it", *SCRIPTED, "--storage", storage).code == 0
    shown = json.loads(terminal.call("report", "it", "--json", "--storage", storage).out)
    assert [score["score"] for score in shown["scores"]] == [1, 4, 2, 5, 3]
    assert (shown["status"], shown["bestIteration"], shown["done"]) == ("completed", 4, 5)
    jobs = [json.loads(line)["id"] for line in terminal.call("jobs", "--json", "--storage", storage).lines]
    assert sorted(jobs) == [f"it-i{number}" for number in (1, 2, 3, 4, 5)]
    measured = (terminal.workspace / "measured").read_text().split()
    assert sorted(measured) == measured
    assert len(measured) <= 5 + killed


def test_killed_while_the_evaluator_is_at_work_only_that_is_done_again(terminal: Terminal) -> None:
    project(terminal, scores(1, 5, 3), "maxIterations = 3")
    (terminal.workspace / "pause-2").touch()
    process = start(terminal, "iterate", "solo", "do it", "--id", "it")
    evaluator = paused_at(terminal, 2)
    process.kill()
    process.communicate(timeout=SECONDS)
    wait_until(lambda: not alive(evaluator), "the evaluator to end")
    summary = list_series(terminal)
    assert (summary["status"], summary["message"], summary["done"]) == ("paused", "its process ended", 1)
    resumed = terminal.call("resume", "it", *SCRIPTED)
    assert resumed.code == 0
    assert [event["number"] for event in resumed.events if event["type"] == "finishArtefact"] == [3]
    assert report(terminal)["bestIteration"] == 2


@pytest.mark.parametrize(("old", "code"), [(b"", 0), (b'"outputTokens":0', 1)])
def test_a_summary_of_the_state_before_the_last_event_is_no_finding_and_an_edited_one_is(
    terminal: Terminal, old: bytes, code: int
) -> None:
    terminal.project(
        '[experts.solo]\ninstruction = "x"\n[experts.solo.iterate]\nevaluator = "exit 1"\n', solo=[reply("made")]
    )
    folder = terminal.workspace / "perstack/iterations/it"
    assert terminal.call("iterate", "solo", "go", "--id", "it", "--provider", "scripted").code == 1
    data = (folder / "job.json").read_bytes()
    assert terminal.call("resume", "it", "--provider", "scripted").code == 1
    (folder / "job.json").write_bytes(data.replace(old, b'"outputTokens":7') if old else data)
    result = terminal.call("verify", "it")
    assert result.code == code, result.out
    assert "job.json has no head of these" in result.out
    assert ("job.json says usage.outputTokens is 7" in result.out) is bool(code)
