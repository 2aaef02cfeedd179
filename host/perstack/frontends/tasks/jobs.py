"""Jobs over HTTP: submitting one for workers, and how it stands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from perstack.core.by import By
from perstack.core.ids import check_job_id
from perstack.core.job import JobSummary
from perstack.errors import Conflict, NotFound, PerstackError, UsageError
from perstack.frontends.shared.arguments import read_arguments
from perstack.frontends.tasks.http import caller_of, given_to, refusal
from perstack.frontends.tasks.job_models import Submission
from perstack.frontends.tasks.openapi import JOBS
from perstack.host import Host

_KEY = "idempotency-key"

CheckOffered = Callable[[str], Awaitable[None]]
"""Raises UsageError for an Expert that this server leaves out."""


def job_routes(host: Host, check_offered: CheckOffered) -> list[Route]:
    """The routes. Whoever serves them lets in only who may."""

    async def submitted(request: Request) -> Response:
        try:
            asked = read_arguments(Submission, await given_to(request), "job")
            await check_offered(asked.expert)
            job = await _submitted(host, asked, asked.id_by(request.headers.get(_KEY)), caller_of(request))
        except PerstackError as error:
            return refusal(error)
        return JSONResponse({"id": job.id, "status": job.status}, 202, {"Location": f"{JOBS}/{job.id}"})

    async def shown(request: Request) -> Response:
        try:
            job = await host.job(check_job_id(request.path_params["id"]))
        except PerstackError as error:
            return refusal(error)
        return Response(job.to_json(), media_type="application/json")

    return [Route(JOBS, submitted, methods=["POST"]), Route(f"{JOBS}/{{id}}", shown, methods=["GET"])]


async def _submitted(host: Host, asked: Submission, job_id: str | None, by: By) -> JobSummary:
    """The Job: a new one, or the one that the same request has begun already. Raises PerstackError."""
    before = await _begun(host, asked, job_id)
    if before is not None:
        return before
    try:
        return await host.submit(
            asked.expert,
            asked.query,
            at=asked.at,
            priority=asked.priority,
            labels=asked.labels,
            job_id=job_id,
            by=by,
        )
    except (UsageError, Conflict):
        meanwhile = await _begun(host, asked, job_id)
        if meanwhile is None:
            raise
        return meanwhile


async def _begun(host: Host, asked: Submission, job_id: str | None) -> JobSummary | None:
    """The Job of that id, if there is one. Raises Conflict if it is not what is asked for."""
    if job_id is None:
        return None
    try:
        job = await host.job(job_id)
    except NotFound:
        return None
    if not asked.is_of(job):
        raise Conflict(f"Job {job_id} is another one: send the Expert, query and labels that it was begun with")
    return job
