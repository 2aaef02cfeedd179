"""Questions of tools at work, those of a delegate among them, put to the person behind the client."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from editor import attached, structure, texts
from hosts import wait_for
from mcp_types import ElicitRequestFormParams, ElicitRequestParams, ElicitResult
from terminal import Terminal, reply

AGENCY = """
[experts.agency]
description = "plans"
instruction = "[[agency]] You plan."
delegates = ["booker"]
[experts.booker]
description = "books"
instruction = "[[booker]] You book."
[experts.booker.skills.travel]
type = "pluginSkill"
plugin = "travel"
"""


@pytest.fixture
def agency(terminal: Terminal) -> Terminal:
    """Write a project whose Expert's delegate calls a tool that asks for a city and a number of nights."""
    terminal.env |= {
        "PERSTACK_PLUGINS": "perstack.testing.plugin,travel",
        "PYTHONPATH": str(Path(__file__).parents[2] / "support"),
    }
    return terminal.project(
        AGENCY,
        **{
            "[[agency]]": [reply("", ("booker", {"query": "book"})), reply("Planned.")],
            "[[booker]]": [reply("", ("book", {})), reply("Booked.")],
        },
    )


def tool_texts(terminal: Terminal, job_id: str) -> list[str]:
    """Return the tool results that the delegate's model received."""
    log = terminal.run("log", "--job", job_id, "--run", f"{job_id}-2", "--type", "finishToolCall", "--json").events
    return [event["contents"][0]["text"] for event in log]


def test_a_delegates_tool_asks_by_a_form_of_its_own_fields(agency: Terminal, era: str) -> None:
    async def work() -> str:
        filled = ElicitResult(action="accept", content={"city": "Rome", "nights": 2})
        async with attached(agency, era=era, fill=lambda params: filled) as editor:
            result = await editor.call("agency", query="A trip")
            assert texts(result)[0] == "Planned."
            (form,) = editor.shown
            assert isinstance(form, ElicitRequestFormParams)
            assert form.message == "skill travel: Where to, and for how long?"
            assert form.requested_schema["properties"]["nights"] == {"type": "integer", "minimum": 1}
            assert form.requested_schema["required"] == ["city"]
            return structure(result)["id"]

    assert tool_texts(agency, wait_for(work(), 60)) == ["accept Rome 2"]


def test_to_decline_is_an_answer_to_the_tool_and_to_close_the_form_is_none(agency: Terminal, era: str) -> None:
    async def decline() -> str:
        async with attached(agency, era=era, fill=lambda params: ElicitResult(action="decline")) as editor:
            result = await editor.call("agency", query="A trip")
            assert texts(result)[0] == "Planned."
            return structure(result)["id"]

    async def close() -> None:
        async with attached(agency, era=era, fill=lambda params: ElicitResult(action="cancel")) as editor:
            waiting = structure(await editor.call("agency", query="A trip"))
            assert waiting["question"] == "Where to, and for how long?"
            again = structure(await editor.call("answer", job=waiting["id"], answer='{"city": "Oslo"}'))
            assert (again["status"], len(editor.shown)) == ("stoppedByInteractiveTool", 2)

    assert tool_texts(agency, wait_for(decline(), 60)) == ["decline None None"]
    wait_for(close(), 60)


def test_an_answer_that_does_not_fit_is_refused_and_the_job_waits(agency: Terminal, era: str) -> None:
    async def work() -> None:
        wrong = ElicitResult(action="accept", content={"city": "Rome", "nights": 0})
        async with attached(agency, era=era, fill=lambda params: wrong) as editor:
            result = await editor.call("agency", query="A trip")
            assert structure(result)["status"] == "stoppedByInteractiveTool"
            assert any("The answer was not accepted: the answer does not fit: nights" in text for text in texts(result))
            assert len(editor.shown) == 1

    wait_for(work(), 60)


