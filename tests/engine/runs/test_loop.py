"""The rules of the loop, seen from outside."""

from __future__ import annotations

import json

from hosts import Bench, Seen, expert, results, wait_for

from perstack.testing.scripted import ScriptedProvider, fail, text, tool, turn


def test_a_reply_without_tool_calls_ends_the_run_and_its_text_is_the_result(bench: Bench) -> None:
    seen = Seen()
    job = wait_for(bench.host([text("Done.", usage=(10, 2))], expert("a")).run("a", "q", on_event=seen))
    assert (job.status, job.text, job.total_steps) == ("completed", "Done.", 1)
    assert seen.types() == ["startRun", "startGeneration", "finishGeneration", "finishStep", "finishRun"]


def test_attempt_completion_beside_other_tools_runs_them_all_and_takes_effect_last(bench: Bench) -> None:
    seen = Seen()
    script = [
        turn(
            tool("attemptCompletion", {"result": "all written"}),
            tool("writeTextFile", {"path": "a.txt", "text": "A"}),
            tool("writeTextFile", {"path": "b.txt", "text": "B"}),
        )
    ]
    job = wait_for(bench.host(script, expert("a")).run("a", "q", on_event=seen))
    assert (job.status, job.text) == ("completed", "all written")
    assert (bench.workspace / "a.txt").read_text() + (bench.workspace / "b.txt").read_text() == "AB"
    types = seen.types()
    assert types.index("attemptCompletion") > max(i for i, kind in enumerate(types) if kind == "finishToolCall")


def test_attempt_completion_with_unfinished_todos_returns_them_and_the_loop_goes_on(bench: Bench) -> None:
    provider = ScriptedProvider(
        [
            tool("todo", {"newTodos": ["one", "two"]}),
            tool("todo", {"completedTodos": [0]}),
            tool("attemptCompletion"),
            tool("todo", {"completedTodos": [1]}),
            turn(tool("attemptCompletion"), text="Both done."),
        ]
    )
    seen = Seen()
    job = wait_for(bench.host(provider, expert("a")).run("a", "q", on_event=seen))
    assert (job.status, job.text, job.total_steps) == ("completed", "Both done.", 5)
    first, second = seen.of("attemptCompletion")
    assert [todo.title for todo in first.remaining_todos] == ["two"]
    assert not second.remaining_todos
    told = provider.requests[3].messages[-1].contents[0].contents[0].text
    assert json.loads(told) == {"remainingTodos": [{"id": 1, "title": "two", "completed": False}]}


def test_completion_without_any_text_is_followed_by_one_generation_without_tools(bench: Bench) -> None:
    provider = ScriptedProvider([tool("attemptCompletion"), text("The result.", usage=(5, 5))])
    job = wait_for(bench.host(provider, expert("a")).run("a", "q"))
    assert (job.text, job.total_steps) == ("The result.", 1)
    assert [request.allow_tools for request in provider.requests] == [True, False]


def test_an_unknown_tool_and_bad_arguments_go_back_to_the_model(bench: Bench) -> None:
    provider = ScriptedProvider(
        [
            turn(tool("noSuchTool", {}), tool("readTextFile", {"path": 7}), tool("readTextFile", "not an object")),
            text("I see."),
        ]
    )
    seen = Seen()
    job = wait_for(bench.host(provider, expert("a")).run("a", "q", on_event=seen))
    assert job.status == "completed"
    unknown, wrong, no_object = seen.of("finishToolCall")
    assert all(event.is_error for event in (unknown, wrong, no_object))
    told = results(seen)
    assert "no tool 'noSuchTool'" in told[0]
    assert "path" in told[1]
    assert "not a JSON object" in told[2]


def test_double_and_missing_call_ids_are_made_unique(bench: Bench) -> None:
    calls = [tool("todo", {"newTodos": ["x"]}, id="same"), tool("todo", {"newTodos": ["y"]}, id="same")]
    seen = Seen()
    job = wait_for(bench.host([turn(*calls), text("ok")], expert("a")).run("a", "q", on_event=seen))
    assert job.status == "completed"
    ids = [event.tool_call_id for event in seen.of("finishToolCall")]
    assert len(set(ids)) == 2


def test_two_questions_in_one_reply_are_asked_one_after_the_other_each_answer_to_its_own_call(bench: Bench) -> None:
    script = [
        turn(
            tool("askUser", {"question": "first?"}, id="q1"),
            tool("askUser", {"question": "second?"}, id="q2"),
            tool("writeTextFile", {"path": "before.txt", "text": "tools ran first"}, id="w"),
        ),
        text("Thanks."),
    ]
    one = wait_for(bench.host(script, expert("a", ask=True)).run("a", "q"))
    assert (one.status, one.question, one.lifecycle, one.pause_reason) == (
        "stoppedByInteractiveTool",
        "first?",
        "paused",
        "human_input",
    )
    assert (bench.workspace / "before.txt").exists()
    two = wait_for(bench.host(script, expert("a", ask=True)).answer("answer one", job_id=one.id))
    assert (two.status, two.question) == ("stoppedByInteractiveTool", "second?")
    provider = ScriptedProvider(script)
    three = wait_for(bench.host(provider, expert("a", ask=True)).answer("answer two", job_id=one.id))
    assert (three.status, three.text, three.total_steps) == ("completed", "Thanks.", 2)
    sent = provider.requests[-1].messages[-1].contents
    assert [(part.tool_call_id, part.contents[0].text) for part in sent if part.tool_name == "askUser"] == [
        ("q1", "answer one"),
        ("q2", "answer two"),
    ]


