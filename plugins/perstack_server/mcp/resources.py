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
_MAX_LISTED_JOBS = 100

Read = Callable[[ServedProject, str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of resource, with the template of its URIs and the function that reads one."""

    name: str
    address: UriTemplate
    description: str
    mime_type: str
    read: Read

    def to_template(self) -> types.ResourceTemplate:
        return types.ResourceTemplate(
            name=self.name, uri_template=self.address.template, description=self.description, mime_type=self.mime_type
        )


async def _read_job(served_project: ServedProject, job_id: str) -> str:
    return (await served_project.current_job(job_id)).to_json().decode()


async def _read_checkpoint(served_project: ServedProject, checkpoint_id: str) -> str:
    await served_project.job(place_of(checkpoint_id)[0])
    return (await served_project.host.jobs.checkpoint(checkpoint_id)).to_json().decode()


async def _read_events(served_project: ServedProject, run_id: str) -> str:
    await served_project.job(job_of_run(run_id))
    logs = await served_project.host.jobs.logs(job_of_run(run_id), run_id=run_id)
    return "".join(f"{line.decode()}\n" for log in logs for line in log.lines)


async def _read_expert(served_project: ServedProject, key: str) -> str:
    expert = next((expert for expert in served_project.definitions.experts.values() if expert.key == key), None)
    if expert is None:
        raise NotFound(f"there is no Expert {key!r}")
    return without_secrets(expert).to_json().decode()


_CHECKPOINT_TEXT = "The full state of a Run at a checkpoint, with all its messages"
KINDS = (
    _Kind("job", JOB, "The state of a Job: its result or question, its totals, its Runs", _JSON, _read_job),
    _Kind("checkpoint", CHECKPOINT, _CHECKPOINT_TEXT, _JSON, _read_checkpoint),
    _Kind("events", EVENTS, "The events of a Run, one JSON object per line", _JSON_LINES, _read_events),
    _Kind("expert", EXPERT, "An Expert's definition", _JSON, _read_expert),
)


def list_resources(served_project: ServedProject) -> list[types.Resource]:
    """Return the resources with fixed URIs: the list of Jobs, which names single Jobs, and each Expert."""
    job_list = types.Resource(
        name="jobs", uri=JOBS, description="The Jobs, the most recently written first", mime_type=_JSON
    )
    experts = [
        types.Resource(
            name=expert.key,
            uri=EXPERT.uri(expert.key),
            description=expert.description or f"The Expert {expert.key}",
            mime_type=_JSON,
        )
        for expert in served_project.definitions.experts.values()
    ]
    return [job_list, *experts]


async def read(served_project: ServedProject, uri: str) -> types.ReadResourceResult:
    """Return the contents of a resource. Raises MCPError if it does not exist."""
    try:
        text, mime_type = await _read_text(served_project, uri)
    except PerstackError as error:
        raise MCPError(types.INVALID_PARAMS, error.text_for(mcp_phrase), {"uri": uri}) from error
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, mime_type=mime_type, text=text)])


async def _read_text(served_project: ServedProject, uri: str) -> tuple[str, str]:
    if uri == JOBS:
        page = await served_project.page_of_jobs(limit=_MAX_LISTED_JOBS)
        job_objects = [json.loads(summary.to_json()) for summary in page.jobs]
        return json.dumps({"jobs": job_objects, "next": page.next}, ensure_ascii=False), _JSON
    for kind in KINDS:
        value = kind.address.value_in(uri)
        if value is not None:
            return await kind.read(served_project, value), kind.mime_type
    known_addresses = ", ".join((JOBS, *(kind.address.template for kind in KINDS)))
    raise NotFound(f"there is no resource {uri}; available: {known_addresses}")
