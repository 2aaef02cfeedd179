"""`perstack iterate`, `iterations`, `report`, and resuming them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from processes import alive, start, until
from terminal import ASKING, SECONDS, Result, Terminal, reply

SCRIPTED = ("--provider", "scripted")

EVALUATOR = """
import json, os, pathlib, sys
number = os.environ["PERSTACK_ITERATION"]
with pathlib.Path("measured").open("a") as log:
    log.write(number + " ")
pause = pathlib.Path("pause-" + number)
if pause.exists():
    pause.rename("paused-" + number)
    pathlib.Path("reached").write_text(str(os.getpid()))
    import time
    time.sleep(300)  # the test ends it
print("words before the answer")
print(json.dumps(json.loads(pathlib.Path("answers.json").read_text())[int(number) - 1]))
"""


def project(terminal: Terminal, answers: Sequence[Any], *keys: str, said: str = "made") -> Terminal:
    """An Expert `solo` whose results are measured as the answers say, one for each iteration."""
    lines = "\n".join(keys)
    terminal.project(
        f"""
[experts.solo]
instruction = "You work alone."
[experts.solo.iterate]
evaluator = ["{sys.executable}", "measure.py"]
{lines}
""",
        solo=[reply(said, usage=(10, 1))],
    )
    (terminal.workspace / "measure.py").write_text(EVALUATOR)
    answer(terminal, answers)
    return terminal


def answer(terminal: Terminal, answers: Sequence[Any]) -> None:
    (terminal.workspace / "answers.json").write_text(json.dumps(answers))


def scores(*numbers: float) -> list[dict[str, float]]:
    return [{"score": number} for number in numbers]


def iterate(terminal: Terminal, *args: str) -> Result:
    return terminal.call("iterate", "solo", "do it", "--id", "it", *SCRIPTED, *args)


def listed(terminal: Terminal) -> dict[str, Any]:
    (line,) = terminal.call("iterations", "--json").lines
    return json.loads(line)


def report(terminal: Terminal, *args: str) -> dict[str, Any]:
    shown = terminal.call("report", "it", "--json", *args)
    assert shown.code == 0, shown.err
    return json.loads(shown.out)


def queries(terminal: Terminal) -> list[str]:
    """What the Expert was asked, iteration by iteration."""
    jobs = sorted(path.name for path in terminal.jobs().iterdir() if path.name.startswith("it-i"))
    starts = [json.loads(terminal.log_of(f"{job}-1").read_text().splitlines()[0]) for job in jobs]
    return [start["query"] for start in starts]


def test_it_ends_when_the_target_is_reached(terminal: Terminal) -> None:
    project(terminal, scores(0.2, 0.9, 1), "target = 0.8")
    done = iterate(terminal)
    assert done.code == 0, done.err
    assert "completed: 2 iterations, the best is 2 with 0.9; the target is reached; perstack report it" in done.err
    facts = [event["type"] for event in done.events if "seriesId" in event]
    one = ["startIteration", "finishArtefact", "finishIteration"]
    assert facts == ["startSeries", *one, *one, "finishSeries"]
    assert [event["jobId"] for event in done.events if event["type"] == "finishRun"] == ["it-i1", "it-i2"]
    summary = listed(terminal)
    assert (summary["status"], summary["done"], summary["bestIteration"], summary["bestScore"]) == (
        "completed",
        2,
        2,
        0.9,
    )
    assert summary["usage"]["totalTokens"] == 22
    assert queries(terminal)[0] == "do it"
    assert "iteration 2 of at most 5. The aim: score at least 0.8." in queries(terminal)[1]


def test_it_ends_when_the_iterations_are_used_and_the_best_need_not_be_the_last(terminal: Terminal) -> None:
    project(terminal, scores(0.2, 0.9, 0.5))
    done = iterate(terminal, "--max-iterations", "3", "--target", "1")
    assert done.code == 0
    assert "none is left, and the target 1 is not reached" in done.err
    assert report(terminal)["iteration"]["number"] == 2
    assert [one["score"] for one in report(terminal)["scores"]] == [0.2, 0.9, 0.5]


def test_lower_can_be_better(terminal: Terminal) -> None:
    project(terminal, scores(90, 40, 60, 9), "target = 10", 'direction = "lower"')
    assert iterate(terminal).code == 0
    summary = listed(terminal)
    assert (summary["done"], summary["bestIteration"], summary["bestScore"]) == (4, 4, 9)
    assert "The aim: score at most 10." in queries(terminal)[1]


@pytest.mark.parametrize(("direction", "worst"), [("higher", [0.1, 0.5, 0.7]), ("lower", [0.9, 0.6, 0.8])])
def test_of_several_metrics_the_worst_counts(terminal: Terminal, direction: str, worst: list[float]) -> None:
    answers = [{"metrics": {"a": a, "b": b}} for a, b in ((0.9, 0.1), (0.5, 0.6), (0.7, 0.8))]
    project(terminal, answers, 'metric = ["a", "b"]', f'direction = "{direction}"', "maxIterations = 3")
    assert iterate(terminal).code == 0
    assert [one["score"] for one in report(terminal)["scores"]] == worst


def test_failed_cases_are_carried_into_the_next_query_and_regressions_are_counted(terminal: Terminal) -> None:
    def cases(**passed: bool) -> dict[str, Any]:
        found = [{"name": name, "passed": ok} for name, ok in passed.items()]
        return {"score": sum(passed.values()), "cases": found, "analysis": f"{len(found)} were run"}

    project(
        terminal,
        [cases(a=True, b=False), cases(a=False, b=True), cases(b=False), cases(a=False, b=True)],
        "maxIterations = 4",
    )
    done = iterate(terminal)
    assert "iteration 2 of 5" not in done.err
    assert "iteration 2 of 4: score 1, 1 case failed, 1 regression" in done.err
    found = [report(terminal, "--iteration", str(number))["iteration"] for number in (1, 2, 3, 4)]
    assert [one.get("regressions", []) for one in found] == [[], ["a"], ["b"], []]
    second, third = queries(terminal)[1:3]
    assert "Cases that fail: b" in second
    assert "Analysis: 2 were run" in second
    assert "Cases that fail: a\nOf these passed before: a" in third
    assert "The result of iteration 2, the last:\nmade" in third
    assert "The best so far is iteration 1, with 1. Its result:\nmade" in third


@pytest.mark.parametrize(("accumulate", "told"), [("true", 3), ("false", 1)])
def test_later_iterations_are_told_of_all_or_of_the_last(terminal: Terminal, accumulate: str, told: int) -> None:
    project(terminal, scores(1, 2, 3, 4), "maxIterations = 4", f"accumulate = {accumulate}")
    assert iterate(terminal).code == 0
    assert sum(f"Iteration {number}: score" in queries(terminal)[3] for number in (1, 2, 3)) == told


BROKEN = [
    ("this is no answer", "it should be a JSON object, and is 'this is no answer'"),
    ({"metrics": {"score": "high"}}, "metric `score` should be a number, and is 'high'"),
    ({"metrics": [1]}, "`metrics` should be an object of numbers, and is [1]"),
    ({"other": 1}, "no metric 'score'; there are: other"),
    ({"score": 1, "cases": [{"name": "a"}]}, "`cases.0.passed`: Field required"),
    ({"score": True}, "no metric 'score'; there are: none"),
]


@pytest.mark.parametrize(("wrong", "words"), BROKEN)
def test_an_answer_of_no_use_fails_names_the_evaluator_and_is_put_right(
    terminal: Terminal, wrong: object, words: str
) -> None:
    project(terminal, [wrong], "maxIterations = 1")
    failed = iterate(terminal)
    assert failed.code == 1
    assert f"evaluator `{sys.executable} measure.py`" in failed.err
    assert words in failed.err
    assert "perstack resume it" in failed.err
    assert listed(terminal)["status"] == "failed"
    answer(terminal, scores(3))
    resumed = terminal.call("resume", "it", *SCRIPTED)
    assert resumed.code == 0, resumed.err
    assert [event["type"] for event in resumed.events] == ["resumeSeries", "finishIteration", "finishSeries"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo oops >&2; exit 3", "it is empty, and should be a JSON object with metrics; exit status 3, stderr: oops"),
        ("echo no json", "its output: it is no JSON: no json"),
        ("kill -9 $$", "was ended by signal 9"),
        ("sleep 300 & echo $! > child; wait", "was ended after its timeout of 300 ms"),
    ],
)  # fmt: skip
def test_a_command_that_breaks_is_an_error_that_names_it(terminal: Terminal, command: str, words: str) -> None:
    project(terminal, [])
    toml = terminal.workspace / "perstack.toml"
    lines = toml.read_text().splitlines()
    lines[4] = f"evaluator = '{command}'\ntimeout = 300"
    toml.write_text("\n".join(lines))
    failed = iterate(terminal)
    assert failed.code == 1
    assert f"failed after 0 iterations: evaluator `{command}`" in failed.err
    assert words in failed.err
    child = terminal.workspace / "child"
    if child.exists():
        until(lambda: not alive(int(child.read_text())), "what the command has started to end")


def test_a_command_gets_the_artefact_and_none_of_the_keys(terminal: Terminal) -> None:
    project(terminal, [])
    toml = terminal.workspace / "perstack.toml"
    lines = toml.read_text().splitlines()
    lines[4] = 'evaluator = "env > env.txt; cat > artefact.txt; echo 5 >&2; echo \'{\\"score\\": 1}\'"'
    toml.write_text("\n".join([*lines, "maxIterations = 1"]))
    terminal.env["OPENAI_API_KEY"] = "very secret"
    done = iterate(terminal)
    assert done.code == 0, done.err
    assert (terminal.workspace / "artefact.txt").read_text() == "made"
    env = (terminal.workspace / "env.txt").read_text()
    assert "PERSTACK_ITERATION=1" in env
    assert "secret" not in env


def test_an_expert_can_be_the_evaluator(terminal: Terminal) -> None:
    judged = 'Here it is:\n```json\n{"metrics": {"score": 7}, "analysis": "fine"}\n```'
    terminal.project(
        """
