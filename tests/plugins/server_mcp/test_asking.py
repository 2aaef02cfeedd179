"""Questions of an Expert, put to the person behind the client."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from editor import Pipe, attached, structure, texts
from hosts import wait_for
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequestFormParams, ElicitRequestParams, ElicitResult
from terminal import ASKING, ASKING_BY_SKILL, Terminal, reply

from perstack.system.user import this_user


@pytest.fixture
def asking(terminal: Terminal) -> Terminal:
    """Write a project whose Expert asks two questions, one after the other."""
    return terminal.project(
        ASKING,
        guest=[
            reply("", ("askUser", {"question": "Tea or coffee?", "options": ["tea", "coffee"], "why": "I serve."})),
            reply("", ("askUser", {"question": "Sugar?"})),
            reply("Served."),
        ],
    )


def serve(params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"answer": "tea" if "Tea" in params.message else "two"})


def answers(terminal: Terminal, job_id: str) -> list[str]:
    """Return the results of calls as recorded in the log."""
    log = terminal.run("log", "--job", job_id, "--type", "finishToolCall", "--json").events
    return [event["contents"][0]["text"] for event in log]


def test_each_question_is_a_form_and_the_answer_goes_to_the_model(asking: Terminal, era: str) -> None:
    async def work() -> str:
        async with attached(asking, era=era, fill=serve) as editor:
            result = await editor.call("guest", query="Serve")
            assert texts(result)[0] == "Served."
            first, second = editor.shown
            assert isinstance(first, ElicitRequestFormParams)
            assert first.message == "Tea or coffee?\nwhy: I serve."
            assert first.requested_schema["properties"]["answer"]["enum"] == ["tea", "coffee"]
            assert isinstance(second, ElicitRequestFormParams)
            assert second.requested_schema["required"] == ["answer"]
            assert structure(result)["totalSteps"] == 3
            (job,) = structure(await editor.call("list_jobs"))["jobs"]
            return job["id"]

    job_id = wait_for(work(), 60)
    assert answers(asking, job_id) == ["tea", "two"]
    log = asking.run("log", "--job", job_id, "--type", "finishToolCall", "--json").events
    assert {(event["by"]["door"], event["by"]["user"]) for event in log} == {("mcp", this_user().user)}
    assert {event["by"]["client"].split()[0] for event in log} == {"mcp"}
    assert f"{this_user().user}, mcp, mcp " in asking.run("log", "--job", job_id).out


@pytest.mark.parametrize(
    ("content", "action", "said", "by_tool"),
    [
        ({"answer": "no", "words": "not today"}, "accept", "no: not today", "maybe"),
        ({"answer": "yes"}, "accept", "yes", "go on then"),
        (None, "decline", "no", ""),
    ],
)
def test_an_approval_takes_a_yes_or_a_no_by_form_and_by_tool(
    terminal: Terminal, era: str, content: dict[str, str] | None, action: str, said: str, by_tool: str
) -> None:
    toml = ASKING_BY_SKILL.replace("tools.askUser]", "tools.askUser]\napproval = true")
    terminal.project(toml, guest=[reply("", ("askUser", {"question": "Deploy?"})), reply("Done.")])
    assert terminal.run("run", "guest", "Go", "--provider", "scripted", "--job-id", "ask").code == 3

    async def work() -> str:
        filled = ElicitResult(action=action, content=content)
        async with attached(terminal, era=era, fill=lambda params: filled) as editor:
            by_form = await editor.call("answer", job="ask", answer=by_tool)
            assert texts(by_form)[0] == "Done."
            result = await editor.call("guest", query="Once more")
            assert texts(result)[0] == "Done."
            return structure(result)["id"]

    assert answers(terminal, wait_for(work(), 60)) == [said]
    assert answers(terminal, "ask") == [said]


@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_who_would_rather_not_answer_is_told_how_to_do_it_later(asking: Terminal, era: str, action: str) -> None:
    async def work() -> str:
        async with attached(asking, era=era, fill=lambda params: ElicitResult(action=action)) as editor:
            result = await editor.call("guest", query="Serve")
            assert not result.is_error
            assert len(editor.shown) == 1
            return structure(result)["id"]

    job_id = wait_for(work(), 60)
    again = asking.run("run", "guest", "coffee", "--continue-job", job_id, "-i", "--provider", "scripted")
    assert again.code == 3
    assert "Sugar?" in again.out


def test_a_client_without_forms_is_told_what_is_asked_and_how_a_person_answers(asking: Terminal, era: str) -> None:
    async def work() -> None:
        async with attached(asking, era=era) as editor:
            waiting = await editor.call("guest", query="Serve")
            job = structure(waiting)
            assert (job["status"], job["question"]) == ("stoppedByInteractiveTool", "Tea or coffee?")
            (text,) = texts(waiting)
            assert "Tea or coffee?" in text
            assert f'perstack answer {job["id"]} "ANSWER"' in text
            refused = await editor.call("answer", job=job["id"], answer="coffee")
            assert "only a person can decide this" in texts(refused)[0]
            assert f"`perstack answer {job['questionId']} coffee`" in texts(refused)[0]
            other = await editor.call("answer", job=job["id"], answer="x", question="other-1-1")
            assert "is not one of Job" in texts(other)[0]
            past = await editor.call("answer", job=job["id"], answer="x", question=f"{job['id']}-1-1")
            assert "has been answered already" in texts(past)[0]
            for word, code in (("coffee", 3), ("none", 0)):
                assert asking.run("answer", job["id"], word, "--provider", "scripted").code == code
            late = await editor.call("answer", job=job["id"], answer="more")
            assert late.is_error
            assert "has no open question" in texts(late)[0]

    wait_for(work(), 60)


def test_the_tools_that_go_on_with_a_job_ask_as_well(asking: Terminal, era: str) -> None:
    assert asking.run("run", "guest", "Serve", "--provider", "scripted", "--job-id", "ask").code == 3

    async def work() -> None:
        async with attached(asking, era=era, fill=serve) as editor:
            result = await editor.call("answer", job="ask", answer="coffee")
            assert texts(result)[0] == "Served."
            assert [form.message for form in editor.shown] == ["Tea or coffee?\nwhy: I serve.", "Sugar?"]

    wait_for(work(), 60)


def test_a_job_that_waits_survives_the_editor_and_is_answered_in_the_next_session(asking: Terminal, era: str) -> None:
    async def begin() -> str:
        async with attached(asking, era=era) as editor:
            return structure(await editor.call("guest", query="Serve"))["id"]

    async def go_on(job_id: str) -> None:
        async with attached(asking, era=era, fill=serve) as editor:
            assert texts(await editor.call("answer", job=job_id, answer="tea"))[0] == "Served."

    wait_for(go_on(wait_for(begin(), 60)), 60)


@pytest.mark.parametrize("leave", [Pipe.close, Pipe.kill])
def test_an_editor_that_is_closed_while_it_shows_the_form_leaves_a_job_that_waits(
    asking: Terminal, leave: Callable[[Pipe], object]
) -> None:
    client = Pipe(asking)
    client.greet(elicitation={"form": {}})
    client.call(1, "guest", query="Serve")
    shown = client.read()
    assert (shown["method"], shown["params"]["message"]) == ("elicitation/create", "Tea or coffee?\nwhy: I serve.")
    leave(client)
    (job,) = asking.run("jobs", "--json").events
    assert job["status"] == "stoppedByInteractiveTool"
    result = asking.run("answer", job["id"], "tea", "--provider", "scripted")
    assert result.code == 3
    assert "Sugar?" in result.out


def test_an_answer_to_a_question_that_was_answered_elsewhere_meanwhile_is_not_taken(asking: Terminal, era: str) -> None:
    def fill(params: ElicitRequestParams) -> ElicitResult:
        if "Tea" in params.message:
            events = asking.run("jobs", "--json").events
            args = ("--continue-job", events[0]["id"], "-i", "--provider", "scripted")
            assert asking.run("run", "guest", "water", *args).code == 3
            return ElicitResult(action="accept", content={"answer": "tea"})
        return ElicitResult(action="accept", content={"answer": "two"})

    async def work() -> str:
        async with attached(asking, era=era, fill=fill) as editor:
            result = await editor.call("guest", query="Serve")
            assert texts(result)[0] == "Served."
            assert [form.message for form in editor.shown][1:] == ["Sugar?"]
            return structure(result)["id"]

    assert answers(asking, wait_for(work(), 60)) == ["water", "two"]


def test_state_that_is_not_ours_is_refused(asking: Terminal) -> None:
    async def work() -> None:
        async with attached(asking, era="stateless") as editor:
            for state in ("nonsense", "{}", json.dumps({"question": "../x"})):
                with pytest.raises(MCPError, match="not given by this server"):
                    await editor.client.session.call_tool("guest", {"query": "x"}, request_state=state)
            state = json.dumps({"question": "no-1-1"})
            result = await editor.client.session.call_tool("guest", {"query": "x"}, request_state=state)
            assert result.is_error
            assert structure(await editor.call("list_jobs"))["jobs"] == []

    wait_for(work(), 60)
