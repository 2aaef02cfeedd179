"""`perstack iterate`, `iterations`, `report`, and resuming them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import pytest
from iteration_project import SCRIPTED, answer, iterate, list_series, project, queries, report, scores
from processes import alive, wait_until
from terminal import ASKING, Terminal, reply


def test_it_ends_when_the_target_is_reached(terminal: Terminal) -> None:
    project(terminal, scores(0.2, 0.9, 1), "target = 0.8")
    done = iterate(terminal, attended=True)
    assert done.code == 0, done.err
    ended = "completed: 2 iterations, the best is iteration 2 with 0.9; the target is reached; perstack report it"
    assert ended in done.err
    facts = [event["type"] for event in done.events if "seriesId" in event]
    one = ["startIteration", "finishArtefact", "finishIteration"]
    assert facts == ["startSeries", *one, *one, "finishSeries"]
    assert [event["jobId"] for event in done.events if event["type"] == "finishRun"] == ["it-i1", "it-i2"]
    summary = list_series(terminal)
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
    done = iterate(terminal, "--max-iterations", "3", "--target", "1", attended=True)
    assert done.code == 0
    assert "no iteration is left, and the target 1 is not reached" in done.err
    assert report(terminal)["iteration"]["number"] == 2
    assert [score["score"] for score in report(terminal)["scores"]] == [0.2, 0.9, 0.5]


def test_lower_can_be_better(terminal: Terminal) -> None:
    project(terminal, scores(90, 40, 60, 9), "target = 10", 'direction = "lower"')
    assert iterate(terminal).code == 0
    summary = list_series(terminal)
    assert (summary["done"], summary["bestIteration"], summary["bestScore"]) == (4, 4, 9)
    assert "The aim: score at most 10." in queries(terminal)[1]


@pytest.mark.parametrize(("direction", "worst"), [("higher", [0.1, 0.5, 0.7]), ("lower", [0.9, 0.6, 0.8])])
def test_of_several_metrics_the_worst_counts(terminal: Terminal, direction: str, worst: list[float]) -> None:
    answers = [{"metrics": {"a": a, "b": b}} for a, b in ((0.9, 0.1), (0.5, 0.6), (0.7, 0.8))]
    project(terminal, answers, 'metric = ["a", "b"]', f'direction = "{direction}"', "maxIterations = 3")
    assert iterate(terminal).code == 0
    assert [score["score"] for score in report(terminal)["scores"]] == worst


def test_failed_cases_are_carried_into_the_next_query_and_regressions_are_counted(terminal: Terminal) -> None:
    def cases(**passed: bool) -> dict[str, Any]:
        found = [{"name": name, "passed": ok} for name, ok in passed.items()]
        return {"score": sum(passed.values()), "cases": found, "analysis": f"{len(found)} were run"}

    project(
        terminal,
        [cases(a=True, b=False), cases(a=False, b=True), cases(b=False), cases(a=False, b=True)],
        "maxIterations = 4",
    )
    done = iterate(terminal, attended=True)
    assert "iteration 2 of 5" not in done.err
    assert "iteration 2 of 4: score 1, 1 case failed, 1 regression" in done.err
    found = [report(terminal, "--iteration", str(number))["iteration"] for number in (1, 2, 3, 4)]
    assert [iteration.get("regressions", []) for iteration in found] == [[], ["a"], ["b"], []]
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
    ("this is not an answer", "it should be a JSON object, and is 'this is not an answer'"),
    ({"metrics": {"score": "high"}}, "metric `score` should be a number, and is 'high'"),
    ({"metrics": [1]}, "`metrics` should be an object of numbers, and is [1]"),
    ({"other": 1}, "no metric 'score'; available: other"),
    ({"score": 1, "cases": [{"name": "a"}]}, "`cases.0.passed`: Field required"),
    ({"score": True}, "no metric 'score'; available: none"),
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
    assert list_series(terminal)["status"] == "failed"
    answer(terminal, scores(3))
    resumed = terminal.call("resume", "it", *SCRIPTED)
    assert resumed.code == 0, resumed.err
    assert [event["type"] for event in resumed.events] == ["resumeSeries", "finishIteration", "finishSeries"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo oops >&2; exit 3", "it is empty, and should be a JSON object with metrics; exit status 3, stderr: oops"),
        ("echo no json", "its output: it is not JSON: no json"),
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
        wait_until(lambda: not alive(int(child.read_text())), "what the command has started to end")


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
    assert "evaluator Expert `judge` (Job it-e1): its result: it is not JSON: I cannot say" in failed.err
    terminal.script(solo=[reply("made", usage=(10, 1))], judge=[reply(judged, usage=(5, 5))])
    assert terminal.call("resume", "it", *SCRIPTED).code == 0
    found = report(terminal)["iteration"]
    assert (found["score"], found["analysis"], found["usage"]["totalTokens"]) == (7, "fine", 31)
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
    result = terminal.run("iterate", "solo", "do it", "--id", "it", *SCRIPTED)
    assert result.code == 0, result.err
    found = report(terminal)["iteration"]
    assert (found["score"], found["analysis"]) == (-4, "do it 1")


FUNCTIONS = [
    ("def measure(made):\n    while True: pass", "was ended after its timeout of 1000 ms"),
    ("async def measure(made):\n    import time; time.sleep(300)", "was ended after its timeout of 1000 ms"),
    ("def measure(made):\n    raise KeyError('x')", "KeyError: 'x'"),
    ("def measure(made):\n    raise SystemExit(3)", "ended with exit status 3 and no answer"),
    ("def measure(made):\n    import os; os.kill(os.getpid(), 9)", "was ended by signal 9"),
    ("def measure(made):\n    return {'score': 'high'}", "no metric 'score'"),
]


@pytest.mark.parametrize(("code", "words"), FUNCTIONS)
def test_a_function_that_does_not_answer_is_an_error_that_names_it_and_holds_nothing_up(
    terminal: Terminal, code: str, words: str
) -> None:
    (terminal.workspace / "measuring_badly.py").write_text(code)
    timeout = 1000 if "1000 ms" in words else 15_000  # a busy machine takes a second to start Python
    terminal.project(
        "[experts.solo]\ninstruction = 'You work alone.'\n"
        f"[experts.solo.iterate]\nevaluator = {{ entry = 'measuring_badly:measure' }}\ntimeout = {timeout}\n",
        solo=[reply("made")],
    )
    terminal.env["PYTHONPATH"] = str(terminal.workspace)
    began = time.monotonic()
    failed = terminal.run("iterate", "solo", "do it", "--id", "it", *SCRIPTED)
    assert time.monotonic() - began < 20, "the function would take 300 s, or for ever"
    assert failed.code == 1
    assert "evaluator function `measuring_badly:measure`" in failed.err
    assert words in failed.err


def test_a_function_sees_modules_as_they_are_on_disk_and_what_it_prints_is_no_answer(terminal: Terminal) -> None:
    (terminal.workspace / "value.py").write_text("SCORE = 0")
    (terminal.workspace / "measuring_files.py").write_text(
        "import pathlib, threading, time\n"
        "def measure(made):\n"
        "    print('no answer')\n"
        "    threading.Thread(target=time.sleep, args=(300,)).start()\n"
        "    import value\n"
        "    pathlib.Path(value.__file__).write_text(f'SCORE = {value.SCORE} + {10 ** made.iteration}')\n"
        "    return {'score': value.SCORE}\n"
    )
    terminal.project(
        "[experts.solo]\ninstruction = 'You work alone.'\n"
        "[experts.solo.iterate]\nevaluator = { entry = 'measuring_files:measure' }\nmaxIterations = 3\n",
        solo=[reply("made")],
    )
    terminal.env |= {"PYTHONPATH": str(terminal.workspace), "PYTHONDONTWRITEBYTECODE": "1"}
    result = terminal.run("iterate", "solo", "do it", "--id", "it", *SCRIPTED)
    assert result.code == 0, result.err
    assert all(line.startswith("{") for line in result.lines)
    assert [score["score"] for score in report(terminal)["scores"]] == [0, 10, 110]


@pytest.mark.parametrize(("stream", "words"), [("1", "wrote more than 16,777,216 bytes to stdout"), ("2", "timeout")])
def test_an_evaluator_that_floods_is_ended_while_it_writes(terminal: Terminal, stream: str, words: str) -> None:
    project(terminal, [])
    toml = terminal.workspace / "perstack.toml"
    lines = toml.read_text().splitlines()
    lines[4] = f"evaluator = 'yes flood >&{stream}'\ntimeout = {10_000 if stream == '1' else 1000}"
    toml.write_text("\n".join(lines))
    failed = iterate(terminal)
    assert failed.code == 1
    assert words in failed.err
    if stream == "2":
        assert "flood" in failed.err


def test_what_an_evaluator_leaves_behind_holds_up_nothing(terminal: Terminal) -> None:
    project(terminal, [])
    (terminal.workspace / "measure.sh").write_text("setsid sleep 300 & echo $! > left; echo '{\"score\": 1}'")
    toml = terminal.workspace / "perstack.toml"
    lines = toml.read_text().splitlines()
    lines[4] = "evaluator = 'sh measure.sh'\nmaxIterations = 1"
    toml.write_text("\n".join(lines))
    done = iterate(terminal)
    left = int((terminal.workspace / "left").read_text())
    assert alive(left)
    os.kill(left, signal.SIGKILL)
    assert done.code == 0, done.err


def test_a_function_that_is_not_there_is_named(terminal: Terminal) -> None:
    terminal.project(
        "[experts.solo]\ninstruction = 'You work alone.'\n"
        "[experts.solo.iterate]\nevaluator = { entry = 'nowhere.at_all:it' }\n",
        solo=[reply("made")],
    )
    failed = iterate(terminal)
    assert failed.code == 1
    assert "evaluator function `nowhere.at_all:it` is not available: No module named 'nowhere'" in failed.err


def test_more_iterations_and_a_better_target_can_be_asked_for(terminal: Terminal) -> None:
    project(terminal, scores(1, 3, 2, 5, 4), "maxIterations = 2")
    assert iterate(terminal).code == 0
    refused = terminal.call("resume", "it", *SCRIPTED)
    assert refused.code == 2
    assert "has used its 2 iterations; add some with --max-iterations N" in refused.err
    assert terminal.call("resume", "it", "--max-iterations", "10", "--target", "5", *SCRIPTED).code == 0
    summary = list_series(terminal)
    assert (summary["done"], summary["maxIterations"], summary["bestIteration"]) == (4, 12, 4)
    refused = terminal.call("resume", "it", "--max-iterations", "1", *SCRIPTED)
    assert refused.code == 2
    assert "has reached its target, 5; give a better one with --target X" in refused.err


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
    result = terminal.call("iterate", "guest", "Serve", "--id", "it", *SCRIPTED, attended=True)
    assert result.code == 3
    assert "guest is waiting after 0 iterations: Job it-i1 asks: Tea or coffee?" in result.err
    assert list_series(terminal)["pauseReason"] == "human_input"
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


# --- looking ------------------------------------------------------------------------------------------------------


def test_the_report_shows_the_best_with_a_chart_and_any_other_on_demand(terminal: Terminal) -> None:
    answers = [{"score": score, "analysis": f"worth {score}"} for score in (1, 8, 4.5)]
    project(terminal, answers, "maxIterations = 3", said="The text\nof it")
    iterate(terminal)
    result = terminal.call("report", "it")
    assert result.lines[0] == "it  solo  completed"
    assert "  chart      ▁█▅ 1 → 4.5" in result.lines
    assert "iteration 2 (the best)" in result.lines
    assert result.lines[-4:] == ["worth 8", "", "The text", "of it"]
    rows = [line.split()[:3] for line in result.lines if line[:2] in ("1 ", "2 ", "3 ")]
    assert rows == [["1", "1", "0"], ["2", "*", "8"], ["3", "4.5", "0"]]
    assert "worth 1" in terminal.call("report", "it", "--iteration", "1").lines
    missing = terminal.call("report", "it", "--iteration", "9")
    assert (missing.code, missing.err) == (2, "error: it has 3 iterations: there is no iteration 9\n")


def test_the_list_has_a_line_for_each(terminal: Terminal) -> None:
    assert terminal.call("iterations").lines == ["no iterations yet; start some with: perstack iterate EXPERT QUERY"]
    project(terminal, scores(1, 2), "maxIterations = 2", "target = 9")
    iterate(terminal)
    heading, row = terminal.call("iterations").lines
    assert heading.split() == ["id", "status", "Expert", "done", "best", "began", "when", "query"]
    assert row.split()[:8] == ["it", "completed", "solo", "2/2", "score", "2", "of", "9"]
    result = terminal.call("iterate", "solo", "do it", "--id", "two", "--max-iterations", "1", *SCRIPTED)
    assert result.code == 0
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
        (
            ("resume", "it-i1", "--max-iterations", "2"),
            "--total-tokens and --definition are for iterations",
        ),
        (("iterate", "nobody", "q"), "there is no Expert 'nobody'"),
        (("iterate", "bare", "q"), "Expert bare does not say how it is measured"),
        (("iterate", "solo", "q", "--id", "it"), "iterations it exist already; continue with: perstack resume it"),
        (("iterate", "solo", "q", "--id", "it-i1"), "there is already a Job it-i1"),
        (("iterate", "solo", "q", "--id", "x" * 101), "is too long for an id of iterations"),
        (("iterate", "solo", "q", "--target", "nan"), "use a finite number"),
    ],
)
def test_a_mistake_is_told_in_a_line(terminal: Terminal, args: tuple[str, ...], words: str) -> None:
    project(terminal, scores(1), "maxIterations = 1", '[experts.bare]\ninstruction = "x"')
    assert iterate(terminal).code == 0
    result = terminal.call(*args, *(() if args[0] == "report" else SCRIPTED))
    assert result.code == 2
    assert words in result.err
    assert len(result.err.strip().splitlines()) == 1
