"""Spending: summaries of Jobs, added up by day, Expert, model and label, and one Job's spending over time.

A Run counts on the day, in this machine's time zone, on which it began. Everything is from the summaries alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import date, timedelta

from perstack.core.base.text import duration
from perstack.core.base.usage import NO_USAGE, ModelShare, Usage, cost_text
from perstack.core.jobs.summary import JobSummary, RunSummary
from perstack.dataclass import dataclass
from perstack.doors.shared.text import local_time, minute
from perstack_studio.plots import Plot, line_plot

MAX_ROWS = 20  # maximum rows of a table; the others are added up in one row
MAX_DAYS = 120  # maximum bars of a plot by day; a longer period is shown by month
_MAX_POINTS = 200  # maximum points of a Job's plot
OTHERS = "others"


@dataclass(slots=True)
class Amounts:
    """A growing sum of usages. It is mutable, unlike `Usage`, since thousands of Runs are added."""

    tokens: int = 0
    dollars: float = 0.0
    is_priced: bool = False
    unpriced_tokens: int = 0
    runs: int = 0

    def add(self, usage: Usage, unpriced_tokens: int) -> None:
        self.tokens += usage.total_tokens
        self.dollars += usage.cost_usd or 0
        self.is_priced = self.is_priced or usage.cost_usd is not None
        self.unpriced_tokens += unpriced_tokens
        self.runs += 1

    def add_all(self, other: Amounts) -> None:
        self.tokens += other.tokens
        self.dollars += other.dollars
        self.is_priced = self.is_priced or other.is_priced
        self.unpriced_tokens += other.unpriced_tokens
        self.runs += other.runs

    @property
    def cost(self) -> str:
        """The cost as text; empty if nothing was used."""
        usage = Usage(total_tokens=self.tokens, cost_usd=self.dollars if self.is_priced else None)
        return cost_text(usage, self.unpriced_tokens)


@dataclass(frozen=True, slots=True)
class Costs:
    """Spending of a period."""

    total: Amounts = field(default_factory=Amounts)
    days: dict[str, Amounts] = field(default_factory=dict[str, Amounts])  # ascending, with days without a Run
    experts: dict[str, Amounts] = field(default_factory=dict[str, Amounts])
    models: dict[str, Amounts] = field(default_factory=dict[str, Amounts])
    labels: dict[str, Amounts] = field(default_factory=dict[str, Amounts])  # by `NAME=VALUE`; a Job may have several
    jobs: int = 0
    damaged: int = 0


def costs_of(summaries: Iterable[JobSummary], since: int, now: int) -> Costs:
    """Return the spending of the Runs that began at `since` or later. Times are milliseconds since 1970."""
    costs, jobs, damaged = Costs(), 0, 0
    by_day: dict[date, Amounts] = {}
    for summary in summaries:
        damaged += summary.damaged
        runs = [run_summary for run_summary in summary.runs if run_summary.started_at >= since]
        jobs += bool(runs)
        for run_summary in runs:
            usage, unpriced_tokens = run_summary.usage, run_summary.unpriced_tokens
            labels = [f"{name}={value}" for name, value in summary.labels.items()]
            day = by_day.setdefault(local_time(run_summary.started_at).date(), Amounts())
            of_expert = costs.experts.setdefault(run_summary.expert_key, Amounts())
            for amounts in (
                costs.total,
                day,
                of_expert,
                *(costs.labels.setdefault(label, Amounts()) for label in labels),
            ):
                amounts.add(usage, unpriced_tokens)
            for model, share in _share_by_model(run_summary).items():
                costs.models.setdefault(model, Amounts()).add(share.usage, share.unpriced_tokens)
    return replace(
        costs,
        days=_fill_gaps(by_day, local_time(since).date() if since else None, local_time(now).date()),
        experts=_keep_largest(costs.experts),
        models=_keep_largest(costs.models),
        labels=_keep_largest(costs.labels),
        jobs=jobs,
        damaged=damaged,
    )


def _share_by_model(run_summary: RunSummary) -> Mapping[str, ModelShare]:
    share = ModelShare(usage=run_summary.usage, unpriced_tokens=run_summary.unpriced_tokens)
    return run_summary.by_model or {run_summary.model or "unknown": share}


def _fill_gaps(by_day: Mapping[date, Amounts], first: date | None, last: date) -> dict[str, Amounts]:
    """Return the amounts of each day until the last one, or of each month with a Run if there are too many days."""
    start = first or min(by_day, default=last)
    if (last - start).days < MAX_DAYS:
        days = (start + timedelta(days=number) for number in range((last - start).days + 1))
        return {day.isoformat(): by_day.get(day, Amounts()) for day in days}
    months: dict[str, Amounts] = {}
    for day in sorted(by_day):
        months.setdefault(f"{day:%Y-%m}", Amounts()).add_all(by_day[day])
    return dict([*months.items()][-MAX_DAYS:])


def _keep_largest(rows: Mapping[str, Amounts]) -> dict[str, Amounts]:
    """Return the rows with the highest cost, then the most tokens; the others as one row at the end."""
    ordered = sorted(rows.items(), key=lambda row: (-row[1].dollars, -row[1].tokens, row[0]))
    largest, others = dict(ordered[:MAX_ROWS]), ordered[MAX_ROWS:]
    if others:
        rest = Amounts()
        for _, amounts in others:
            rest.add_all(amounts)
        largest[f"{len(others)} {OTHERS}"] = rest
    return largest


# One Job over time. A Run's summary has no times of its generations: its spending is spread evenly over its duration.


def spending_plots(summary: JobSummary) -> list[Plot]:
    """Return plots of a Job's cost and tokens over time, each with its budget. A measure that stays 0 has no plot."""
    runs = [run_summary for run_summary in summary.runs if run_summary.usage != NO_USAGE and run_summary.started_at]
    budget = summary.budget
    measures: tuple[tuple[str, Callable[[Usage], float], Callable[[float], str], float | None], ...] = (
        ("Cost over time", lambda usage: usage.cost_usd or 0, dollars, budget.max_cost if budget else None),
        ("Tokens over time", lambda usage: usage.total_tokens, number, budget.max_tokens if budget else None),
    )
    return [
        line_plot(title, points, to_text, _time_labels(points), limit=limit)
        for title, measure, to_text, limit in measures
        if (points := _accumulate(runs, measure))[-1:] and points[-1][1] > 0
    ]


