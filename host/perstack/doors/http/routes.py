"""Execution memory over HTTP: `/v1/execution`, webhooks, and the OpenAPI description of both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from perstack.core.base import Fact, JsonObject
from perstack.core.by import By
from perstack.core.cloudevents import is_cloud_event, read_cloud_event
from perstack.core.json_reading import read_json
from perstack.core.tasks.table import OPERATIONS, Operation
from perstack.engine.memory import ExecutionMemory
from perstack.errors import Conflict, DispatcherError, NotAllowed, NotFound, PerstackError, UsageError
from perstack.frontends.shared.arguments import read_arguments
from perstack.frontends.tasks.next_steps import BASE, said
from perstack.frontends.tasks.openapi import HOOKS, description_of_all, page
from perstack.frontends.tasks.operations import arguments_of, perform

LARGEST = 4 << 20
"""Bytes of a request."""

_DESCRIPTION, _PAGE = _DESCRIBED = ("/openapi.json", "/docs")

Endpoint = Callable[[Request], Awaitable[Response]]


def routes(memory: ExecutionMemory, operations: Sequence[Operation] = OPERATIONS) -> list[Route]:
    """All of it. Whoever serves it lets in only who may; the webhooks have tokens of their own."""
    found = [
        Route(f"{BASE}{operation.path}", _endpoint(memory, operation), methods=[operation.method])
        for operation in operations
    ]
    return [
        *found,
        Route(f"{HOOKS}/{{token}}", _webhook(memory), methods=["POST"]),
        Route(_DESCRIPTION, _description(operations), methods=["GET"]),
        Route(_PAGE, _page, methods=["GET"]),
    ]


def is_open(path: str) -> bool:
    """Whether a path needs no token of the server: webhooks bring one of their own, and a browser has none."""
    return path.startswith(f"{HOOKS}/") or path in _DESCRIBED


def _endpoint(memory: ExecutionMemory, operation: Operation) -> Endpoint:
    async def answer(request: Request) -> Response:
        try:
            given = _with_path(await given_to(request), request.path_params)
            arguments = read_arguments(arguments_of(operation), given)
            done = await perform(operation, memory.signed(caller_of(request)), arguments)
        except PerstackError as error:
            return refusal(error)
        return _json(done, 201 if operation.makes else 200)

    return answer


def _webhook(memory: ExecutionMemory) -> Endpoint:
    async def answer(request: Request) -> Response:
        try:
            body = await _body(request)
            headers = dict(request.headers)
            event = read_cloud_event(body, headers) if is_cloud_event(body, headers) else None
            value, event_id = (body, None) if event is None else (event.data, event.key)
            by = caller_of(request).bringing("" if event is None else event.source)
            task = await memory.signed(by).signal(request.path_params["token"], value, event_id=event_id)
        except PerstackError as error:
            return refusal(error)
        return JSONResponse({"taskId": task.task_id, "status": task.status, "answered": task.answered}, 202)

    return answer


def caller_of(request: Request) -> By:
    """Who an answer that comes with a request is from; of a person nothing is known."""
    return By(door="http", client=request.headers.get("user-agent", ""))


def _description(operations: Sequence[Operation]) -> Endpoint:
    async def answer(request: Request) -> Response:
        return JSONResponse(description_of_all(f"{request.url.scheme}://{request.url.netloc}", operations))

    return answer


async def _page(request: Request) -> Response:
    return HTMLResponse(page())


async def given_to(request: Request) -> JsonObject:
    """The arguments: of a GET or DELETE its query, else its body. Raises UsageError for a body that is no object."""
    if request.method in ("GET", "DELETE"):
        return dict(request.query_params.items())
    body = await _body(request)
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise UsageError("the body must be a JSON object")
    return body


def _with_path(given: JsonObject, path: Mapping[str, str]) -> JsonObject:
    """The arguments with those in the path. Raises UsageError if both are given, and not the same."""
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
        if len(content) > LARGEST:
            raise UsageError(f"the body has more than {LARGEST >> 20} MB")
    if not content.strip():
        return None
    try:
        return read_json(bytes(content))
    except ValueError as error:
        raise UsageError(f"the body is not JSON: {error}") from error


def _json(fact: Fact, status: int) -> Response:
    return Response(fact.to_json(), status, media_type="application/json")


def refusal(error: PerstackError) -> Response:
    """Problem details (RFC 9457): what is wrong, and what may be done."""
    told: JsonObject = {"title": type(error).__name__, "detail": error.said(said)}
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
