"""Operations on Jobs are declared once: one more class and row, and MCP and HTTP have it."""

from __future__ import annotations

import asyncio
from typing import cast

import httpx
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator, validate
from pages import ROOT
from pydantic import Field
from starlette.applications import Starlette

from perstack.doors.operations import OfferedOperation, OperationArguments, OperationCall, R, Route
from perstack.doors.operations.jobs import JOB_OPERATIONS
from perstack.doors.operations.views import SubmittedJob
from perstack.doors.served_project import ServedProject
from perstack.oversight.needed_decisions import FREE, FreeArgument
from perstack_server.http import openapi, routes
from perstack_server.mcp.tools import list_tools


class Remark(OperationArguments[SubmittedJob]):
    """Remark on a Job. This is an operation that only this test has."""

    id: FreeArgument[str]
    loud_words: FreeArgument[str] = Field(description="What is print_message.")

    async def perform(self, call: OperationCall[SubmittedJob, R]) -> R:
        return call.reply(SubmittedJob(id=f"{self.id}-{self.loud_words}", status="queued"), "remarked")


REMARK = OfferedOperation(
    "remark", Remark, "read", FREE, "Remark", Route("POST", "/v1/jobs/{id}/remark", {200: "done"})
)


def test_one_more_row_is_a_tool_and_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (routes, openapi):
        monkeypatch.setattr(module, "JOB_OPERATIONS", (*JOB_OPERATIONS, REMARK))
    (tool,) = list_tools({}, {"remark": REMARK})
    assert (tool.name, tool.title, tool.description) == ("remark", "Remark", " ".join((Remark.__doc__ or "").split()))
    assert list(tool.input_schema["properties"]) == ["id", "loudWords"]
    described = openapi.describe_api("http://here")
    validate(described, cls=OpenAPIV31SpecValidator)
    paths = described["paths"]
    assert isinstance(paths, dict)
    request = paths["/v1/jobs/{id}/remark"]["post"]
    assert [parameter["name"] for parameter in request["parameters"]] == ["id"]
    assert {"loudWords", "loud_words"} <= set(
        request["requestBody"]["content"]["application/json"]["schema"]["properties"]
    )
    app = Starlette(routes=routes.job_routes(cast("ServedProject", None)))

    async def over_http() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            for key in ("loudWords", "loud_words"):
                done = await client.post("/v1/jobs/tea/remark", json={key: "well"})
                assert (done.status_code, done.json()) == (200, {"id": "tea-well", "status": "queued"}), done.text
            wrong = await client.post("/v1/jobs/tea/remark", json={"loud": "well"})
            assert (wrong.status_code, "`loud`" in wrong.json()["detail"]) == (400, True)

    asyncio.run(over_http())


def test_each_operation_is_at_a_door_and_declared_in_one_file() -> None:
    files = {path: path.read_text() for path in (ROOT / "host/perstack/doors").rglob("*.py")}
    for operation in JOB_OPERATIONS:
        assert operation.title is not None or operation.route is not None, operation.name
        named = [path.name for path, text in files.items() if f"{operation.arguments.__name__}(OperationArg" in text]
        used = [path for path, text in files.items() if f" {operation.arguments.__name__}, " in text]
        assert len(named) == len(used) == 1, operation.name
