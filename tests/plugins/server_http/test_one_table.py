"""Operations on tasks are declared once: one more entry in the table, and every door has it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import httpx
import pytest
from hosts import wait_for
from openapi_spec_validator import OpenAPIV31SpecValidator, validate
from pages import ROOT
from pydantic import Field
from starlette.applications import Starlette

from perstack.core.definitions.skills import PluginSkill
from perstack.doors.cli.tasks import COMMAND_HELP, command_of, task_command
from perstack.doors.shared.next_step_phrases import BASE
from perstack.errors import NotFound
from perstack.memory import ExecutionMemory
from perstack.oversight.needed_decisions import FREE
from perstack.tasks.arguments import Text
from perstack.tasks.events import CheckpointTask, StoredTaskEvent
from perstack.tasks.memory import TaskMemory
from perstack.tasks.operation_table import OPERATIONS, Operation
from perstack.tasks.operations import NOT_FOR_EXPERTS, ChangeCommand, DecisionInput
from perstack.tasks.state import TaskState
from perstack.testing.in_memory_storage import InMemoryStorages
from perstack_memory.tools import kit_of
from perstack_server.http.openapi import describe_api
from perstack_server.http.routes import routes
from perstack_server.mcp.tools import TASK_TOOLS, list_tools

NAMES = [operation.name for operation in OPERATIONS]
SKILL = PluginSkill(name="memory", plugin="@perstack/execution-memory")
LOOKS_ELSEWHERE = {"create", "list", "get", "checkpoints", "pause", "resume", "delete"}
"""Operations that need more than their task, for which the engine has a special case."""


@dataclass(frozen=True)
class Remark(ChangeCommand):
    """Remark on a task. This is an operation that only this test has."""

    words: Annotated[Text, FREE, Field(description="What is print_message.")]
    loud_words: Annotated[Text | None, NOT_FOR_EXPERTS, FREE, Field(description="The same, loud.")] = None

    def decide(self, task: TaskState, given: DecisionInput) -> Sequence[StoredTaskEvent]:
        return [CheckpointTask(task_id=task.task_id, timestamp=given.now, name=self.loud_words or self.words)]


REMARK = Operation("remark", Remark, "POST", "/{taskId}/remark", "remarkTask", FREE)


@pytest.fixture
def memory(tmp_path: Path) -> ExecutionMemory:
    return ExecutionMemory(InMemoryStorages().open("tasks", tmp_path))


def test_every_door_has_every_operation(memory: ExecutionMemory) -> None:
    methods = {name for name, one in vars(TaskMemory).items() if inspect.iscoroutinefunction(one)} - {
        "do",
        "subject_of",
    }
    assert methods == {*NAMES, "list_checkpoints"} - {"checkpoints"}
    served = {(method, route.path) for route in routes(memory) for method in route.methods or ()}
    assert {(operation.method, f"{BASE}{operation.path}") for operation in OPERATIONS} <= served
    assert [tool.name for tool in list_tools({}, TASK_TOOLS)] == [f"task_{name}" for name in NAMES]
    assert [tool.name for tool in kit_of(OPERATIONS).known_tools(SKILL)] == [
        operation.tool for operation in OPERATIONS if "expert" in operation.callers
    ]
    assert set(task_command.commands) == {*NAMES, "run-due"}
    assert {*COMMAND_HELP, "delete"} == set(NAMES)


def test_one_more_entry_is_an_operation_at_every_door(memory: ExecutionMemory) -> None:
    operations = (*OPERATIONS, REMARK)
    app = Starlette(routes=routes(memory, operations))

    async def over_http() -> None:
        await memory.create("t", start=True)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            done = await client.post(f"{BASE}/t/remark", json={"words": "well", "loudWords": "WELL"})
            assert (done.status_code, done.json()["version"]) == (200, 3), done.text
            snake = await client.post(f"{BASE}/t/remark", json={"words": "well", "loud_words": "OH"})
            assert snake.json()["version"] == 4
            wrong = await client.post(f"{BASE}/t/remark", json={"word": "well"})
            assert wrong.status_code == 400
        names = [checkpoint.name for checkpoint in await memory.list_checkpoints("t")]
        assert names == ["WELL", "OH"]

    wait_for(over_http())
    described = describe_api("http://here", operations)["paths"]
    assert isinstance(described, dict)
    assert f"{BASE}/{{taskId}}/remark" in described
    *_, tool = kit_of(operations).known_tools(SKILL)
    assert tool.name == "remarkTask"
    assert list(tool.input_schema["properties"]) == ["task_id", "words", "expected_version"]
    command = command_of(REMARK)
    assert command.help == "Remark on a task. This is an operation that only this test has."
    assert [param.name for param in command.params][:4] == ["task_id", "words", "loud_words", "expected_version"]


def test_an_ordinary_operation_is_declared_in_three_places() -> None:
    for operation in OPERATIONS:
        named = sorted(str(file.relative_to(ROOT)) for file in _sources() if operation.command.__name__ in _names(file))
        places = [f"host/perstack/{one}.py" for one in ("tasks/operations", "tasks/operation_table", "tasks/memory")]
        if operation.name in LOOKS_ELSEWHERE:
            places.append("host/perstack/tasks/execution_memory.py")
        if operation.name in ("create", "list"):
            places.append("plugins/perstack_memory/tools.py")  # an Expert is the agent, and lists less
        assert named == sorted(places), operation.name


def _sources() -> Iterator[Path]:
    for folder in ("host/perstack", "plugins"):
        yield from sorted((ROOT / folder).rglob("*.py"))


@cache
def _names(file: Path) -> set[str]:
    """Return the names that a file imports from the module of operations, or declares there."""
    tree = ast.parse(file.read_text())
    taken = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "perstack.tasks.operations"
        for alias in node.names
    }
    if any(
        isinstance(node, ast.ImportFrom)
        and node.module == "perstack.tasks"
        and any(alias.name == "operations" for alias in node.names)
        for node in ast.walk(tree)
    ):
        taken |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "operations"
        }
    is_home = file.parts[-3:] == ("perstack", "tasks", "operations.py")
    return taken | {node.name for node in ast.walk(tree) if is_home and isinstance(node, ast.ClassDef)}


def test_the_description_says_what_is_taken_in_both_spellings() -> None:
    found = describe_api("http://here")
    validate(found, cls=OpenAPIV31SpecValidator)
    paths = found["paths"]
    assert isinstance(paths, dict)
    create = paths[BASE]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"taskId", "task_id", "dependsOn", "depends_on"} <= set(create["properties"])
    assert create["allOf"] == [{"anyOf": [{"required": ["taskId"]}, {"required": ["task_id"]}]}]
    assert create["required"] == []
    listed = [parameter["name"] for parameter in paths[BASE]["get"]["parameters"]]
    assert {"agentId", "agent_id", "olderThan", "older_than"} <= set(listed)
    got = paths[f"{BASE}/{{taskId}}"]["get"]["parameters"]
    assert [(one["name"], one["in"]) for one in got] == [("taskId", "path")]


def test_every_answer_to_a_task_that_is_not_there_is_the_same(memory: ExecutionMemory) -> None:
    async def work() -> None:
        for operation in OPERATIONS:
            needed = {argument.name: "t" for argument in operation.arguments("program") if argument.default is ...}
            if operation.name in ("create", "list"):
                continue
            given = {**needed, "reason": "checkpoint"} if operation.name == "pause" else needed
            with pytest.raises(NotFound, match="there is no task t"):
                await memory.do(operation.command(**given))

    wait_for(work())
