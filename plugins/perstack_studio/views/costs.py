"""Costs of Jobs by day, Expert, model and label, in a period."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perstack.core.jobs.summary import JobSummary
from perstack.dataclass import dataclass
from perstack.errors import UsageError
from perstack_studio.costs import Amounts, costs_of, dollars, number
from perstack_studio.plots import Plot, bar_plot
from perstack_studio.studio import Studio, render_page, studio_of

MAX_SUMMARIES = 5_000  # maximum summaries that the page reads, the newest first
_PAGE_SIZE = 500
_DAY_MS = 86_400_000
PERIODS: dict[str, int] = {"7": 7, "30": 30, "90": 90, "all": 0}


def pages() -> Iterable[BaseRoute]:
    yield Route("/costs", _show_costs, methods=["GET"])


@dataclass(frozen=True, slots=True)
class CostTable:
    """Amounts by name, each with its share of the largest in thousandths."""

    title: str
    column: str
    rows: tuple[tuple[str, Amounts, int], ...]

    @classmethod
    def of(cls, title: str, column: str, amounts: dict[str, Amounts]) -> CostTable:
        """Return the table, with shares of the cost if one is known, otherwise of the tokens."""
        by_cost = any(row.dollars for row in amounts.values())
        values = {name: row.dollars if by_cost else row.tokens for name, row in amounts.items()}
        largest = max(values.values(), default=0) or 1
        return cls(
            title, column, tuple((name, row, int(values[name] * 1000 / largest)) for name, row in amounts.items())
        )


async def _show_costs(request: Request) -> Response:
    studio, period = studio_of(request), request.query_params.get("period", "30")
    if period not in PERIODS:
        raise UsageError(f"there is no period {period!r}; available: {', '.join(PERIODS)}")
    now = studio.host.clock.now()
    since = now - PERIODS[period] * _DAY_MS if PERIODS[period] else 0
    summaries, is_cut = await _read_summaries(studio, since)
    costs = await asyncio.to_thread(costs_of, summaries, since, now)
    return await render_page(
        request,
        "costs.html",
        costs=costs,
        plots=_plots(costs.days),
        tables=(
            CostTable.of("By Expert", "Expert", costs.experts),
            CostTable.of("By model", "Model", costs.models),
            CostTable.of("By label", "Label", costs.labels),
        ),
        period=period,
        periods=[*PERIODS],
        read=len(summaries) if is_cut else 0,
    )


def _plots(days: dict[str, Amounts]) -> list[Plot]:
    """Return the plots of cost, if a cost is known, and of tokens."""
    unit = "month" if any(len(day) == len("2026-01") for day in days) else "day"
    plots: list[Plot] = []
    if any(amounts.dollars for amounts in days.values()):
        plots.append(bar_plot(f"Cost by {unit}", [(day, amounts.dollars) for day, amounts in days.items()], dollars))
    tokens = [(day, float(amounts.tokens)) for day, amounts in days.items()]
    return [*plots, bar_plot(f"Tokens by {unit}", tokens, number)]


async def _read_summaries(studio: Studio, since: int) -> tuple[list[JobSummary], bool]:
    """Return the newest summaries that include all changes since then, and whether reading stopped before."""
    summaries: list[JobSummary] = []
    after: str | None = None
    while len(summaries) < MAX_SUMMARIES:
        jobs_page = await studio.served_project.page_of_jobs(limit=_PAGE_SIZE, after=after)
        summaries += jobs_page.jobs
        after = jobs_page.next
        # Jobs are ordered by their last write: all further pages are older, too.
        if after is None or (jobs_page.jobs and all(summary.updated_at < since for summary in jobs_page.jobs)):
            return summaries, False
    return summaries, True
