"""`perstack submit`, and commands that leave a Job to a worker."""

from __future__ import annotations

import asyncio
import json

import pytest
from engine_workers import served
from memory_workers import ENGINES
from terminal import ASKING, TEAM, Terminal, reply

from perstack.ports.dispatcher import Order

WORKERS = '\n[workers]\ndispatcher = "memory:${ENGINE}"\n'


@pytest.fixture
def team(terminal: Terminal, request: pytest.FixtureRequest) -> Terminal:
    terminal.env["PERSTACK_PLUGINS"] += ",memory_workers"
    terminal.env["ENGINE"] = request.node.name
    return terminal.project('provider = { providerName = "scripted" }\n' + TEAM + WORKERS, lead=[reply("led")])


def ordered(terminal: Terminal, job_id: str) -> Order | None:
    return asyncio.run(ENGINES.open(terminal.env["ENGINE"]).order(job_id))


def test_it_prints_the_id_and_the_job_waits(team: Terminal) -> None:
    done = team.call("submit", "lead", "go", "--priority", "4", "--label", "a=b", "--at", "+2h")
    assert (done.code, len(done.lines)) == (0, 1)
    (job_id,) = done.lines
    order = ordered(team, job_id)
    assert order is not None
    assert (order.priority, order.labels) == (4, {"a": "b"})
    assert order.due > 0
    assert "snapshots = true" in done.err
    result = team.call("jobs", "--json")
    (job,) = result.events
    assert (job["status"], job["resumeAt"], job["queued"]["priority"]) == ("queued", order.due, 4)
    assert "queued" in team.call("jobs").out
    assert "queued" in team.call("log", "--job", job_id).out
    assert [event["id"] for event in team.call("jobs", "--status", "queued", "--json").events] == [job_id]


def test_as_json_it_is_the_job(team: Terminal) -> None:
    job = json.loads(team.call("submit", "lead", "go", "--json", "--job-id", "mine").out)
    assert (job["id"], job["status"], job["queued"]["by"]["door"]) == ("mine", "queued", "cli")
    result = team.call("submit", "lead", "go", "--job-id", "mine")
    assert (result.code, result.out) == (2, "")
    assert "Job mine exists already" in result.err


def test_without_a_dispatcher_one_line_says_what_to_do(terminal: Terminal) -> None:
    terminal.project('provider = { providerName = "scripted" }\n' + TEAM, lead=[reply("led")])
    result = terminal.call("submit", "lead", "go")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "[workers]" in result.err
    assert "--dispatcher" in result.err
    for wrong, named in ((("--at", "soon"), "--at"), (("--dispatcher", "nosuch:x"), "nosuch")):
        result = terminal.call("submit", "lead", "go", *wrong)
        assert (result.code, result.err.count("\n")) == (2, 1)
        assert named in result.err
    assert terminal.call("jobs", "--json").out == ""


def test_an_answer_is_left_to_a_worker_unless_it_is_to_be_driven(team: Terminal) -> None:
    script = [reply("", ("askUser", {"question": "Tea?"})), reply("Thanks.")]
    team.project('provider = { providerName = "scripted" }\n' + ASKING + WORKERS, guest=script)
    assert team.call("submit", "guest", "go", "--job-id", "one").code == 0
    assert served(team, "one").question == "Tea?"
    result = team.call("answer", "one", "yes")
    assert result.code == 0
    assert (json.loads(team.call("jobs", "--json").out)["status"], ordered(team, "one") is not None) == ("queued", True)
    assert served(team, "one").text == "Thanks."
    assert team.call("run", "guest", "go", "--job-id", "two").code == 3
    assert team.call("answer", "two", "yes", "--drive").code == 0
    assert ordered(team, "two") is None


def test_a_queued_job_is_cancelled(team: Terminal) -> None:
    assert team.call("submit", "lead", "go", "--job-id", "one").code == 0
    result = team.call("cancel", "one")
    assert (result.code, result.err) == (0, "")
    assert ordered(team, "one") is None
    assert team.call("resume", "one").code == 0


def test_the_log_of_a_job_says_that_a_worker_took_it(team: Terminal) -> None:
    assert team.call("submit", "lead", "go", "--job-id", "one").code == 0
    served(team, "one")
    result = team.call("log", "one", columns=80)
    assert (result.code, result.err) == (0, "")
    assert "from the queue" in result.out