def test_a_delegate_is_not_shown_interactive_tools(bench: Bench) -> None:
    provider = ScriptedProvider(
        {
            "[[boss]]": [tool("helper", {"query": "ask them"}), text("ok")],
            "[[helper]]": [tool("askUser", {"question": "?"}), text("could not ask")],
        }
    )
    boss, helper = expert("boss", delegates=("helper",), ask=True), expert("helper", ask=True)
    job = wait_for(bench.host(provider, boss, helper).run("boss", "q"))
    assert job.status == "completed"
    offered = {request.expert_key: {spec.name for spec in request.tools} for request in provider.requests}
    assert "askUser" in offered["boss"]
    assert "askUser" not in offered["helper"]


def test_todos_never_cross_runs_and_survive_a_resume(bench: Bench) -> None:
    script = {
        "[[boss]]": [
            tool("todo", {"newTodos": ["mine"]}),
            tool("helper", {"query": "go"}),
            tool("todo", {}),
            tool("todo", {"completedTodos": [0]}),
            text("end"),
        ],
        "[[helper]]": [tool("todo", {"newTodos": ["other"]}), text("helped")],
    }
    boss, helper = expert("boss", delegates=("helper",)), expert("helper")
    first = wait_for(bench.host(script, boss, helper, max_steps=4).run("boss", "q"))
    assert first.status == "stoppedByMaxSteps"
    seen = Seen()
    job = wait_for(bench.host(script, boss, helper).resume(first.id, max_steps=20, on_event=seen))
    assert job.status == "completed"
    shown = [json.loads(line)["todos"] for line in results(seen, "todo")]
    assert [[todo["title"] for todo in todos] for todos in shown] == [["mine"], ["mine"]] or [
        [todo["title"] for todo in todos] for todos in shown
    ] == [["mine"]]
    loaded = wait_for(bench.host(script, boss, helper).jobs.load(first.id))
    by_expert = {run.start.expert_key: [todo.title for todo in run.todos] for run in loaded.runs.values()}
    assert by_expert == {"boss": ["mine"], "helper": ["other"]}


def test_usage_is_the_sum_of_the_models_own_figures_over_all_runs(bench: Bench) -> None:
    script = {
        "[[boss]]": [
            turn(tool("x", {"query": "1"}), tool("y", {"query": "2"}), usage=(1000, 50)),
            turn(tool("attemptCompletion"), usage=(1200, 10)),
            text("A and B are done.", usage=(1300, 10)),
        ],
        "[[x]]": [turn(tool("todo", {}), usage=(100, 10)), text("X", usage=(110, 10))],
        "[[y]]": [fail(529, "overloaded", retry_after=0), text("Y", usage=(200, 10))],
    }
    experts = [expert("boss", delegates=("x", "y")), expert("x"), expert("y")]
    job = wait_for(bench.host(script, *experts).run("boss", "q"))
    assert (job.usage.input_tokens, job.usage.output_tokens, job.usage.total_tokens) == (3910, 100, 4010)
    assert job.total_steps == 2 + 2 + 1
    assert sum(run.usage.total_tokens for run in job.runs) == 4010


def test_max_steps_is_exact_and_continue_with_the_same_limit_runs_no_further_step(bench: Bench) -> None:
    script = [turn(tool("todo", {}), repeat=True)]
    host = bench.host(script, expert("a"), max_steps=3)
    job = wait_for(host.run("a", "q"))
    assert (job.status, job.total_steps, job.lifecycle) == ("stoppedByMaxSteps", 3, "paused")
    again = wait_for(bench.host(script, expert("a"), max_steps=3).continue_job("a", "go on", job_id=job.id))
    assert (again.status, again.total_steps) == ("stoppedByMaxSteps", 3)
    more = wait_for(bench.host(script, expert("a")).resume(job.id, max_steps=5))
    assert (more.status, more.total_steps) == ("stoppedByMaxSteps", 5)


def test_steps_spread_over_parallel_delegates_count_as_their_sum(bench: Bench) -> None:
    workers = [f"w{number}" for number in range(10)]
    script = {f"[[{name}]]": [turn(tool("todo", {}), repeat=28), text("done")] for name in workers}
    script["[[boss]]"] = [
        turn(*(tool(name, {"query": "go"}) for name in workers)),
        turn(tool("todo", {}), repeat=8),
        text("all"),
    ]
    experts = [expert("boss", delegates=tuple(workers)), *(expert(name, max_repeats=0) for name in workers)]
    job = wait_for(bench.host(script, *experts, max_steps=300).run("boss", "q"))
    assert (job.status, job.total_steps) == ("completed", 300)
    bounded = wait_for(bench.host(script, *experts, max_steps=299).run("boss", "q"))
    assert (bounded.status, bounded.total_steps) == ("stoppedByMaxSteps", 299)
    few = wait_for(bench.host(script, *experts, max_steps=57).run("boss", "q"))
    assert (few.status, few.total_steps) == ("stoppedByMaxSteps", 57)
    done = wait_for(bench.host(script, *experts).resume(few.id, max_steps=1000))
    assert (done.status, done.total_steps, done.text) == ("completed", 300, "all")
