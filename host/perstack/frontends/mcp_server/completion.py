"""Completing the ids in addresses of resources."""

from __future__ import annotations

from mcp_types import CompleteRequestParams, CompleteResult, Completion, ResourceTemplateReference

from perstack.errors import PerstackError
from perstack.frontends.mcp_server.addresses import CHECKPOINT, EVENTS, EXPERT, JOB
from perstack.frontends.mcp_server.state import ServerState

_MOST = 100
"""What the protocol allows in one answer."""

_JOBS = 200
"""Newest Jobs that are looked through."""


async def complete(state: ServerState, params: CompleteRequestParams) -> CompleteResult:
    """The ids that begin with what was typed; nothing for arguments that are free text."""
    if not isinstance(params.ref, ResourceTemplateReference):
        return CompleteResult(completion=Completion(values=[]))
    found = [one for one in await _known(state, params.ref.uri, params.argument.value) if one]
    return CompleteResult(completion=Completion(values=found[:_MOST], total=len(found), has_more=len(found) > _MOST))


async def _known(state: ServerState, template: str, typed: str) -> list[str]:
    if template == EXPERT.template:
        return [one.key for one in state.definitions.experts.values() if one.key.startswith(typed)]
    jobs = [job.id for job in (await state.host.jobs(limit=_JOBS)).jobs]
    if template == JOB.template:
        return [one for one in jobs if one.startswith(typed)]
    if template not in (EVENTS.template, CHECKPOINT.template):
        return []
    found: list[str] = []
    for job_id in jobs:
        if job_id.startswith(typed) or typed.startswith(job_id):
            found += await _within(state, template, job_id)
        if len(found) > 5 * _MOST:
            break
    return [one for one in found if one.startswith(typed)]


async def _within(state: ServerState, template: str, job_id: str) -> list[str]:
    try:
        if template == EVENTS.template:
            return [run.id for run in (await state.host.runs(job_id)).runs]
        return list((await state.host.checkpoints(job_id)).ids)
    except PerstackError:
        return []  # a Job that cannot be read has nothing to complete
