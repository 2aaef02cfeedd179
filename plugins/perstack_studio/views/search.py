"""Full-text search in the events of all Jobs."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perstack_studio.search_index import SearchResult
from perstack_studio.studio import render_page, studio_of

_MAX_QUERY_CHARS = 500


def pages() -> Iterable[BaseRoute]:
    yield Route("/search", _show_results, methods=["GET"])


async def _show_results(request: Request) -> Response:
    studio, words = studio_of(request), request.query_params.get("q", "").strip()[:_MAX_QUERY_CHARS]
    result: SearchResult | None = await studio.search_index.search(words) if words else None
    jobs = {}
    if result is not None:
        rows = await studio.states.rows([*dict.fromkeys(match.job_id for match in result.events)])
        jobs = {summary.id: summary for summary in rows}
    return await render_page(request, "search.html", words=words, result=result, jobs=jobs)
