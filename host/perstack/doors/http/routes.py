"""HTTP routes: `/v1/execution` for tasks, webhooks, `/v1/approvals`, `/v1/jobs`, and their description."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from perstack.core.base.ids import By, check_job_id, place_of
from perstack.core.base.records import Fact, JsonObject, read_json
from perstack.core.jobs.cloud_events import is_cloud_event, read_cloud_event
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.questions import OpenQuestion
from perstack.core.tasks.operation_table import OPERATIONS, Operation
from perstack.doors.http.openapi import APPROVALS, HOOKS, JOBS, description_of_all, page
from perstack.doors.operations import declaration, jobs
from perstack.doors.shared.next_steps import BASE, http_phrase
from perstack.doors.shared.questions import call_shown
from perstack.engine.tasks.memory import ExecutionMemory
from perstack.errors import Conflict, DispatcherError, NotAllowed, NotFound, PerstackError, UsageError
from perstack.host import Host

if TYPE_CHECKING:
    from perstack.doors.mcp.project import ServedProject

MAX_BODY_BYTES = 4 << 20  # maximum bytes of a request body

_DESCRIPTION, _PAGE = _DESCRIBED = ("/openapi.json", "/docs")

Endpoint = Callable[[Request], Awaitable[Response]]


def routes(
    memory: ExecutionMemory,
    operations: Sequence[Operation] = OPERATIONS,
    hides: declaration.Hides = declaration.hides_none,
) -> list[Route]:
    """Return the routes for tasks, webhooks and the description. The server must check access, except to webhooks."""
    found = [
        Route(f"{BASE}{operation.path}", _endpoint(memory, operation, hides), methods=[operation.method])
        for operation in operations
    ]
    return [
        *found,
        Route(f"{HOOKS}/{{token}}", _webhook(memory), methods=["POST"]),
        Route(_DESCRIPTION, _description(operations), methods=["GET"]),
        Route(_PAGE, _page, methods=["GET"]),
    ]


def is_open(path: str) -> bool:
    """Return whether a path needs no server token: webhooks carry their own, and a browser has none."""
    return path.startswith(f"{HOOKS}/") or path in _DESCRIBED


def _endpoint(memory: ExecutionMemory, operation: Operation, hides: declaration.Hides) -> Endpoint:
    async def answer(request: Request) -> Response:
        try:
            given = _with_path(await _arguments_of(request), request.path_params)
            arguments = declaration.read_arguments(declaration.arguments_of(operation), given)
            done = await declaration.perform(operation, memory.signed(_caller_of(request)), arguments, hides)
        except PerstackError as error:
            return _refusal(error)
        return _json(done, 201 if operation.makes else 200)

    return answer


def _webhook(memory: ExecutionMemory) -> Endpoint:
    async def answer(request: Request) -> Response:
        try:
            body = await _body(request)
            headers = dict(request.headers)
            event = read_cloud_event(body, headers) if is_cloud_event(body, headers) else None
            value, event_id = (body, None) if event is None else (event.data, event.key)
            by = _caller_of(request).bringing("" if event is None else event.source)
            task = await memory.signed(by).signal(request.path_params["token"], value, event_id=event_id)
        except PerstackError as error:
            return _refusal(error)
        return JSONResponse({"taskId": task.task_id, "status": task.status, "answered": task.answered}, 202)

    return answer


def _caller_of(request: Request) -> By:
    """Return the author of an answer that a request brings; the person is unknown."""
    return By(door="http", client=request.headers.get("user-agent", ""))


def _description(operations: Sequence[Operation]) -> Endpoint:
    async def answer(request: Request) -> Response:
        return JSONResponse(description_of_all(f"{request.url.scheme}://{request.url.netloc}", operations))

    return answer


async def _page(request: Request) -> Response:
    return HTMLResponse(page())


async def _arguments_of(request: Request) -> JsonObject:
    """Return the query of a GET or DELETE, otherwise the body. Raises UsageError for a body that is no object."""
    if request.method in ("GET", "DELETE"):
        return dict(request.query_params.items())
    body = await _body(request)
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise UsageError("the body must be a JSON object")
    return body


def _with_path(given: JsonObject, path: Mapping[str, str]) -> JsonObject:
    """Return the arguments merged with those in the path. Raises UsageError if the two differ."""
    merged = dict(given)
    for name, value in path.items():
        for key in (name, "task_id"):
            if merged.pop(key, value) != value:
                raise UsageError(f"{key}: the path says {value}, and the body {given[key]}: leave one out")
    return {**merged, **path}


async def _body(request: Request) -> JsonValue:
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > MAX_BODY_BYTES:
            raise UsageError(f"the body has more than {MAX_BODY_BYTES >> 20} MB")
    if not content.strip():
        return None
    try:
        return read_json(bytes(content))
    except ValueError as error:
        raise UsageError(f"the body is not JSON: {error}") from error


def _json(fact: Fact, status: int) -> Response:
    return Response(fact.to_json(), status, media_type="application/json")


def _refusal(error: PerstackError) -> Response:
    """Return problem details (RFC 9457): the error and its next steps."""
    told: JsonObject = {"title": type(error).__name__, "detail": error.said(http_phrase)}
    if isinstance(error, NotAllowed):
        told["allowed"] = list(error.allowed)
    told["status"] = status = _status(error)
    return JSONResponse(told, status, media_type="application/problem+json")


def _status(error: PerstackError) -> int:
    match error:
        case NotAllowed() | Conflict():
            return 409
        case NotFound():
            return 404
        case UsageError():
            return 400
        case DispatcherError():
            return 503
        case _:
            return 500


# Approvals over HTTP: the calls that wait for one, and decisions about them.


def approval_routes(state: ServedProject) -> list[Route]:
    """Return the routes for approvals. The server must check access."""

    async def listed(request: Request) -> Response:
        try:
            items = [one.asking for one in await state.inbox() if one.asking is not None and one.asking.call_digest]
        except PerstackError as error:
            return _refusal(error)
        return JSONResponse({"approvals": [_open(one).model_dump(mode="json", by_alias=True) for one in items]})

    async def decided(request: Request) -> Response:
        question = request.path_params["id"]
        try:
            arguments = declaration.read_arguments(jobs.Decision, await _arguments_of(request), "approval")
            await _check(state, question, arguments.call_digest)
            answer = partial(state.host.answer, arguments.said, question_id=question, by=_caller_of(request))
            running = state.jobs.start(answer, None)  # it outlives the request
            job = await running.outcome() if arguments.wait else await state.host.job(await running.begun())
        except PerstackError as error:
            return _refusal(error)
        told: JsonObject = {"jobId": job.id, "status": job.status}
        told |= {name: value for name, value in (("text", job.text), ("result", job.result)) if value is not None}
        return JSONResponse(told, 200 if arguments.wait else 202)

    return [
        Route(APPROVALS, listed, methods=["GET"]),
        Route(f"{APPROVALS}/{{id}}", decided, methods=["POST"]),
    ]


async def _check(state: ServedProject, question: str, digest: str | None) -> None:
    """Raise UsageError if the question is no approval, and Conflict if it is decided or about another call."""
    asking = (await state.job(place_of(question)[0])).asking
    if asking is None or asking.id != question:
        raise Conflict(f"question {question} has been answered already, or was never asked")
    if not asking.call_digest:
        raise UsageError(f"question {question} asks for no approval of a call")
    if digest is not None and digest != asking.call_digest:
        raise Conflict(f"question {question} is about another call: its digest is {asking.call_digest}")


def _open(asking: OpenQuestion) -> jobs.OpenApproval:
    facts = {name: getattr(asking, name) for name in jobs.OpenApproval.model_fields if name not in ("job_id", "text")}
    return jobs.OpenApproval(**facts, job_id=place_of(asking.id)[0], text=call_shown(asking))


# Jobs over HTTP: submission for workers, and status.

_KEY = "idempotency-key"


def job_routes(state: ServedProject) -> list[Route]:
    """Return the routes for Jobs. The server must check access."""
    host = state.host

    async def submitted(request: Request) -> Response:
        try:
            asked = declaration.read_arguments(jobs.Submission, await _arguments_of(request), "job")
            await state.refresh()
            state.definitions.check_offered(asked.expert)
            job = await _submitted(host, asked, asked.id_by(request.headers.get(_KEY)), _caller_of(request))
        except PerstackError as error:
            return _refusal(error)
        return JSONResponse({"id": job.id, "status": job.status}, 202, {"Location": f"{JOBS}/{job.id}"})

    async def shown(request: Request) -> Response:
        try:
            job = await state.job(check_job_id(request.path_params["id"]))
        except PerstackError as error:
            return _refusal(error)
        return Response(job.to_json(), media_type="application/json")

    return [Route(JOBS, submitted, methods=["POST"]), Route(f"{JOBS}/{{id}}", shown, methods=["GET"])]


async def _submitted(host: Host, asked: jobs.Submission, job_id: str | None, by: By) -> JobSummary:
    """Return a new Job, or the Job that an equal request started before. Raises PerstackError."""
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


async def _begun(host: Host, asked: jobs.Submission, job_id: str | None) -> JobSummary | None:
    """Return the Job with this id, or None. Raises Conflict if it was started by a different request."""
    if job_id is None:
        return None
    try:
        job = await host.job(job_id)
    except NotFound:
        return None
    if not asked.is_of(job):
        raise Conflict(f"Job {job_id} is another one: send the Expert, query and labels that it was begun with")
    return job