def _time_labels(points: Sequence[tuple[float, float]]) -> list[tuple[float, str]]:
    first, last = points[0][0], points[-1][0]
    return [(first, minute(int(first))), (last, f"{duration(int(last - first))} later")]


def _accumulate(runs: Sequence[RunSummary], measure: Callable[[Usage], float]) -> list[tuple[float, float]]:
    """Return the sum over all Runs at each start and end of a Run, evenly thinned to about `_MAX_POINTS`."""
    times = sorted({at for run_summary in runs for at in (run_summary.started_at, run_summary.updated_at)})
    interval = -(-len(times) // _MAX_POINTS) or 1
    chosen_times = dict.fromkeys([*times[::interval], *times[-1:]])
    shares = [(run.started_at, max(1, run.updated_at - run.started_at), measure(run.usage)) for run in runs]
    return [
        (at, sum(amount * min(1.0, max(0.0, (at - began) / took_ms)) for began, took_ms, amount in shares))
        for at in chosen_times
    ]


def remaining_budget(summary: JobSummary) -> list[str]:
    """Return the remainder of each budget of a Job, as text."""
    budget, assumed = summary.budget, summary.assumed
    if budget is None:
        return []
    remainders: list[str] = []
    if budget.max_cost is not None:
        spent_dollars = (summary.usage.cost_usd or 0) + ((assumed and assumed.cost_usd) or 0)
        remainders.append(f"${max(0.0, budget.max_cost - spent_dollars):,.4f} of ${budget.max_cost:g}")
    if budget.max_tokens is not None:
        spent_tokens = summary.usage.total_tokens + (assumed.tokens if assumed else 0)
        remainders.append(f"{max(0, budget.max_tokens - spent_tokens):,} of {budget.max_tokens:,} tokens")
    return remainders


def dollars(value: float) -> str:
    """Return a price as text, short enough for the label of an axis."""
    return f"${value:,.0f}" if value >= 10 or not value else f"${value:.3g}"


def number(value: float) -> str:
    """Return a number in short form: `950`, `1.5k`, `20M`."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.4g}"
