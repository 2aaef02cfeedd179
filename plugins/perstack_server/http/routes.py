"""HTTP routes: `/v1/execution` for tasks, webhooks, `/v1/approvals`, `/v1/jobs`, and their description."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256

from pydantic import JsonValue
from pydantic.alias_generators import to_snake
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from typing_extensions import override

from perstack.core.base.ids import By
from perstack.core.base.records import JsonObject, Record, read_json
from perstack.dataclass import dataclass
from perstack.doors import operations
from perstack.doors.operations import (
    A,
    AnyArguments,
    Hides,
    OfferedOperation,
    OperationCall,
    TaskArguments,
    change_task,
    read_arguments,
    task_operation,
)
from perstack.doors.operations.jobs import JOB_OPERATIONS
from perstack.doors.operations.views import DrivenJob, SubmittedJob, view_of
from perstack.doors.served_project import ServedProject
from perstack.doors.shared.http_connections import http_status
from perstack.doors.shared.job_tasks import DriveJob
from perstack.doors.shared.next_step_phrases import http_phrase
from perstack.errors import NotAllowed, PerstackError, UsageError
from perstack.oversight.cloud_events import is_cloud_event, read_cloud_event
from perstack.tasks import operation_table
from perstack.tasks.execution_memory import StoredTasks
from perstack.tasks.operation_table import OPERATIONS
from perstack_server.http.openapi import HOOKS, describe_api, html_page
from perstack_server.mcp.notifications import MAY_DECIDE

_IDEMPOTENCY_KEY = "idempotency-key"
MAX_BODY_BYTES = 4 << 20  # maximum bytes of a request body

_DESCRIPTION, _PAGE = _PUBLIC_PATHS = ("/openapi.json", "/docs")

Endpoint = Callable[[Request], Awaitable[Response]]


def routes(
    memory: StoredTasks,
    rows: Sequence[operation_table.Operation] = OPERATIONS,
    hides: Hides = lambda _: False,
) -> list[Route]:
    """Return the routes for tasks, webhooks and the description. The server must check access, except to webhooks."""

    def route_of(operation: OfferedOperation[TaskArguments], route: operations.Route) -> Route:
        async def change(request: Request, arguments: TaskArguments) -> Response:
            signed_memory = memory.signed(_caller_of(request))
            reply = await change_task(
                operation, arguments, signed_memory, hides, may_decide=_may_decide(request), advice=_ADVICE
            )
            return _json_response(reply, next(iter(route.replies)))

        return Route(route.path, _make_endpoint(operation, change), methods=[route.method])

    return [
        *(
            route_of(operation, operation.route)
            for operation in map(task_operation, rows)
            if operation.route is not None
        ),
        Route(f"{HOOKS}/{{token}}", _make_webhook(memory), methods=["POST"]),
        Route(_DESCRIPTION, _make_description(rows), methods=["GET"]),
        Route(_PAGE, _show_page, methods=["GET"]),
    ]


def job_routes(served_project: ServedProject) -> list[Route]:
    """Return the routes for Jobs and approvals. The server must check access."""

    def route_of(operation: OfferedOperation[AnyArguments], route: operations.Route) -> Route:
        async def perform(request: Request, arguments: AnyArguments) -> Response:
            return await operations.perform(
                operation, arguments, _HttpCall(served_project, route=route, request=request)
            )

        return Route(route.path, _make_endpoint(operation, perform), methods=[route.method])

    return [route_of(operation, operation.route) for operation in JOB_OPERATIONS if operation.route is not None]


def is_open(path: str) -> bool:
    """Return whether a path needs no server token: webhooks have tokens of their own, and the description is public."""
    return path.startswith(f"{HOOKS}/") or path in _PUBLIC_PATHS


def _make_endpoint(operation: OfferedOperation[A], perform: Callable[[Request, A], Awaitable[Response]]) -> Endpoint:
    async def answer(request: Request) -> Response:
        try:
            body = _merge_path(await _read_arguments(request), request.path_params)
            key = request.headers.get(_IDEMPOTENCY_KEY)
            is_named = body.get("jobId") is not None or body.get("job_id") is not None
            if key and not is_named and "job_id" in operation.arguments.model_fields:
                body["jobId"] = f"http-{sha256(key.encode()).hexdigest()[:32]}"
            return await perform(request, read_arguments(operation.arguments, body))
        except PerstackError as error:
            return _problem_response(error)

    return answer


@dataclass(frozen=True, kw_only=True)
class _HttpCall(OperationCall[Record, Response]):
    """A call of an operation on Jobs or approvals by an HTTP request."""

    route: operations.Route
    request: Request

    @property
    @override
    def may_decide(self) -> bool:
        return _may_decide(self.request)

    @property
    @override
    def advice(self) -> str:
        return _ADVICE

    @property
    def by(self) -> By:
        return _caller_of(self.request)

    def reply(self, view: Record, *texts: str, is_error: bool = False) -> Response:
        response = _json_response(view, next(iter(self.route.replies)))
        if isinstance(view, SubmittedJob):
            response.headers["Location"] = f"{self.route.path}/{view.id}"
        return response

    async def drive(self, work: DriveJob, *, wait: bool) -> Response:
        # not cancelled with the request: the Job continues if the client disconnects
        running = self.served_project.job_tasks.start(work, None)
        summary = (
            await running.outcome() if wait else await self.served_project.host.job(await running.wait_until_begun())
        )
        return _json_response(view_of(DrivenJob, summary, job_id=summary.id), 200 if wait else 202)


def _make_webhook(memory: StoredTasks) -> Endpoint:
    async def answer(request: Request) -> Response:
        try:
            body = await _read_body(request)
            headers = dict(request.headers)
            cloud_event = read_cloud_event(body, headers) if is_cloud_event(body, headers) else None
            value, event_id = (body, None) if cloud_event is None else (cloud_event.data, cloud_event.key)
            by = _caller_of(request).with_source("" if cloud_event is None else cloud_event.source)
            task = await memory.signed(by).signal(request.path_params["token"], value, event_id=event_id)
        except PerstackError as error:
            return _problem_response(error)
        return JSONResponse({"taskId": task.task_id, "status": task.status, "answered": task.answered}, 202)

    return answer


_ADVICE = "a program that sends the token of PERSTACK_DECISION_TOKEN may decide this too"


def _may_decide(request: Request) -> bool:
    return request.scope.get(MAY_DECIDE) is True


def _caller_of(request: Request) -> By:
    """Return the author of what a request does: its client, without a person."""
    return By(door="http", client=request.headers.get("user-agent", ""))


def _make_description(rows: Sequence[operation_table.Operation]) -> Endpoint:
    async def answer(request: Request) -> Response:
        return JSONResponse(describe_api(f"{request.url.scheme}://{request.url.netloc}", rows))

    return answer


async def _show_page(request: Request) -> Response:
    return HTMLResponse(html_page())


async def _read_arguments(request: Request) -> JsonObject:
    """Return the query of a GET or DELETE, otherwise the body. Raises UsageError for a body that is not an object."""
    if request.method in ("GET", "DELETE"):
        return dict(request.query_params.items())
    body = await _read_body(request)
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise UsageError("the body must be a JSON object")
    return body


def _merge_path(body: JsonObject, path: Mapping[str, str]) -> JsonObject:
    """Return the arguments merged with those in the path. Raises UsageError if the two differ."""
    merged = dict(body)
    for name, value in path.items():
        for key in (name, to_snake(name)):
            if merged.pop(key, value) != value:
                raise UsageError(f"{key}: the path has {value} but the body {body[key]}: leave one out")
    return {**merged, **path}


async def _read_body(request: Request) -> JsonValue:
    """Return the JSON body; None if it is empty. Raises UsageError if it is too large or not JSON."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_BODY_BYTES:
            raise UsageError(f"the body has more than {MAX_BODY_BYTES >> 20} MB")
    if not content.strip():
        return None
    try:
        return read_json(bytes(content))
    except ValueError as error:
        raise UsageError(f"the body is not JSON: {error}") from error


def _json_response(fact: Record, status: int) -> Response:
    return Response(fact.to_json(), status, media_type="application/json")


def _problem_response(error: PerstackError) -> Response:
    """Return an error with its next steps as problem details (RFC 9457)."""
    problem: JsonObject = {"title": type(error).__name__, "detail": error.text_for(http_phrase)}
    if isinstance(error, NotAllowed):
        problem["allowed"] = list(error.allowed)
    problem["status"] = status = http_status(error)
    return JSONResponse(problem, status, media_type="application/problem+json")
