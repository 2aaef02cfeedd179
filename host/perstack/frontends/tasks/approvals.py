"""Approvals over HTTP: the calls of Jobs that wait for one, and a person's decision about each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from perstack.core.base import JsonObject
from perstack.core.by import By
from perstack.core.ids import place_of
from perstack.core.job import JobSummary
from perstack.core.runs.asking import OpenQuestion
from perstack.errors import Conflict, PerstackError, UsageError
from perstack.frontends.shared.approvals import call_shown
from perstack.frontends.shared.arguments import read_arguments
from perstack.frontends.tasks.approval_models import Decision, OpenApproval
from perstack.frontends.tasks.http import caller_of, given_to, refusal
from perstack.frontends.tasks.openapi import APPROVALS
from perstack.host import Host

Decide = Callable[[str, str, By, bool], Awaitable[JobSummary]]
"""Answers a question and drives its Job: with its id, the answer, who gives it, and whether to wait for the Job's stop.

Raises PerstackError.
"""


def approval_routes(host: Host, decide: Decide) -> list[Route]:
    """The routes. Whoever serves them lets in only who may."""

    async def listed(request: Request) -> Response:
        try:
            items = [one.asking for one in await host.inbox() if one.asking is not None and one.asking.call_digest]
        except PerstackError as error:
            return refusal(error)
        return JSONResponse({"approvals": [_open(one).model_dump(mode="json", by_alias=True) for one in items]})

    async def decided(request: Request) -> Response:
        question = request.path_params["id"]
        try:
            arguments = read_arguments(Decision, await given_to(request), "approval")
            await _check(host, question, arguments.call_digest)
            job = await decide(question, arguments.said, caller_of(request), arguments.wait)
        except PerstackError as error:
            return refusal(error)
        told: JsonObject = {"jobId": job.id, "status": job.status}
        told |= {name: value for name, value in (("text", job.text), ("result", job.result)) if value is not None}
        return JSONResponse(told, 200 if arguments.wait else 202)

    return [
        Route(APPROVALS, listed, methods=["GET"]),
        Route(f"{APPROVALS}/{{id}}", decided, methods=["POST"]),
    ]


async def _check(host: Host, question: str, digest: str | None) -> None:
    """Raises UsageError for what is no approval, and Conflict for one that is decided, or is of another call."""
    asking = (await host.job(place_of(question)[0])).asking
    if asking is None or asking.id != question:
        raise Conflict(f"question {question} has been answered already, or was never asked")
    if not asking.call_digest:
        raise UsageError(f"question {question} asks for no approval of a call")
    if digest is not None and digest != asking.call_digest:
        raise Conflict(f"question {question} is about another call: its digest is {asking.call_digest}")


def _open(asking: OpenQuestion) -> OpenApproval:
    facts = {name: getattr(asking, name) for name in OpenApproval.model_fields if name not in ("job_id", "text")}
    return OpenApproval(**facts, job_id=place_of(asking.id)[0], text=call_shown(asking))
