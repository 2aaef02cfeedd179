"""The page of costs, the sums behind it, and the spending on the page of a Job."""

from __future__ import annotations

import re

from studio_server import serving_studio
from terminal import Terminal, reply

from perstack.core.base.usage import ModelShare, Usage
from perstack.core.definitions.settings import Budget
from perstack.core.jobs.summary import JobSummary, RunSummary
from perstack_studio.costs import MAX_ROWS, costs_of, dollars, number, remaining_budget, spending_plots

DAY = 86_400_000
NOW = 20_000 * DAY
NAME = "<b>\u202ename"


def run(place: int, at: int, tokens: int, cost: float | None, **others: object) -> RunSummary:
    usage = Usage(input_tokens=tokens, total_tokens=tokens, cost_usd=cost)
    values: dict[str, object] = {"expert_key": "lead", "status": "completed", "model": "p/m", "updated_at": at + 1000}
    unpriced = 0 if cost is not None else tokens
    values |= {"id": f"j-{place}", "usage": usage, "unpriced_tokens": unpriced, "started_at": at}
    return RunSummary.model_validate({**values, **others})


def job(*runs: RunSummary, **others: object) -> JobSummary:
    usage = sum((each.usage for each in runs), Usage())
    values = {"id": "j", "expert_key": "lead", "query": "q", "status": "completed", "lifecycle": "completed"}
    return JobSummary.model_validate({**values, "coordinator_run_id": "j-1", "usage": usage, "runs": runs, **others})


def test_runs_are_added_up_by_day_expert_model_and_label() -> None:
    summaries = [
        job(run(1, NOW - DAY, 100, 1.0), run(2, NOW, 50, 0.5, expert_key="helper"), labels={"a": "1", "b": "2"}),
        job(run(1, NOW, 10, None, model="p/other"), labels={"a": "1"}),
    ]

    costs = costs_of(summaries, NOW - 7 * DAY, NOW)

    assert (costs.jobs, costs.total.runs, costs.total.tokens) == (2, 3, 160)
    assert costs.total.cost == "at least $1.5000"
    assert len(costs.days) == 8
    assert [amounts.tokens for amounts in costs.days.values()][-2:] == [100, 60]
    assert {key: amounts.tokens for key, amounts in costs.experts.items()} == {"lead": 110, "helper": 50}
    assert {key: amounts.cost for key, amounts in costs.models.items()} == {"p/m": "$1.5000", "p/other": "cost unknown"}
    assert {key: amounts.tokens for key, amounts in costs.labels.items()} == {"a=1": 160, "b=2": 150}


def test_a_run_with_several_models_counts_under_each() -> None:
    shares = {"p/m": ModelShare(usage=Usage(total_tokens=70)), "p/small": ModelShare(usage=Usage(total_tokens=30))}

    costs = costs_of([job(run(1, NOW, 100, None, by_model=shares))], 0, NOW)

    assert {key: amounts.tokens for key, amounts in costs.models.items()} == {"p/m": 70, "p/small": 30}


def test_only_runs_of_the_period_count() -> None:
    costs = costs_of([job(run(1, NOW - 40 * DAY, 100, 1.0), run(2, NOW, 1, 0.25))], NOW - 30 * DAY, NOW)

    assert costs.total.cost == "$0.2500"


def test_a_long_time_is_shown_by_month() -> None:
    costs = costs_of([job(run(1, NOW - 400 * DAY, 1, 1.0), run(2, NOW, 1, 1.0))], 0, NOW)

    assert len(costs.days) == 2
    assert all(re.fullmatch(r"\d{4}-\d\d", month) for month in costs.days)


def test_many_rows_end_with_the_sum_of_the_others() -> None:
    runs = [run(at, NOW, 1, 1.0 + at, expert_key=f"e{at}") for at in range(MAX_ROWS + 5)]

    costs = costs_of([job(*runs)], 0, NOW)

    assert len(costs.experts) == MAX_ROWS + 1
    assert next(iter(costs.experts)) == f"e{MAX_ROWS + 4}"
    assert costs.experts["5 others"].runs == 5


def test_damaged_jobs_are_counted_and_cost_nothing() -> None:
    costs = costs_of([job(damaged=True, error="line 3")], 0, NOW)

    assert (costs.damaged, costs.jobs, costs.total.cost) == (1, 0, "")


def test_the_spending_of_a_job_rises_to_its_sum_below_its_budget() -> None:
    summary = job(run(1, NOW, 100, 1.0), run(2, NOW + 500, 300, 0.5), budget=Budget(max_cost=2.0, max_tokens=1000))

    cost, tokens = spending_plots(summary)

    assert cost.segments[-1][3] > cost.limit  # type: ignore[operator]  # the limit is above, so nearer to the top
    assert tokens.limit == 0
    assert remaining_budget(summary) == ["$0.5000 of $2", "600 of 1,000 tokens"]


def test_a_job_that_used_nothing_has_no_plots() -> None:
    assert spending_plots(job(run(1, NOW, 0, None))) == []
    assert remaining_budget(job()) == []


def test_numbers_of_an_axis_are_short() -> None:
    assert [number(each) for each in (0, 950, 1500, 2e7, 0.25)] == ["0", "950", "1.5k", "20M", "0.25"]
    assert [dollars(each) for each in (0, 0.005, 0.4, 12, 1500)] == ["$0", "$0.005", "$0.4", "$12", "$1,500"]


PRICED = """
[budget]
maxCost = 1.0
[prices."scripted/scripted"]
input = 3.0
output = 15.0
[experts.lead]
instruction = "You lead."
"""


def test_costs_are_shown_with_hostile_names_as_text(terminal: Terminal) -> None:
    terminal.project(PRICED, lead=[reply("Done.", usage=(1000, 100))])
    label = "team=<b>name"
    assert terminal.run("run", "lead", NAME, "--provider", "scripted", "--label", label).code == 0
    with serving_studio(terminal) as server:
        visitor = server.visitor()

        page = visitor.get("/costs")

        assert "$0.0045" in page
        assert re.search(r'<svg[^>]* role="img"[^>]*><title id="plot-1">Cost by day</title>', page)
        assert "team=&lt;b&gt;name" in page
        assert "<b>" not in page
        assert "\u202e" not in page
        assert "style=" not in page
        for period in ("7", "90", "all"):
            assert "$0.0045" in visitor.get(f"/costs?period={period}")
        assert "there is no period" in visitor.get("/costs?period=%3Cb%3E", 400)

        job_page = visitor.get(re.search(r'href="(/jobs/[a-z0-9]+)"', visitor.get("/jobs"))[1])  # type: ignore[index]

        assert "Cost over time" in job_page
        assert "$0.9955 of $1" in job_page


def test_a_project_without_jobs_has_an_empty_page(terminal: Terminal) -> None:
    with serving_studio(terminal.project(PRICED)) as server:
        assert "Nothing was used" in server.visitor().get("/costs")
