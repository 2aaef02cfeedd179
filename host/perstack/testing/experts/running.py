"""All Jobs of many tests: a few at a time, counted as they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from pathlib import Path

from perstack.config.expert_tests import WrittenTest
from perstack.core.job import Cost, cost_of
from perstack.core.judging import interval
from perstack.core.usage import NO_USAGE, Usage
from perstack.dataclass import dataclass
from perstack.testing.experts.attempt import Attempt, Bench, attempt
from perstack.testing.experts.folders import remove_folder

AT_ONCE = 4
_ROUNDING = 1e-9
_MOST_KEPT = 10
"""Jobs of one test."""


@dataclass(slots=True)
class Outcome:
    """What a test has come to, so far."""

    written: WrittenTest
    planned: int
    """How many Jobs it is to have."""
    attempts: list[Attempt] = field(default_factory=list[Attempt])

    @property
    def passed(self) -> int:
        """How many Jobs were as expected."""
        return sum(one.passed for one in self.attempts)

    @property
    def is_whole(self) -> bool:
        """Whether all its Jobs were run."""
        return len(self.attempts) == self.planned

    @property
    def is_good(self) -> bool:
        """Whether enough of them were as expected."""
        return self.is_whole and self.passed >= self.written.test.pass_rate * self.planned - _ROUNDING

    @property
    def interval(self) -> tuple[float, float]:
        """Where its pass rate is with a certainty of 95 %."""
        return interval(self.passed, len(self.attempts))

    @property
    def usage(self) -> Usage:
        """Of all its Jobs."""
        return sum((one.usage for one in self.attempts), NO_USAGE)

    @property
    def unpriced_tokens(self) -> int:
        """Of all its tokens, those whose price was not known."""
        return sum(one.unpriced_tokens for one in self.attempts)

    @property
    def cost(self) -> Cost | None:
        """What its Jobs cost together."""
        return cost_of(self.usage, self.unpriced_tokens)


async def run_tests(
    outcomes: Sequence[Outcome],
    bench: Bench,
    at_once: int = AT_ONCE,
    on_done: Callable[[Outcome], None] = lambda one: None,
) -> None:
    """Run every Job that is planned, and add what becomes of it; `on_done` is called with each test that is whole.

    Cancelling interrupts those that are at work; what has ended stays counted.
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
    """The same; of many that failed only the first are kept to be looked at."""
    if not one.folder or sum(bool(other.folder) for other in outcome.attempts) < _MOST_KEPT:
        return one
    await asyncio.to_thread(remove_folder, Path(one.folder))
    return one.model_copy(update={"job": "", "folder": ""})


def _planned(outcomes: Sequence[Outcome]) -> Iterator[tuple[Outcome, int]]:
    for outcome in outcomes:
        for number in range(1, outcome.planned + 1):
            yield outcome, number
