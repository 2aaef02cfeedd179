"""Delegates: single, parallel and nested, each with its own Run."""

from __future__ import annotations

from hosts import Bench, Seen, expert, results, wait_for

from perstack.testing.scripted import ScriptedProvider, fail, text, tool, turn


def test_a_delegate_sees_only_its_query_and_its_result_comes_back(bench: Bench) -> None:
    provider = ScriptedProvider(
        {"[[boss]]": [tool("helper", {"query": "count"}), text("counted")], "[[helper]]": [text("42")]}
    )
    seen = Seen()
    job = wait_for(
        bench.host(provider, expert("boss", delegates=("helper",)), expert("helper")).run(
            "boss", "the whole secret story", on_event=seen
        )
    )
    assert job.text == "counted"
    asked = next(request for request in provider.requests if request.expert_key == "helper")
    assert [message.contents[0].text for message in asked.messages] == ["count"]
    assert "secret" not in asked.instruction
    assert results(seen) == ["42"]
    assert seen.of("finishToolCall")[0].delegate.run_id == f"{job.id}-2"


def test_nested_delegation_inside_parallel_returns_to_its_own_parent(bench: Bench) -> None:
    script = {
        "[[boss]]": [turn(tool("left", {"query": "L"}), tool("right", {"query": "R"})), text("joined")],
        "[[left]]": [tool("leaf", {"query": "from left"}), text("left done")],
        "[[right]]": [tool("leaf", {"query": "from right"}), text("right done")],
        "[[leaf]]": [text("leaf done")],
    }
    experts = [
        expert("boss", delegates=("left", "right")),
        expert("left", delegates=("leaf",)),
        expert("right", delegates=("leaf",)),
        expert("leaf"),
    ]
    provider = ScriptedProvider(script)
    seen = Seen()
    job = wait_for(bench.host(provider, *experts).run("boss", "q", on_event=seen))
    assert (job.status, job.text, job.total_steps, len(job.runs)) == ("completed", "joined", 8, 5)
    starts = {event.run_id: event for event in seen.of("startRun")}
    for event in seen.of("finishToolCall"):
        started = starts[event.delegate.run_id]
        assert started.delegated_by.run_id == event.run_id
        assert started.delegated_by.tool_call_id == event.tool_call_id
    last = provider.requests[-1].messages[-1]
    assert [part.contents[0].text for part in last.contents] == ["left done", "right done"]


def test_a_failing_delegate_does_not_end_the_job_single_or_parallel(bench: Bench) -> None:
    script = {
        "[[boss]]": [
            tool("bad", {"query": "alone"}),
            turn(tool("bad", {"query": "beside"}), tool("good", {"query": "fine"})),
            text("carried on"),
        ],
        "[[bad]]": [fail(400, "the request is wrong")],
        "[[good]]": [text("good")],
    }
    experts = [expert("boss", delegates=("bad", "good")), expert("bad"), expert("good")]
    seen = Seen()
    job = wait_for(bench.host(script, *experts).run("boss", "q", on_event=seen))
    assert (job.status, job.text) == ("completed", "carried on")
    assert results(seen, "bad") == ["Delegation failed: the request is wrong"] * 2
    assert results(seen, "good") == ["good"]
    assert all(event.is_error for event in seen.of("finishToolCall") if event.tool_name == "bad")


def test_tools_and_delegates_of_one_reply_run_in_that_order(bench: Bench) -> None:
    script = {
        "[[boss]]": [
            turn(tool("helper", {"query": "read"}), tool("writeTextFile", {"path": "in.txt", "text": "hello"})),
            text("ok"),
        ],
        "[[helper]]": [tool("readTextFile", {"path": "in.txt"}), text("read it")],
    }
    seen = Seen()
    wait_for(
        bench.host(script, expert("boss", delegates=("helper",)), expert("helper")).run("boss", "q", on_event=seen)
    )
    assert "hello" in results(seen, "readTextFile")[0]


def test_delegate_with_a_scoped_key_gets_a_legal_tool_name(bench: Bench) -> None:
    provider = ScriptedProvider(
        {"[[boss]]": [tool("acme_sum", {"query": "1+1"}), text("ok")], "[[@acme/sum]]": [text("2")]}
    )
    seen = Seen()
    job = wait_for(
        bench.host(provider, expert("boss", delegates=("@acme/sum",)), expert("@acme/sum")).run(
            "boss", "q", on_event=seen
        )
    )
    assert job.status == "completed"
    assert results(seen, "acme_sum") == ["2"]


def test_what_a_provider_keeps_of_a_run_is_handed_on_to_that_run_alone_and_to_its_tries(bench: Bench) -> None:
    script = {
        "[[boss]]": [
            fail(status=503),
            turn(tool("left", {"query": "L"}), tool("right", {"query": "R"})),
            text("joined"),
        ],
        "[[left]]": [tool("todo", {}), text("left done")],
        "[[right]]": [tool("todo", {}), text("right done")],
    }
    provider = ScriptedProvider(script)
    experts = [expert("boss", delegates=("left", "right")), expert("left"), expert("right")]
    assert wait_for(bench.host(provider, *experts).run("boss", "q")).text == "joined"
    memos = {key: [one.memo for one in provider.requests if one.expert_key == key] for key in ("boss", "left", "right")}
    assert [len(group) for group in memos.values()] == [3, 2, 2]
    assert all(memo is group[0] for group in memos.values() for memo in group)
    assert len({id(group[0]) for group in memos.values()}) == 3