SERVER = """
[experts.traveller]
description = "travels"
instruction = "[[traveller]] You travel."
[experts.traveller.skills.asking]
type = "mcpStdioSkill"
command = '{python}'
args = ['{server}', '{era}']
"""
ASKING_SERVER = Path(__file__).parents[2] / "plugins" / "mcp" / "servers" / "asking.py"


def travelling(terminal: Terminal, server_era: str, *tools: str) -> Terminal:
    """Write a project whose Expert calls tools of an MCP server that ask while they run."""
    toml = SERVER.format(python=sys.executable, server=ASKING_SERVER, era=server_era)
    return terminal.project(toml, **{"[[traveller]]": [*(reply("", (tool, {})) for tool in tools), reply("Off.")]})


def server_said(terminal: Terminal, job_id: str) -> list[str]:
    log = terminal.run("log", "--job", job_id, "--type", "finishToolCall", "--json").events
    return [event["contents"][0]["text"] for event in log]


@pytest.mark.parametrize("server_era", ["handshake", "stateless"])
def test_what_an_mcp_server_asks_is_a_form_of_the_editor_and_the_server_gets_what_was_filled_in(
    terminal: Terminal, era: str, server_era: str
) -> None:
    def fill(params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        fields = params.requested_schema["properties"]
        return ElicitResult(action="accept", content={"city": "Rome"} if "city" in fields else {"nights": 3})

    async def work() -> str:
        async with attached(travelling(terminal, server_era, "book", "trip"), era=era, fill=fill) as editor:
            result = await editor.call("traveller", query="A trip")
            assert texts(result)[0] == "Off."
            assert [form.message for form in editor.shown] == [
                f"skill asking: {text}" for text in ("you: where to?", "Where to?", "How long?")
            ]
            booking = editor.shown[0]
            assert isinstance(booking, ElicitRequestFormParams)
            assert booking.requested_schema["properties"]["nights"] == {"type": "integer", "default": 2}
            return structure(result)["id"]

    job_id = wait_for(work(), 60)
    assert server_said(terminal, job_id) == ['accept {"city": "Rome", "nights": 2}', "Rome 3"]


def test_a_server_that_acts_before_it_asks_the_persons_form_acts_once(terminal: Terminal, era: str) -> None:
    filled = ElicitResult(action="accept", content={"city": "Rome"})

    async def work() -> None:
        async with attached(travelling(terminal, "handshake", "charge"), era=era, fill=lambda params: filled) as editor:
            assert texts(await editor.call("traveller", query="A trip"))[0] == "Off."

    wait_for(work(), 60)
    assert (terminal.workspace / "charged").read_text() == "once\n"


def test_without_forms_the_question_of_an_mcp_server_is_in_the_result_and_is_answered_by_a_person(
    terminal: Terminal, era: str
) -> None:
    async def work() -> str:
        async with attached(travelling(terminal, "handshake", "book"), era=era) as editor:
            waiting = structure(await editor.call("traveller", query="A trip"))
            assert (waiting["question"], waiting["pauseReason"]) == ("you: where to?", "human_input")
            assert "To answer, give a JSON object with city (string), nights (integer)" in waiting["next"]
            refused = await editor.call("answer", job=waiting["id"], answer='{"city": "Oslo"}')
            assert "only a person can decide this" in texts(refused)[0]
            assert terminal.run("answer", waiting["id"], '{"city": "Oslo"}', "--provider", "scripted").code == 0
            return waiting["id"]

    assert server_said(terminal, wait_for(work(), 60)) == ['accept {"city": "Oslo", "nights": 2}']


def test_an_address_that_an_mcp_server_wants_opened_is_put_to_the_person(terminal: Terminal, era: str) -> None:
    async def work() -> str:
        opened = ElicitResult(action="accept", content={"answer": "yes"})
        async with attached(travelling(terminal, "handshake", "pay"), era=era, fill=lambda _: opened) as editor:
            result = await editor.call("traveller", query="A trip")
            assert texts(result)[0] == "Off."
            (form,) = editor.shown
            assert "https://pay.example.com/7" in form.message
            return structure(result)["id"]

    assert server_said(terminal, wait_for(work(), 60)) == ["accept False"]
