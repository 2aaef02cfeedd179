"""Each reply over HTTP is what the OpenAPI page that the server gives says, with no key that it does not name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from http_server import DECIDING_HEADERS, serving
from terminal import SECONDS, Terminal, reply, trusting

from perstack.core.base.records import Record
from perstack.doors.operations import AnyArguments, OfferedOperation, task_operation
from perstack.doors.operations.jobs import JOB_OPERATIONS
from perstack.tasks.operation_table import OPERATIONS

TOML = """
provider = { providerName = "scripted" }
workers = { dispatcher = "memory:jobs" }
[permissions]
ask = ["appendTextFile"]
[experts.writer]
instruction = "You write."
"""
TASK, OTHER = "/v1/execution/t", "/v1/execution/other"
REQUESTS: tuple[tuple[str, str, str, dict[str, Any] | None], ...] = (
    ("create", "POST", "/v1/execution", {"taskId": "t", "name": "tea", "start": False}),
    ("start", "POST", f"{TASK}/start", {}),
    ("checkpoint", "PUT", f"{TASK}/checkpoint", {"name": "boiled", "state": {"cups": 2}}),
    ("checkpoints", "GET", f"{TASK}/checkpoints", None),
    ("pause", "POST", f"{TASK}/pause", {"reason": "human_input", "message": "Sugar?"}),
    ("answer", "POST", f"{TASK}/answer", {"value": "One."}),
    ("resume", "POST", f"{TASK}/resume", {}),
    ("fail", "POST", f"{TASK}/fail", {"error": "spilt"}),
    ("retry", "POST", f"{TASK}/retry", {}),
    ("complete", "POST", f"{TASK}/complete", {"result": {"tea": True}}),
    ("get", "GET", TASK, None),
    ("list", "GET", "/v1/execution", None),
    ("archive", "POST", f"{TASK}/archive", {}),
    ("create", "POST", "/v1/execution", {"taskId": "other"}),
    ("cancel", "POST", f"{OTHER}/cancel", {}),
    ("delete", "DELETE", OTHER, None),
    ("listApprovals", "GET", "/v1/approvals", None),
    ("tell_job", "POST", "/v1/jobs/job/tell", {"text": "only once"}),
    ("decideApproval", "POST", "/v1/approvals/{question}", {"answer": "yes", "wait": True}),
    ("getJob", "GET", "/v1/jobs/job", None),
    ("submitJob", "POST", "/v1/jobs", {"expert": "writer", "query": "logs", "labels": {"team": "x"}}),
    ("getJob", "GET", "/v1/jobs/{submitted}", None),
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[httpx.Client]:
    """Yield a client of a server with a Job that waits for an approval, with the right to decide."""
    (tmp_path / "a.txt").write_text("")
    terminal = Terminal(tmp_path)
    terminal.env["PERSTACK_PLUGINS"] += ",memory_workers"
    terminal.env["PYTHONPATH"] = str(Path(__file__).parents[2] / "support")
    terminal.project(TOML, writer=[reply("", ("appendTextFile", {"path": "a.txt", "text": "x"})), reply("Done.")])
    with trusting(tmp_path):
        assert terminal.call("run", "writer", "Go", "--job-id", "job").code == 3
        with (
            serving(terminal) as (url, _),
            httpx.Client(base_url=url.removesuffix("/mcp"), headers=DECIDING_HEADERS, timeout=SECONDS) as client,
        ):
            yield client


def routed() -> dict[str, OfferedOperation[AnyArguments]]:
    operations = (*map(task_operation, OPERATIONS), *JOB_OPERATIONS)
    return {operation.name: operation for operation in operations if operation.route is not None}


def closed(schema: Any) -> Any:
    """Return the schema without room for keys that it does not name."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(each) for name, each in schema.items()}
    is_object = schema.get("type") == "object" and isinstance(schema.get("properties"), dict)
    return {"additionalProperties": False, **inner} if is_object else inner


def schema_of(described: dict[str, Any], name: str, status: int) -> dict[str, Any]:
    """Return the schema that the page has for the reply of an operation."""
    (operation,) = (one for path in described["paths"].values() for one in path.values() if one["operationId"] == name)
    assert str(status) in operation["responses"], (name, status)
    content = operation["responses"][str(status)]["content"]["application/json"]["schema"]
    return closed({**content, "components": described["components"]})


def test_each_operation_replies_with_what_it_declares(server: httpx.Client) -> None:
    described = server.get("/openapi.json").json()
    assert {name for name, *_ in REQUESTS} == set(routed())
    known: dict[str, str] = {}
    for name, method, path, body in REQUESTS:
        done = server.request(method, re.sub(r"\{(\w+)\}", lambda match: known[match[1]], path), json=body)
        assert done.is_success, (name, done.text)
        jsonschema.validate(done.json(), schema_of(described, name, done.status_code))
        if name == "listApprovals":
            known["question"] = done.json()["approvals"][0]["id"]
        if name == "submitJob":
            known["submitted"] = done.json()["id"]


def test_an_undeclared_key_would_be_found(server: httpx.Client) -> None:
    described = server.get("/openapi.json").json()
    whole = server.get("/v1/jobs/job").json()
    with pytest.raises(jsonschema.ValidationError, match="Additional properties are not allowed"):
        jsonschema.validate(whole, schema_of(described, "submitJob", 202))


def test_the_model_of_each_reply_is_the_parameter_of_its_operation() -> None:
    for operation in (*routed().values(), *JOB_OPERATIONS):
        assert issubclass(operation.gives, Record)
        assert operation.gives is not Record
