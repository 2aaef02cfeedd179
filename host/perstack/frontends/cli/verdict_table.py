"""What tests came to, for people: what failed, and why; then a table of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from perstack.core.definitions import Project
from perstack.errors import PerstackError
from perstack.frontends.cli.log_print import print_events
from perstack.frontends.cli.log_select import Wanted
from perstack.frontends.cli.row_printer import RowPrinter
from perstack.frontends.cli.terminal import Screen, out, table
from perstack.frontends.shared.log_entries import in_order
from perstack.frontends.shared.words import cost, count, duration
from perstack.host import Host
from perstack.testing.experts.attempt import Attempt
from perstack.testing.experts.running import Outcome

_SHOWN_REASONS = 6
_LAST_EVENTS = 6


async def print_failures(outcomes: Sequence[Outcome]) -> None:
    """Of each test that failed why, with the end of the first Job that did, and how to look at it."""
    screen = Screen.of_stdout()
    for outcome in outcomes:
        failed = [one for one in outcome.attempts if not one.passed]
        if not failed or outcome.is_good:
            continue
        of = f" ({len(failed)} of {len(outcome.attempts)})" if len(outcome.attempts) > 1 else ""
        out(screen.paint(f"FAILED {outcome.written.title}{of}", fg="red", bold=True))
        out("  ", screen.paint(outcome.written.place, dim=True))
        _print_reasons(outcome, failed)
        kept = next((one for one in failed if one.job), None)
        if kept is not None:
            await _print_end(screen, kept)
        out()


def _print_reasons(outcome: Outcome, failed: Sequence[Attempt]) -> None:
    """Each once, those of most Jobs first."""
    times = Counter(reason for one in failed for reason in one.reasons).most_common()
    for reason, number in times[:_SHOWN_REASONS]:
        out("  ", f"{number} of {outcome.planned}: " if number < outcome.planned else "", reason)
    if len(times) > _SHOWN_REASONS:
        out(f"  … and {count(len(times) - _SHOWN_REASONS, 'other reason')}, which --json shows")


async def _print_end(screen: Screen, one: Attempt) -> None:
    try:
        async with Host(Project(), storage=one.storage, env={}) as host:
            entries = in_order(await host.logs(one.job))
    except PerstackError:
        return  # the reasons have said it
    print_events(RowPrinter(screen), entries[-_LAST_EVENTS:], entries, Wanted(), full=False)
    out("  ", screen.paint(f"perstack log {one.job} --storage {one.storage}", dim=True))


def print_outcomes(outcomes: Sequence[Outcome], *, is_whole: bool) -> None:
    """A row a test, and a line that adds all up."""
    rows = [_row(one) for one in outcomes]
    headings = ("test", "", "passed", "rate", "steps", "tokens", "cost", "time")
    table(Screen.of_stdout(), headings, rows, right=(2, 4, 5, 6, 7), whole=(), texts=(0,), drops=(7, 4, 5, 6, 3))
    good = sum(one.is_good for one in outcomes)
    done = sum(len(one.attempts) for one in outcomes)
    usage = sum((one.usage for one in outcomes[1:]), outcomes[0].usage)
    spent = cost(usage, sum(one.unpriced_tokens for one in outcomes))
    words = [f"{good} of {count(len(outcomes), 'test')} passed", count(done, "Job"), spent]
    planned = sum(one.planned for one in outcomes)
    if not is_whole:
        words.append(f"interrupted: {planned - done:,} not run")
    out(", ".join(word for word in words if word))


def _row(outcome: Outcome) -> tuple[str, ...]:
    done = outcome.attempts
    mark = "ok" if outcome.is_good else "FAILED" if outcome.is_whole else "cut short"
    if not done:
        return (outcome.written.title, mark, f"0/{outcome.planned}", "-", "-", "-", "-", "-")
    return (
        outcome.written.title,
        mark,
        f"{outcome.passed}/{outcome.planned}",
        _rate(outcome),
        f"{sum(one.steps for one in done) / len(done):.3g}",
        f"{outcome.usage.total_tokens // len(done):,}",
        _mean_cost(outcome),
        duration(sum(one.milliseconds for one in done) // len(done)),
    )


def _rate(outcome: Outcome) -> str:
    """`67 % (30–90)`: with the interval in which it is with a certainty of 95 %."""
    number = len(outcome.attempts)
    low, high = outcome.interval
    return f"{100 * outcome.passed / number:.0f} % ({100 * low:.0f}–{100 * high:.0f})"


def _mean_cost(outcome: Outcome) -> str:
    number = len(outcome.attempts)
    spent = outcome.cost
    return "-" if spent is None else "unknown" if spent == "unknown" else f"${spent / number:,.4f}"
