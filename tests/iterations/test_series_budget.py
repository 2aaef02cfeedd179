"""Budgets of a series over all its Jobs: decided before each iteration, and never exceeded."""

from __future__ import annotations

import pytest
from hosts import Bench, expert, wait_for
from terminal import Terminal, reply

from perstack.core.definitions.experts import ExpertEvaluator, Iterate
from perstack.core.definitions.models import Price
from perstack.core.definitions.settings import Budget
from perstack.errors import UsageError
from perstack.host import Host
from perstack.iterations.state import SeriesState, StartIteration, StoredSeriesEvent
from perstack.testing.scripted import text

MEASURE = "echo '{\"score\": 1}'"
JUDGE = ExpertEvaluator(expert="judge")
PRICE = Price(name="scripted/scripted", input=1, output=10)


def solo(evaluator: str | ExpertEvaluator = MEASURE, **keys):
    return expert("solo", iterate=Iterate(evaluator=evaluator, **{"max_iterations": 9, **keys}))


def used(series: SeriesState) -> int:
    return sum(one.usage.total_tokens + (one.assumed.tokens if one.assumed else 0) for one in series.iterations)


def shares(facts: list[StoredSeriesEvent]) -> list[Budget | None]:
    return [fact.budget for fact in facts if isinstance(fact, StartIteration)]


def begin_series(host: Host, **more) -> tuple[SeriesState, list[StoredSeriesEvent]]:
    facts: list[StoredSeriesEvent] = []
    series = host.iterations.begin("solo", "do it", series_id="it", on_fact=lambda fact, *_: facts.append(fact), **more)
    return wait_for(series, 60), facts


def test_each_job_may_spend_what_is_left_and_the_series_pauses_when_it_is_used(bench: Bench) -> None:
    host = bench.host({"[[solo]]": [text("made", usage=(4_000, 1_000))]}, solo(max_tokens=30_000))
    series, facts = begin_series(host)
    done = len(series.done)
    assert (series.status, series.job_status, series.exceeded) == ("paused", "stoppedByBudget", "maxTokens")
    assert 2 <= done < 9
    assert shares(facts) == [Budget(max_tokens=30_000 - 5_000 * number) for number in range(done + 1)]
    job = wait_for(host.job("it-i1"))
    assert job.budget == Budget(max_tokens=30_000)
    assert used(series) <= 30_000
    more = wait_for(host.iterations.resume("it", max_tokens=45_000), 60)
    assert (more.status, more.exceeded, len(more.done)) == ("paused", "maxTokens", done + 3)
    assert used(more) <= 45_000
    assert wait_for(host.audit.replay("it-i1")).ok
    assert wait_for(host.audit.verify(f"it-i{done + 1}")).ok


def test_nothing_begins_when_nothing_is_left(bench: Bench) -> None:
    host = bench.host({"[[solo]]": [text("made", usage=(9_000, 1_000))]}, solo(max_tokens=20_000))
    series, _ = begin_series(host)
    assert (series.status, len(series.iterations), used(series)) == ("paused", 2, 20_000)
    assert series.message == "20,000 tokens for all iterations are used: 20,000"
    assert len(wait_for(host.jobs.list()).jobs) == 2


def test_dollars_are_counted_as_tokens_are_and_a_jobs_own_budget_holds_if_it_is_lower(bench: Bench) -> None:
    script = {"[[solo]]": [text("made", usage=(4_000, 1_000))]}
    host = bench.host(script, solo(max_cost=0.1), prices=(PRICE,), max_cost=0.09)
    series, facts = begin_series(host)
    assert (series.exceeded, shares(facts)[1]) == ("maxCost", Budget(max_cost=0.086))
    assert [wait_for(host.job(f"it-i{number}")).budget for number in (1, 2, 3)] == [
        Budget(max_cost=0.09),
        Budget(max_cost=0.086),
        Budget(max_cost=0.072),
    ]
    assert sum(iteration.usage.cost_usd or 0 for iteration in series.iterations) <= 0.1


def test_an_expert_that_evaluates_spends_of_the_same_total_and_an_answer_of_no_use_counts(bench: Bench) -> None:
    script = {
        "[[solo]]": [text("made", usage=(1_000, 100))],
        "[[judge]]": [text("no object", usage=(5_000, 500))],
    }
    host = bench.host(script, solo(JUDGE, max_tokens=40_000), expert("judge"))
    series, _ = begin_series(host)
    assert (series.status, used(series)) == ("failed", 6_600)
    again = wait_for(host.iterations.resume("it"))
    assert (again.status, used(again)) == ("failed", 12_100)
    assert wait_for(host.job("it-e1-2")).budget == Budget(max_tokens=40_000 - 6_600)
    for _ in range(9):
        again = wait_for(host.iterations.resume("it"))
        if again.status == "paused":
            break
    assert (again.exceeded, used(again) <= 40_000) == ("maxTokens", True)


