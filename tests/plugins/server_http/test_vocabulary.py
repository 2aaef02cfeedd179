"""One vocabulary for tasks through every door: the same example, sent literally, in camelCase and in snake_case."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from editor import connected, decides, structure, texts
from hosts import wait_for
from http_server import DECIDING_HEADERS, serving
from pydantic.alias_generators import to_camel
from terminal import SECONDS, Terminal

from perstack.errors import UsageError
from perstack.memory import ExecutionMemory

Send = Callable[..., Awaitable[dict[str, Any]]]

STATE = {"done": ["src/auth.py"], "left": ["src/session.py"]}

EXAMPLE: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "create",
        {
            "task_id": "refactor-auth-2026",
            "name": "Refactor auth",
            "description": "Move all of auth to the new session store.",
            "agent_id": "refactorer",
            "status": "running",
            "state": {"done": [], "left": ["src/auth.py", "src/session.py"]},
            "checkpoint_data": {"phase": "planning"},
            "config": {"max_retries": 3, "timeout": 3_600_000, "on_failure": "pause", "checkpoint_interval": 60_000},
        },
    ),
    ("checkpoint", {"task_id": "refactor-auth-2026", "state": STATE, "checkpoint_data": {"phase": "editing"}}),
    (
        "pause",
        {
            "task_id": "refactor-auth-2026",
            "reason": "Waiting for the review of pull request 42",
            "checkpoint_data": {"phase": "review", "pull_request": 42},
        },
    ),
    ("resume", {"task_id": "refactor-auth-2026"}),
    ("fail", {"task_id": "refactor-auth-2026", "error": {"code": "EACCES", "message": "cannot write src/session.py"}}),
    ("resume", {"task_id": "refactor-auth-2026"}),
    ("complete", {"task_id": "refactor-auth-2026", "result": {"files_changed": 2}}),
)
"""An example as users of other memories write it, with argument names that they would guess."""


async def play(send: Send) -> None:
    """Send the example and check the replies."""
    created, kept, paused, resumed, failed, again, done = [
        await send(operation, **given) for operation, given in EXAMPLE
    ]
    assert (created["status"], created["checkpointData"]) == ("running", {"phase": "planning"})
    assert (kept["state"], kept["checkpointData"]) == (STATE, {"phase": "editing"})
    assert (paused["status"], paused["pauseReason"]) == ("paused", "human_input")
    assert paused["pauseMessage"] == "Waiting for the review of pull request 42"
    review = {"phase": "review", "pull_request": 42}
    assert (resumed["status"], resumed["state"], resumed["checkpointData"]) == ("running", STATE, review)
    assert (failed["status"], failed["pauseReason"]) == ("paused", "human_input"), "as its config says"
    assert failed["error"] == "cannot write src/session.py"
    assert failed["errorDetails"] == {"code": "EACCES", "message": "cannot write src/session.py"}
    assert "error" not in again
    assert "errorDetails" not in again
    assert (done["status"], done["result"]) == ("completed", {"files_changed": 2})
    assert (done["checkpointData"], done["checkpoints"]) == (review, 3)


def test_a_checkpoint_of_a_list_has_its_data_under_both_names(tmp_path: Path) -> None:
    async def work() -> None:
        async with ExecutionMemory.open(workspace=tmp_path) as memory:
            await memory.create("t", checkpoint_data={"phase": 1}, start=True)
            await memory.checkpoint("t", data={"phase": 2})
            checkpoints = [json.loads(checkpoint.to_json()) for checkpoint in await memory.list_checkpoints("t")]
            assert (
                [entry["checkpointData"] for entry in checkpoints]
                == [entry["data"] for entry in checkpoints]
                == [{"phase": 1}, {"phase": 2}]
            )

    wait_for(work(), SECONDS)


def camel(value: Any) -> Any:
    """Return the value with keys in camelCase, except for keys of the user's own data, such as those of a state."""
    if not isinstance(value, dict):
        return value
    return {to_camel(key): camel(inner) if key == "config" else inner for key, inner in value.items()}


def as_is(value: Any) -> Any:
    return value


STYLES = pytest.mark.parametrize("style", [camel, as_is], ids=["camelCase", "snake_case"])


@STYLES
@pytest.mark.parametrize("repeats_id", [True, False], ids=["with the id in the body too", "with the id in the path"])
def test_the_example_goes_over_http(tmp_path: Path, style: Callable[[Any], Any], repeats_id: bool) -> None:
    terminal = Terminal(tmp_path)
    terminal.project('[experts.one]\ninstruction = "x"\n')
    with serving(terminal) as (url, _):
        headers = DECIDING_HEADERS
        client = httpx.Client(base_url=url.removesuffix("/mcp"), headers=headers)

        async def send(operation: str, **given: Any) -> dict[str, Any]:
            path = "" if operation == "create" else f"/{given['task_id']}/{operation}"
            method = "PUT" if operation == "checkpoint" else "POST"
            body = {k: v for k, v in given.items() if repeats_id or operation == "create" or k != "task_id"}
            answer = client.request(method, f"/v1/execution{path}", json=style(body))
            assert answer.is_success, answer.text
            return answer.json()

        with client:
            wait_for(play(send), SECONDS)
            other = client.post("/v1/execution/refactor-auth-2026/archive", json={"task_id": "another"})
            assert other.status_code == 400
            assert "the path has refactor-auth-2026 but the body another" in other.json()["detail"]


@STYLES
def test_the_example_goes_over_mcp(tmp_path: Path, style: Callable[[Any], Any]) -> None:
    terminal = Terminal(tmp_path)
    terminal.project('[experts.one]\ninstruction = "x"\n')

    async def work() -> None:
        async with connected(terminal, "--tasks", fill=decides()) as editor:

            async def send(operation: str, **given: Any) -> dict[str, Any]:
                result = await editor.call(f"task_{operation}", **style(given))
                assert not result.is_error, texts(result)
                return structure(result)

            await play(send)

    wait_for(work(), SECONDS)


@STYLES
def test_the_example_goes_through_python(tmp_path: Path, style: Callable[[Any], Any]) -> None:
    async def work() -> None:
        async with ExecutionMemory.open(workspace=tmp_path) as memory:

            async def send(operation: str, **given: Any) -> dict[str, Any]:
                return json.loads((await getattr(memory, operation)(**style(given))).to_json())

            await play(send)
            create: Callable[..., Awaitable[object]] = memory.create
            with pytest.raises(UsageError, match="create: there is no argument `dependsOn`"):
                await create("both", dependsOn=["a"], depends_on=["b"])
            with pytest.raises(UsageError, match="create: there is no argument `Name`"):
                await create("other", Name="a")

    wait_for(work(), SECONDS)


def test_the_example_goes_over_the_command_line(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)

    async def send(operation: str, **given: Any) -> dict[str, Any]:
        words = [given.pop("task_id")]
        if operation == "fail":
            words.append(json.dumps(given.pop("error")))
        given |= given.pop("config", {})
        for name, value in given.items():
            text = f"{value}ms" if name in ("timeout", "checkpoint_interval") else value
            words += [f"--{name.replace('_', '-')}", text if isinstance(text, str) else json.dumps(text)]
        result = terminal.run("task", operation, *words, "--json")
        assert result.code == 0, result.err
        return json.loads(result.out)

    wait_for(play(send), SECONDS)
