"""Search over what was said and done in all Jobs."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perstack_studio.search_index import SearchResult
from perstack_studio.studio import page, studio_of

_MAX_CHARS = 500


def pages() -> Iterable[BaseRoute]:
    """Return the route of the search."""
    yield Route("/search", _search, methods=["GET"])


async def _search(request: Request) -> Response:
    studio, words = studio_of(request), request.query_params.get("q", "").strip()[:_MAX_CHARS]
    result: SearchResult | None = await studio.search_index.search(words) if words else None
    jobs = {}
    if result is not None:
        rows = await studio.states.rows([*dict.fromkeys(found.job_id for found in result.found)])
        jobs = {summary.id: summary for summary in rows}
    return await page(request, "search.html", words=words, result=result, jobs=jobs)