def test_what_nobody_reports_counts_as_what_was_reserved(bench: Bench) -> None:
    host = bench.host({"[[solo]]": [text("made", usage=(0, 0))]}, solo(max_tokens=40_000))
    series, facts = begin_series(host)
    assert series.status == "paused"
    first = series.iterations[0].assumed
    assert first is not None
    assert shares(facts)[1] == Budget(max_tokens=40_000 - first.tokens)
    assert wait_for(host.job("it-i1")).assumed == first


def test_without_a_total_nothing_of_it_is_recorded(bench: Bench) -> None:
    host = bench.host({"[[solo]]": [text("made")]}, solo(max_iterations=1))
    lines: list[bytes] = []
    wait_for(host.iterations.begin("solo", "q", on_fact=lambda *given: lines.append(given[2])))
    assert all(word not in line for line in lines for word in (b"maxCost", b"maxTokens", b"assumed", b"exceeded"))


TOML = """
[experts.a]
instruction = "You write."
[experts.a.iterate]
evaluator = "echo '{\\"score\\": 1}'"
maxIterations = 3
maxTokens = 1_000_000
"""


def test_on_the_command_line_a_total_is_given_and_raised_by_name(terminal: Terminal) -> None:
    terminal.project(TOML, a=[reply("made", usage=(9_000, 1_000))])
    stopped = terminal.call("iterate", "a", "q", "--id", "it", "--total-tokens", "20000", attended=True)
    assert stopped.code == 4
    assert "20,000 tokens for all iterations are used" in stopped.err
    assert "perstack resume it --total-tokens N" in stopped.err
    result = terminal.call("resume", "it", "--total-tokens", "60000", attended=True)
    assert result.code == 0, result.err
    (resumed,) = [event for event in result.events if event["type"] == "resumeSeries"]
    assert resumed["maxTokens"] == 60_000


NO_AMOUNTS = ["nan", "inf", "1e999", "0", "-1", "2,50", "2 EUR"]


@pytest.mark.parametrize("option", ["--total-cost", "--max-cost"])
@pytest.mark.parametrize("given", NO_AMOUNTS)
def test_what_is_no_amount_of_money_is_refused_by_the_name_of_its_option(
    terminal: Terminal, option: str, given: str
) -> None:
    terminal.project(TOML, a=[reply("made")])
    for command in (("iterate", "a", "q"), ("resume", "it")):
        refused = terminal.call(*command, f"{option}={given}")
        assert (refused.code, refused.out) == (2, "")
        assert option in refused.err.splitlines()[-1]
    assert not terminal.jobs().exists()


@pytest.mark.parametrize("amount", [float("nan"), float("inf"), 0.0, -1.0, 1e10])
def test_what_is_no_amount_is_refused_from_python_too(bench: Bench, amount: float) -> None:
    host = bench.host({"[[solo]]": [text("made")]}, solo())
    with pytest.raises(UsageError, match="must be US dollars, more than 0"):
        bench.host([], solo(), max_cost=amount)
    with pytest.raises(UsageError, match="must be US dollars, more than 0"):
        wait_for(host.iterations.begin("solo", "q", max_cost=amount))
    wait_for(host.run("solo", "q", job_id="job"))
    with pytest.raises(UsageError, match="must be US dollars, more than 0"):
        wait_for(host.resume("job", max_cost=amount))
    with pytest.raises(UsageError, match="max_tokens = 0 must be at least 1"):
        bench.host([], solo(), max_tokens=0)


TABLES = {
    "[budget]": "maxCost",
    "[experts.a.budget]": "maxCost",
    "[experts.a.iterate]": "maxCost",
    '[prices."p/m"]': "input",
}


@pytest.mark.parametrize("amount", ["nan", "-inf", "1e999", "-1", '"2 EUR"', "true"])
@pytest.mark.parametrize("table", TABLES)
def test_what_is_no_amount_in_perstack_toml_is_named_with_its_line(terminal: Terminal, table: str, amount: str) -> None:
    more = {"[experts.a.iterate]": 'evaluator = "true"\n', '[prices."p/m"]': "output = 1\n"}.get(table, "")
    terminal.project(f'[experts.a]\ninstruction = "x"\n{table}\n{TABLES[table]} = {amount}\n{more}')
    result = terminal.call("validate")
    assert (result.code, "Traceback" in result.err) == (2, False)
    assert f"perstack.toml:4: error: {table[1:-1]}.{TABLES[table]}" in result.out
