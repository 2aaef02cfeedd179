"""The check of a Job: the reports of `verify` and `replay`, made when a person asks for them."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perstack_studio.run_lines import find_job
from perstack_studio.studio import render_page, studio_of


def pages() -> Iterable[BaseRoute]:
    yield Route("/jobs/{job}/check", _show_check, methods=["GET"])


async def _show_check(request: Request) -> Response:
    """Check the Job, which may take seconds, and show what was found."""
    studio, job_id = studio_of(request), request.path_params["job"]
    summary = await find_job(studio, job_id)
    check = await studio.checks.run(studio.host, summary)
    return await render_page(request, "check.html", summary=summary, check=check, tab="job")
