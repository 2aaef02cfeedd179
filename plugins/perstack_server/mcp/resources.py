"""Jobs, Runs, checkpoints and Experts as MCP resources."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import mcp_types as types
from mcp.shared.exceptions import MCPError

from perstack.core.base.ids import job_of_run, place_of
from perstack.core.definitions.secrets import without_secrets
from perstack.dataclass import dataclass
from perstack.doors.served_project import ServedProject
from perstack.doors.shared.next_step_phrases import mcp_phrase
from perstack.errors import NotFound, PerstackError
from perstack_server.mcp.notifications import CHECKPOINT, EVENTS, EXPERT, JOB, JOBS, UriTemplate

_JSON = "application/json"
_JSON_LINES = "application/x-ndjson"
_LISTED = 100

Read = Callable[[ServedProject, str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class _Resource:
    name: str
    address: UriTemplate
    description: str
    mime_type: str
    read: Read

    def to_template(self) -> types.ResourceTemplate:
        return types.ResourceTemplate(
            name=self.name, uri_template=self.address.template, description=self.description, mime_type=self.mime_type
        )


async def _job(state: ServedProject, job_id: str) -> str:
    return (await state.current_job(job_id)).to_json().decode()


async def _checkpoint(state: ServedProject, checkpoint_id: str) -> str:
    await state.job(place_of(checkpoint_id)[0])
    return (await state.host.jobs.checkpoint(checkpoint_id)).to_json().decode()


async def _events(state: ServedProject, run_id: str) -> str:
    await state.job(job_of_run(run_id))
    logs = await state.host.jobs.logs(job_of_run(run_id), run_id=run_id)
    return "".join(f"{line.decode()}\n" for log in logs for line in log.lines)


async def _expert(state: ServedProject, key: str) -> str:
    expert = next((expert for expert in state.definitions.experts.values() if expert.key == key), None)
    if expert is None:
        raise NotFound(f"there is no Expert {key!r}")
    return without_secrets(expert).to_json().decode()


KINDS = (
    _Resource("job", JOB, "The state of a Job: its result or question, its totals, its Runs", _JSON, _job),
    _Resource(
        "checkpoint", CHECKPOINT, "The full state of a Run at a checkpoint, with all its messages", _JSON, _checkpoint
    ),
    _Resource("events", EVENTS, "The events of a Run, one JSON object per line", _JSON_LINES, _events),
    _Resource("expert", EXPERT, "An Expert's definition", _JSON, _expert),
)


def list_resources(state: ServedProject) -> list[types.Resource]:
    """Return the list of Jobs and each Expert as resources. Single Jobs are in the list and have a template."""
    resource = types.Resource(
        name="jobs", uri=JOBS, description="The Jobs, the most recently written first", mime_type=_JSON
    )
    experts = [
        types.Resource(
            name=expert.key,
            uri=EXPERT.uri(expert.key),
            description=expert.description or f"The Expert {expert.key}",
            mime_type=_JSON,
        )
        for expert in state.definitions.experts.values()
    ]
    return [resource, *experts]


async def read(state: ServedProject, uri: str) -> types.ReadResourceResult:
    """Return the contents of a resource. Raises MCPError if it does not exist."""
    try:
        text, mime_type = await _read(state, uri)
    except PerstackError as error:
        raise MCPError(types.INVALID_PARAMS, error.text_for(mcp_phrase), {"uri": uri}) from error
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, mime_type=mime_type, text=text)])


async def _read(state: ServedProject, uri: str) -> tuple[str, str]:
    if uri == JOBS:
        page = await state.page_of_jobs(limit=_LISTED)
        jobs = [json.loads(summary.to_json()) for summary in page.jobs]
        return json.dumps({"jobs": jobs, "next": page.next}, ensure_ascii=False), _JSON
    for kind in KINDS:
        value = kind.address.value_in(uri)
        if value is not None:
            return await kind.read(state, value), kind.mime_type
    known = ", ".join((JOBS, *(kind.address.template for kind in KINDS)))
    raise NotFound(f"there is no resource {uri}; available: {known}")
