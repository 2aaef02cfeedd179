"""The list of Jobs with its filters, and the start of a Job."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perstack.core.definitions.job_status import TYPED_STATUS
from perstack.core.jobs.summary import JobSummary
from perstack.dataclass import dataclass
from perstack.doors.operations.driving import read_attachments, with_attachments
from perstack.errors import UsageError
from perstack_studio.studio import Studio, read_form, render_page, see_other, studio_of

PAGE_SIZE = 100
FILTER_BATCH_SIZE = 250  # Jobs that are read at once for a filter
MAX_FILTERED = 2_000  # maximum Jobs that one request reads for a filter


def pages() -> Iterable[BaseRoute]:
    """Return the routes: the list, and the start of a Job, whose form is in `experts`."""
    yield Route("/jobs", _show_jobs, methods=["GET"])
    yield Route("/jobs", _start_job, methods=["POST"])


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Filter of a list of Jobs; empty texts restrict nothing."""

    status: str = ""
    expert: str = ""
    label: str = ""  # `NAME` or `NAME=VALUE`
    text: str = ""  # part of the id, query, result, error or question
    cost: float = 0.0  # minimum cost in dollars

    @classmethod
    def of(cls, request: Request) -> JobFilter:
        """Return the filter in the query of a request. Raises UsageError if the cost is not a number."""
        params = request.query_params
        try:
            cost = float(params.get("cost") or 0)
        except ValueError as error:
            raise UsageError(f"cost: {params['cost']!r} is not a number of dollars") from error
        texts = {name: params.get(name, "").strip() for name in ("status", "expert", "label", "text")}
        return cls(**texts, cost=cost)

    @property
    def is_empty(self) -> bool:
        return not (self.status or self.expert or self.label or self.text or self.cost)

    def selects(self, summary: JobSummary) -> bool:
        """Return whether the filter includes a Job."""
        name, _, value = self.label.partition("=")
        texts = (summary.id, summary.query, summary.text or "", summary.error or "", summary.question or "")
        cost_usd = summary.cost_usd if isinstance(summary.cost_usd, float) else 0.0
        return (
            (not self.status or summary.status == TYPED_STATUS.get(self.status, self.status))
            and (not self.expert or summary.expert_key == self.expert)
            and (not name or (name in summary.labels and (not value or summary.labels[name] == value)))
            and (not self.text or any(self.text.casefold() in text.casefold() for text in texts))
            and cost_usd >= self.cost
        )

    def query(self, **changes: str) -> str:
        """Return the filter as the query of a URL, with these changes."""
        values = {"status": self.status, "expert": self.expert, "label": self.label, "text": self.text, **changes}
        if self.cost:
            values["cost"] = f"{self.cost:g}"
        return urlencode({name: value for name, value in values.items() if value})


async def _show_jobs(request: Request) -> Response:
    studio, job_filter = studio_of(request), JobFilter.of(request)
    selected, next_cursor, read_count = await _select(studio, job_filter, request.query_params.get("after"))
    return await render_page(
        request,
        "jobs.html",
        jobs=selected,
        filter=job_filter,
        next_query=None if next_cursor is None else job_filter.query(after=next_cursor),
        read=read_count,
        statuses=[*TYPED_STATUS],
        experts=[*studio.host.project.experts],
    )


async def _select(studio: Studio, job_filter: JobFilter, after: str | None) -> tuple[list[JobSummary], str | None, int]:
    """Return a page of selected Jobs, the cursor of the next page, and the number of Jobs read for it."""
    selected: list[JobSummary] = []
    read_count, limit = 0, PAGE_SIZE if job_filter.is_empty else FILTER_BATCH_SIZE
    while True:
        ids_page = await studio.host.storage.jobs(limit=limit, after=after)
        selected += filter(job_filter.selects, await studio.states.rows(ids_page.ids))
        read_count, after = read_count + limit, ids_page.next
        if after is None or len(selected) >= PAGE_SIZE or read_count >= MAX_FILTERED:
            return selected, after, read_count


async def _start_job(request: Request) -> Response:
    studio, fields = studio_of(request), await read_form(request)
    query, key = fields.get("query", "").strip(), fields.get("expert", "")
    if not query:
        raise UsageError("write what the Expert should do")
    await studio.served_project.refresh()
    studio.served_project.definitions.check_offered(key)
    paths = [line.strip() for line in fields.get("attachments", "").splitlines() if line.strip()]
    if studio.host.leaves_to_workers:
        attachments = await read_attachments(studio.host, paths)
        summary = await studio.host.submit(key, query, attachments=attachments, by=studio.by)
        return see_other(f"/jobs/{summary.id}")
    work = with_attachments(studio.host, partial(studio.host.run, key, query), paths)
    running = studio.served_project.job_tasks.start(work, None)
    return see_other(f"/jobs/{await running.wait_until_begun()}")
