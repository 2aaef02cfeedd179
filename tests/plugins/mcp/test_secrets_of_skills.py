"""Secrets in the arguments, the variables and the address of a server reach it, and nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from terminal import Result, Terminal, reply

TELLING = Path(__file__).parent / "servers" / "telling.py"

ARG, PASSWORD, VARIABLE, QUERY, NAMED = (
    "canary-of-" + name for name in ("arg", "password", "variable", "query", "name")
)
LITERAL = (ARG, PASSWORD, VARIABLE, QUERY)

TOML = """
maxSteps = {steps}
[experts.solo]
instruction = "x"
[experts.solo.skills.teller]
type = "mcpStdioSkill"
command = {python}
args = [
  {server}, "--token", "{arg}", "--url=postgres://ada:{password}@db/x", "--user=${{WHO}}", "--api-key=${{API_KEY}}",
]
env = {{ SERVICE_TOKEN = "{variable}", LEVEL = "debug", GREETING = "hello ${{WHO}}" }}
[experts.solo.skills.web]
type = "mcpSseSkill"
endpoint = "http://ada:{password}@127.0.0.1:${{PORT}}/mcp?api_key={query}"
allowLocalNetwork = true
"""


def written(terminal: Terminal, **changes: str | int) -> None:
    values = {"arg": ARG, "password": PASSWORD, "variable": VARIABLE, "query": QUERY, "steps": 1, **changes}
    toml = TOML.format(python=json.dumps(sys.executable), server=json.dumps(str(TELLING)), **values)
    (terminal.workspace / "perstack.toml").write_text(toml)


@pytest.fixture
def project(terminal: Terminal) -> Terminal:
    """An Expert that stops at its step limit after a call of the server, and again after the next."""
    terminal.env |= {"WHO": "ada", "API_KEY": NAMED, "PORT": "9", "HOME": str(terminal.workspace)}
    written(terminal)
    return terminal.script(solo=[reply("", ("touch", {})), reply("", ("touch", {})), reply("end")])


def lines_received(terminal: Terminal) -> list[dict]:
    return [json.loads(line) for line in (terminal.workspace / "told.jsonl").read_text().splitlines()]


def assert_nothing_tells(terminal: Terminal, *results: Result, secrets: tuple[str, ...] = (*LITERAL, NAMED)) -> None:
    """None of them is in what was written, nor in any file but those that hold it on purpose."""
    own = {"perstack.toml", "told.jsonl"}
    for secret in secrets:
        for result in results:
            assert secret not in result.out
            assert secret not in result.err
        for path in terminal.workspace.rglob("*"):
            if path.is_file() and path.name not in own:
                assert secret.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("storage", ["file:perstack", "sqlite:perstack/state.db"])
def test_they_are_used_and_are_in_no_event_no_file_and_no_error(project: Terminal, storage: str) -> None:
    place = ("--storage", storage)
    run = project.run("run", "solo", "q", "--provider", "scripted", "--job-id", "job", *place)
    assert run.code == 4, run.err
    assert "api_key" in run.out, "the address is recorded, but for its secrets"
    (first,) = lines_received(project)
    assert first["args"] == [
        "--token",
        ARG,
        f"--url=postgres://ada:{PASSWORD}@db/x",
        "--user=ada",
        f"--api-key={NAMED}",
    ]
    wanted = {"SERVICE_TOKEN": VARIABLE, "LEVEL": "debug", "GREETING": "hello ada"}
    assert wanted.items() <= first["env"].items()
    resumed = project.run("resume", "job", "--provider", "scripted", "--max-steps", "9", *place)
    assert resumed.code == 0, resumed.err
    assert lines_received(project)[1]["args"] == first["args"], "a resumed Run has them from today's perstack.toml"
    others = [project.call(*command, *place) for command in (("log", "--json"), ("log",), ("jobs",), ("verify", "job"))]
    installed = project.call("install", *place)
    assert "teller" in (project.workspace / "perstack.lock").read_text()
    assert_nothing_tells(project, run, resumed, installed, *others)


def test_a_resumed_run_takes_a_secret_that_was_changed_since(project: Terminal) -> None:
    assert project.run("run", "solo", "q", "--provider", "scripted", "--job-id", "job").code == 4
    written(project, arg="canary-changed", variable="canary-changed-too")
    resumed = project.run("resume", "job", "--provider", "scripted", "--max-steps", "9")
    assert resumed.code == 0, resumed.err
    second = lines_received(project)[1]
    assert (second["args"][1], second["env"]["SERVICE_TOKEN"]) == ("canary-changed", "canary-changed-too")
    assert_nothing_tells(project, resumed, secrets=("canary-changed",))


def test_a_secret_that_is_nowhere_any_more_is_said_and_no_digest_is_used_for_it(project: Terminal) -> None:
    assert project.run("run", "solo", "q", "--provider", "scripted", "--job-id", "job").code == 4
    toml = (project.workspace / "perstack.toml").read_text()
    (project.workspace / "perstack.toml").write_text(toml.replace("skills.teller", "skills.other"))
    resumed = project.run("resume", "job", "--provider", "scripted", "--max-steps", "9")
    assert resumed.code == 1
    assert "skill 'teller' was started with a secret, which is not recorded" in resumed.err
    assert len(lines_received(project)) == 1


def test_validate_names_each_place_and_the_way_out(project: Terminal) -> None:
    done = project.run("validate")
    assert done.code == 0
    lines = [line for line in (done.out + done.err).splitlines() if "looks like a secret" in line]
    places = (
        "skills.teller.args[2]",
        "skills.teller.args[3]",
        "skills.teller.env.SERVICE_TOKEN",
        "skills.web.endpoint",
    )
    assert len(lines) == len(places)
    assert all(place in line for place, line in zip(places, lines, strict=True))
    assert all("`${VAR}`" in line for line in lines)
    assert_nothing_tells(project, done)


def test_a_variable_that_is_not_set_is_named(project: Terminal) -> None:
    del project.env["WHO"]
    failed = project.run("run", "solo", "q", "--provider", "scripted")
    assert failed.code == 1
    assert "skill 'teller' needs WHO for its args" in failed.err


def test_a_secret_of_an_evaluator_is_used_and_is_in_no_fact_and_no_error(terminal: Terminal) -> None:
    measure = "echo $@ > told.jsonl; [ -e good ] && echo '{\"score\": 1}'"
    evaluator = json.dumps(["sh", "-c", measure, "measure", "--token", ARG, f"https://ada:{PASSWORD}@example.com"])
    toml = f'[experts.solo]\ninstruction = "x"\n[experts.solo.iterate]\nmaxIterations = 1\nevaluator = {evaluator}\n'
    (terminal.workspace / "perstack.toml").write_text(toml)
    terminal.script(solo=[reply("made")])
    failed = terminal.run("iterate", "solo", "q", "--id", "it", "--provider", "scripted")
    assert failed.code == 1
    assert "--token secret-sha256:" in failed.err
    (terminal.workspace / "good").touch()
    resumed = terminal.run("resume", "it", "--provider", "scripted")
    assert resumed.code == 0, resumed.err
    assert (terminal.workspace / "told.jsonl").read_text() == f"--token {ARG} https://ada:{PASSWORD}@example.com\n"
    assert_nothing_tells(terminal, failed, resumed, secrets=(ARG, PASSWORD))