[experts.solo]
instruction = "You work alone."
[experts.solo.iterate]
evaluator = { expert = "judge" }
maxIterations = 1
[experts.judge]
instruction = "You judge."
""",
        solo=[reply("made", usage=(10, 1))],
        judge=[reply("I cannot say", usage=(5, 5))],
    )
    failed = iterate(terminal)
    assert failed.code == 1
    assert "evaluator Expert `judge` (Job it-e1): its result: it is no JSON: I cannot say" in failed.err
    terminal.script(solo=[reply("made", usage=(10, 1))], judge=[reply(judged, usage=(5, 5))])
    assert terminal.call("resume", "it", *SCRIPTED).code == 0
    found = report(terminal)["iteration"]
    assert (found["score"], found["analysis"], found["usage"]["totalTokens"]) == (7, "fine", 21)
    asked = json.loads(terminal.log_of("it-e1-2-1").read_text().splitlines()[0])["query"]
    assert '{"metrics": {"score": NUMBER}' in asked
    assert "It was made for this query:\ndo it\n\nThe result:\nmade" in asked


@pytest.mark.parametrize("kind", ["", "async "])
def test_a_function_can_be_the_evaluator(terminal: Terminal, kind: str) -> None:
    name = f"measuring_{len(kind)}"
    (terminal.workspace / f"{name}.py").write_text(
        f"{kind}def brevity(made):\n"
        "    return {'score': -len(made.artefact), 'analysis': f'{made.query} {made.iteration}'}\n"
    )
    terminal.project(
        "[experts.solo]\ninstruction = 'You work alone.'\n"
        f"[experts.solo.iterate]\nevaluator = {{ entry = '{name}:brevity' }}\nmaxIterations = 1\n",
        solo=[reply("made")],
    )
    terminal.env["PYTHONPATH"] = str(terminal.workspace)
    done = terminal.run("iterate", "solo", "do it", "--id", "it", *SCRIPTED)
    assert done.code == 0, done.err
    found = report(terminal)["iteration"]
    assert (found["score"], found["analysis"]) == (-4, "do it 1")


def test_a_function_that_is_not_there_is_named(terminal: Terminal) -> None:
    terminal.project(
        "[experts.solo]\ninstruction = 'You work alone.'\n"
        "[experts.solo.iterate]\nevaluator = { entry = 'nowhere.at_all:it' }\n",
        solo=[reply("made")],
    )
    failed = iterate(terminal)
    assert failed.code == 1
    assert "evaluator function `nowhere.at_all:it` cannot be had: No module named 'nowhere'" in failed.err


def test_more_iterations_and_a_better_target_can_be_asked_for(terminal: Terminal) -> None:
    project(terminal, scores(1, 3, 2, 5, 4), "maxIterations = 2")
    assert iterate(terminal).code == 0
    refused = terminal.call("resume", "it", *SCRIPTED)
    assert refused.code == 2
    assert "has used its 2 iterations: add some with --max-iterations N" in refused.err
    assert terminal.call("resume", "it", "--max-iterations", "10", "--target", "5", *SCRIPTED).code == 0
    summary = listed(terminal)
    assert (summary["done"], summary["maxIterations"], summary["bestIteration"]) == (4, 12, 4)
    refused = terminal.call("resume", "it", "--max-iterations", "1", *SCRIPTED)
    assert refused.code == 2
    assert "has reached its target, 5: give a better one with --target X" in refused.err


def test_an_error_of_the_expert_fails_and_the_same_job_goes_on(terminal: Terminal) -> None:
    project(terminal, scores(1, 2), "maxIterations = 2")
    bad = {"error": {"message": "no such model", "status": 400}}
    terminal.script(solo=[bad])
    failed = iterate(terminal)
    assert failed.code == 1
    assert "failed after 0 iterations: Job it-i1 failed: no such model" in failed.err
    terminal.script(solo=[reply("made")])
    assert terminal.call("resume", "it", *SCRIPTED).code == 0
    assert sorted(path.name for path in terminal.jobs().iterdir()) == ["it-i1", "it-i2"]


def test_a_question_pauses_until_it_is_answered(terminal: Terminal) -> None:
    terminal.project(
        ASKING + '[experts.guest.iterate]\nevaluator = "echo \'{\\"score\\": 1}\'"\nmaxIterations = 1\n',
        guest=[reply("", ("askUser", {"question": "Tea or coffee?"})), reply("Served.")],
    )
    asked = terminal.call("iterate", "guest", "Serve", "--id", "it", *SCRIPTED)
    assert asked.code == 3
    assert "Job it-i1 asks: Tea or coffee?" in asked.err
    assert listed(terminal)["pauseReason"] == "human_input"
    assert terminal.call("resume", "it", *SCRIPTED).code == 3
    assert terminal.call("answer", "it-i1", "Tea", *SCRIPTED).code == 0
    assert terminal.call("resume", "it", *SCRIPTED).code == 0
    assert report(terminal)["iteration"]["artefact"] == "Served."


def test_the_step_limit_pauses(terminal: Terminal) -> None:
    project(terminal, scores(1), "maxIterations = 1")
    terminal.script(solo=[reply("", ("todo", {"newTodos": ["x"]})), reply("made")])
    stopped = iterate(terminal, "--max-steps", "1")
    assert stopped.code == 4
    assert terminal.call("resume", "it", "--max-steps", "5", *SCRIPTED).code == 0


# --- being stopped ------------------------------------------------------------------------------------------------


def paused_at(terminal: Terminal, number: int) -> int:
    """Wait until the evaluator of an iteration is up; its process."""
    reached = terminal.workspace / "reached"
    until(lambda: reached.exists() and reached.read_text(), f"iteration {number} to be measured")
    pid = int(reached.read_text())
    reached.unlink()
    return pid


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_pauses_and_resume_goes_on_with_what_is_in_hand(terminal: Terminal, number: signal.Signals) -> None:
    project(terminal, scores(1, 5, 3), "maxIterations = 3")
    (terminal.workspace / "pause-2").touch()
    process = start(terminal, "iterate", "solo", "do it", "--id", "it")
    evaluator = paused_at(terminal, 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert json.loads(out.splitlines()[-1])["type"] == "pauseSeries"
    assert "paused after 1 iteration, the best is 1 with 1: interrupted; go on with: perstack resume it" in err
    until(lambda: not alive(evaluator), "the evaluator to end")
    summary = listed(terminal)
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


def test_what_is_driven_cannot_be_driven_twice(terminal: Terminal) -> None:
    project(terminal, scores(1), "maxIterations = 1")
    (terminal.workspace / "pause-1").touch()
    process = start(terminal, "iterate", "solo", "do it", "--id", "it")
    paused_at(terminal, 1)
    assert listed(terminal)["status"] == "running"
    refused = terminal.call("resume", "it", *SCRIPTED)
    assert refused.code == 1
    assert f"pid {process.pid}" in refused.err
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=SECONDS)


STEPS = ("startSeries", *("startIteration", "startGeneration", "finishArtefact", "finishIteration") * 5)


def killed_at(process: subprocess.Popen[str], kind: str) -> int:
    """Kill a process as soon as it tells of this; how many iterations it has told to be done."""
    assert process.stdout is not None
    told = 0
    for line in process.stdout:
        found = json.loads(line)["type"]
        told += found == "finishIteration"
        if found == kind:
            break
    process.kill()
    process.communicate(timeout=SECONDS)
    return told


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
    assert [one["score"] for one in shown["scores"]] == [1, 4, 2, 5, 3]
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
    until(lambda: not alive(evaluator), "the evaluator to end")
    summary = listed(terminal)
    assert (summary["status"], summary["message"], summary["done"]) == ("paused", "its process ended", 1)
    resumed = terminal.call("resume", "it", *SCRIPTED)
    assert resumed.code == 0
    assert [event["number"] for event in resumed.events if event["type"] == "finishArtefact"] == [3]
    assert report(terminal)["bestIteration"] == 2


# --- looking ------------------------------------------------------------------------------------------------------


def test_the_report_shows_the_best_with_a_chart_and_any_other_on_demand(terminal: Terminal) -> None:
    answers = [{"score": score, "analysis": f"worth {score}"} for score in (1, 8, 4.5)]
    project(terminal, answers, "maxIterations = 3", said="The text\nof it")
    iterate(terminal)
    shown = terminal.call("report", "it")
    assert shown.lines[0] == "it  solo  completed"
    assert "  chart      ▁█▅ 1 → 4.5" in shown.lines
    assert "iteration 2 (the best)" in shown.lines
    assert shown.lines[-4:] == ["worth 8", "", "The text", "of it"]
    rows = [line.split()[:3] for line in shown.lines if line[:2] in ("1 ", "2 ", "3 ")]
    assert rows == [["1", "1", "0"], ["2", "*", "8"], ["3", "4.5", "0"]]
    assert "worth 1" in terminal.call("report", "it", "--iteration", "1").lines
    missing = terminal.call("report", "it", "--iteration", "9")
    assert (missing.code, missing.err) == (2, "error: it has 3 iterations, and no 9\n")


def test_the_list_has_a_line_for_each(terminal: Terminal) -> None:
    assert terminal.call("iterations").lines == ["no iterations yet; start some with: perstack iterate EXPERT QUERY"]
    project(terminal, scores(1, 2), "maxIterations = 2", "target = 9")
    iterate(terminal)
    heading, row = terminal.call("iterations").lines
    assert heading.split() == ["id", "status", "Expert", "done", "best", "began", "when", "query"]
    assert row.split()[:8] == ["it", "completed", "solo", "2/2", "score", "2", "of", "9"]
    again = terminal.call("iterate", "solo", "do it", "--id", "two", "--max-iterations", "1", *SCRIPTED)
    assert again.code == 0
    assert [line.split()[0] for line in terminal.call("iterations").lines[1:]] == ["two", "it"]
    assert len(terminal.call("iterations", "--take", "1", "--json").lines) == 1


def test_nothing_is_written_before_the_provider_is_known_to_be_there(terminal: Terminal) -> None:
    project(terminal, scores(1), "maxIterations = 1")
    refused = terminal.call("iterate", "solo", "do it", "--provider", "nosuch")
    assert refused.code == 2
    assert "no provider 'nosuch' is installed" in refused.err
    assert not (terminal.workspace / "perstack").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("report", "none"), "there are no iterations none"),
        (("resume", "it", "--settle", "x=done"), "--settle is for Jobs"),
        (("resume", "it-i1", "--max-iterations", "2"), "--max-iterations and --target are for iterations"),
        (("iterate", "nobody", "q"), "there is no Expert 'nobody'"),
        (("iterate", "bare", "q"), "Expert bare does not say how it is measured"),
        (("iterate", "solo", "q", "--id", "it"), "there are iterations it; go on with: perstack resume it"),
        (("iterate", "solo", "q", "--id", "it-i1"), "there is a Job it-i1"),
        (("iterate", "solo", "q", "--id", "x" * 101), "is too long for an id of iterations"),
        (("iterate", "solo", "q", "--target", "nan"), "use a number that has an end"),
    ],
)
def test_a_mistake_is_told_in_a_line(terminal: Terminal, args: tuple[str, ...], words: str) -> None:
    project(terminal, scores(1), "maxIterations = 1", '[experts.bare]\ninstruction = "x"')
    assert iterate(terminal).code == 0
    shown = terminal.call(*args, *(() if args[0] == "report" else SCRIPTED))
    assert shown.code == 2
    assert words in shown.err
    assert len(shown.err.strip().splitlines()) == 1
