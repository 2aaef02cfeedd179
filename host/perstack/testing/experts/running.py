"""Run the Jobs of many tests, a few at a time, and count their results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from pathlib import Path

from perstack.config.expert_tests import WrittenTest
from perstack.core.base.usage import NO_USAGE, Cost, Usage, cost_of
from perstack.core.jobs.expert_test_results import interval
from perstack.dataclass import dataclass
from perstack.testing.experts.attempt import Attempt, Bench, attempt, remove_folder

AT_ONCE = 4
_ROUNDING = 1e-9
_MOST_KEPT = 10
"""Maximum number of failed Jobs kept per test."""


@dataclass(slots=True)
class Outcome:
    """Results of a test so far."""

    written: WrittenTest
    planned: int
    attempts: list[Attempt] = field(default_factory=list[Attempt])

    @property
    def passed(self) -> int:
        """Number of Jobs that met the expectation."""
        return sum(one.passed for one in self.attempts)

    @property
    def is_whole(self) -> bool:
        """True if all its Jobs were run."""
        return len(self.attempts) == self.planned

    @property
    def is_good(self) -> bool:
        """True if enough Jobs met the expectation."""
        return self.is_whole and self.passed >= self.written.test.pass_rate * self.planned - _ROUNDING

    @property
    def interval(self) -> tuple[float, float]:
        """Confidence interval (95 %) of its pass rate."""
        return interval(self.passed, len(self.attempts))

    @property
    def usage(self) -> Usage:
        """Token usage of all its Jobs."""
        return sum((one.usage for one in self.attempts), NO_USAGE)

    @property
    def unpriced_tokens(self) -> int:
        """Tokens in `usage` whose price is unknown."""
        return sum(one.unpriced_tokens for one in self.attempts)

    @property
    def cost(self) -> Cost | None:
        """Cost of all its Jobs."""
        return cost_of(self.usage, self.unpriced_tokens)


async def run_tests(
    outcomes: Sequence[Outcome],
    bench: Bench,
    at_once: int = AT_ONCE,
    on_done: Callable[[Outcome], None] = lambda one: None,
) -> None:
    """Run all planned Jobs and add their results; `on_done` is called with each completed test.

    Cancellation interrupts running Jobs; finished ones stay counted.
    """
    waiting = _planned(outcomes)

    async def work() -> None:
        for outcome, number in waiting:
            one = await attempt(outcome.written, number, bench)
            outcome.attempts.append(await _bounded(one, outcome))
            if outcome.is_whole:
                outcome.attempts.sort(key=lambda one: one.number)
                on_done(outcome)

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(at_once, sum(one.planned for one in outcomes))):
            workers.create_task(work())


async def _bounded(one: Attempt, outcome: Outcome) -> Attempt:
    """Return the attempt; remove its files if enough failed Jobs of the test are kept already."""
    if not one.folder or sum(bool(other.folder) for other in outcome.attempts) < _MOST_KEPT:
        return one
    await asyncio.to_thread(remove_folder, Path(one.folder))
    return one.model_copy(update={"job": "", "folder": ""})


def _planned(outcomes: Sequence[Outcome]) -> Iterator[tuple[Outcome, int]]:
    for outcome in outcomes:
        for number in range(1, outcome.planned + 1):
            yield outcome, number
