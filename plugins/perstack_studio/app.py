"""The application: its pages, its files, and its errors as pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from perstack.doors.shared.http_connections import http_status
from perstack.errors import (
    Conflict,
    NotAllowed,
    NotFound,
    PerstackError,
    StorageError,
    UsageError,
)
from perstack_studio.access import ENTER, SESSION_MS, StudioAccessMiddleware
from perstack_studio.studio import Studio, render_page, studio_of
from perstack_studio.views import (
    blobs,
    check,
    compare,
    conversation,
    costs,
    event,
    experts,
    files,
    health,
    inbox,
    job,
    jobs,
    log,
    search,
    step,
    task_question,
)

PAGES: tuple[Callable[[], Iterable[BaseRoute]], ...] = (
    inbox.pages,
    task_question.pages,
    jobs.pages,
    job.pages,
    conversation.pages,
    step.pages,
    event.pages,
    log.pages,
    check.pages,
    files.pages,
    compare.pages,
    blobs.pages,
    experts.pages,
    costs.pages,
    health.pages,
    search.pages,
)

_STATIC = Path(__file__).with_name("static")


def build_app(studio: Studio) -> Starlette:
    app = Starlette(
        routes=[
            Route(ENTER, _enter, methods=["GET"]),
            Mount("/static", StaticFiles(directory=_STATIC)),
            *(route for pages in PAGES for route in pages()),
        ],
        middleware=[Middleware(StudioAccessMiddleware, studio.access)],
        exception_handlers={PerstackError: _show_error, HTTPException: _show_http_error},
    )
    app.state.studio = studio
    return app


async def _enter(request: Request) -> Response:
    """Set the session cookie in the browser that opened a link."""
    access = studio_of(request).access
    value = access.enter(request.query_params.get("key", ""))
    if value is None:
        return Response(
            "This link was used, has expired or is not from this server. `perstack studio --link` prints another.",
            403,
            media_type="text/plain",
        )
    response = RedirectResponse("/", 303)
    response.set_cookie(
        access.cookie_name, value, max_age=SESSION_MS // 1000, httponly=True, samesite="strict", secure=access.is_secure
    )
    return response


async def _show_error(request: Request, error: Exception) -> Response:
    perstack_error = cast("PerstackError", error)
    status, title = _http_status(perstack_error), _error_title(perstack_error)
    return await render_page(request, "error.html", status=status, title=title, text=str(error))


async def _show_http_error(request: Request, error: Exception) -> Response:
    http_error = cast("HTTPException", error)
    title = "There is no such page" if http_error.status_code == 404 else http_error.detail
    return await render_page(request, "error.html", status=http_error.status_code, title=title, text="")


def _http_status(error: PerstackError) -> int:
    status = http_status(error)
    # 503 rather than 500: a full disk or foreign bytes are no defect of the studio
    return 503 if status == 500 and isinstance(error, StorageError) else status


def _error_title(error: PerstackError) -> str:
    match error:
        case Conflict() | NotAllowed():
            return "It has changed in the meantime"
        case NotFound():
            return "Not found"
        case UsageError():
            return "That cannot be done"
        case _:
            return "Something went wrong"
