"""A Job as the sum of its Runs.

A Job has neither log nor state. A Coordinator Run, which a person started, and the delegate Runs below it have
a log each. `Job.update` receives every new state of each Run, and all totals, questions, labels and approvals of the
Job are computed from the latest states. Nothing is counted twice or stored separately, so nothing can contradict the
logs.

A person may start several Coordinator Runs, one after the other; the one started or resumed last represents the Job.

The package builds on this sum: `summary.py` presents it (job.json, a cache), `budget_ledger.py` decides
what its Runs may still spend, `answer_reading.py` reads answers to its question, `resuming.py` says whether and why it
continues. Of many Jobs `job_choice.py` selects some, and `removal.py` says which may go. To show a value of a Run per
Job, change together: a property of `Job`, `JobSummary` and `summarize`.
"""

from collections.abc import Callable, Iterable
from dataclasses import field
from functools import reduce

from perstack.core.base.chain import Head
from perstack.core.base.ids import BLOCK_SIZE, OWN_NUMBERS, block_of, number_of_run
from perstack.core.base.usage import NO_USAGE, Charge, Usage, sum_charges
from perstack.core.definitions.permissions import StandingApproval, Widening
from perstack.core.definitions.settings import RECORDED, Limits
from perstack.core.runs.facts import Closed
from perstack.core.runs.open_questions import OpenQuestion
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass


@dataclass(slots=True)
class Job:
    """The sum of the states of a Job's Runs. Call `update` whenever one of them changes."""

    id: str
    runs: dict[str, Run] = field(default_factory=dict[str, Run])  # latest states, in the order of their first update
    stored: dict[str, Run] = field(default_factory=dict[str, Run])
    """The state of each Run at the end of its log as it is on disk; `runs` may have events that are not written yet."""
    total_steps: int = 0
    watch: Callable[[Run], None] | None = None
    root: int = 0  # number of the Run that this process drives apart from its Job; 0 if it drives the Job itself
    # highest Run number by block; the Job's own block is 0
    _highest: dict[int, int] = field(default_factory=dict[int, int])
    _is_distributed: bool = False  # True once another worker has a delegate, whose Run numbers are in another block

    def update(self, run: Run) -> None:
        """Record the state of a Run."""
        run_id = run.start.run_id
        previous = self.runs.get(run_id)
        if previous is None:
            self._number(number_of_run(run_id))
        self.total_steps += run.step - (0 if previous is None else previous.step)
        if run.last_number:
            self._number(run.last_number)
        self._is_distributed = self._is_distributed or (run.queued is not None and not run.is_coordinator)
        self.runs[run_id] = run
        if self.watch is not None:
            self.watch(run)

    @property
    def plays_recording(self) -> bool:
        """True if a Run of the Job plays a recording."""
        return any(run.start.provider == RECORDED for run in self.runs.values())

    @property
    def heads(self) -> dict[str, Head]:
        """The ends of the stored logs, to detect a log that was cut or rewritten."""
        return {run_id: run.head for run_id, run in self.stored.items()}

    def as_stored(self) -> "Job":
        """Return the Job computed from what is on disk, which a crash does not undo."""
        return job_of(self.id, (self.stored[run_id] for run_id in self.runs if run_id in self.stored))

    def _number(self, number: int) -> None:
        block = 0 if number in OWN_NUMBERS else number // BLOCK_SIZE
        if number > self._highest.get(block, 0):
            self._highest[block] = number

    @property
    def next_number(self) -> int:
        """The number of the next Run."""
        if self.root or self._is_distributed:
            return max(self._highest.get(self.root, 0) + 1, block_of(self.root).start)
        return max(self._highest.values(), default=0) + 1

    def has_numbers(self, count: int) -> bool:
        """Return True if this driver may assign `count` more Run numbers."""
        is_bounded = self.root or self._is_distributed
        return not is_bounded or self.next_number + count <= block_of(self.root).stop

    @property
    def may_be_distributed(self) -> bool:
        """True if numbers assigned by other drivers of delegates cannot collide with the Job's own."""
        return bool(self.root) or self.next_number in OWN_NUMBERS

    @property
    def usage(self) -> Usage:
        return sum((run.spending.usage for run in self.runs.values()), NO_USAGE)

    @property
    def unpriced_tokens(self) -> int:
        return sum(run.spending.unpriced_tokens for run in self.runs.values())

    @property
    def assumed(self) -> Charge | None:
        """The charges for unreported usage over all Runs."""
        charges = (sum_charges(run.spending.assumed, run.spending.reservations) for run in self.runs.values())
        return reduce(sum_charges, charges, None)

    @property
    def signals(self) -> frozenset[str]:
        """The events from outside that the Job has accepted."""
        return frozenset[str]().union(*(run.signals for run in self.runs.values()))

    @property
    def taken_post_ids(self) -> frozenset[str]:
        """The ids of the posted texts that its Runs have taken."""
        return frozenset[str]().union(*(run.taken_posts for run in self.runs.values()))

    @property
    def standing_approvals(self) -> tuple[StandingApproval, ...]:
        """The approvals for the whole Job, from all Runs."""
        return tuple(approval for run in self.runs.values() for approval in run.standing_approvals)

    @property
    def widenings(self) -> tuple[Widening, ...]:
        """The overrides of the Job's rules, in order."""
        return tuple(widening for run in self.coordinators for widening in run.widenings)

    @property
    def closed(self) -> Closed | None:
        """The first close of any Run, which closes all of them even if their logs do not say so yet."""
        closes = (run.closed for run in self.runs.values())
        return min((close for close in closes if close is not None), key=lambda close: close.at, default=None)

    def steps_left(self, limits: Limits, uncounted: int = 0) -> int | None:
        """Return the steps that the Job may still take; None without a limit. `uncounted`: steps that do not count."""
        return None if limits.max_steps is None else max(0, limits.max_steps + uncounted - self.total_steps)

    @property
    def coordinator(self) -> Run:
        """The latest started or resumed Coordinator Run. Raises LookupError if there is none."""
        runs = [run for run in self.runs.values() if run.is_coordinator]
        if not runs:
            raise LookupError(self.id)
        return max(runs, key=lambda run: (run.continued_at_ms, number_of_run(run.start.run_id)))

    @property
    def coordinators(self) -> list[Run]:
        """The Runs that a person started, oldest first."""
        return [run for run in self.runs.values() if run.is_coordinator]

    @property
    def question(self) -> OpenQuestion | None:
        """The open question of the latest Coordinator Run or of a delegate it waits for; None if nothing is asked."""
        if self.closed is not None:
            return None
        for _, run in sorted(self.runs.items(), key=lambda item: number_of_run(item[0])):
            is_asking = run.status == "stoppedByInteractiveTool" and run.questions
            if is_asking and self._root(run) is self.coordinator:
                return next(reversed(run.questions.values()))
        return None

    @property
    def labels(self) -> dict[str, str]:
        """The labels of all Runs that a person started; later ones override earlier ones."""
        labels: dict[str, str] = {}
        for run in sorted(self.coordinators, key=lambda run: number_of_run(run.start.run_id)):
            labels |= run.start.labels
        return labels

    def _root(self, run: Run) -> Run:
        while run.start.delegated_by is not None:
            run = self.runs[run.start.delegated_by.run_id]
        return run


def job_of(job_id: str, runs: Iterable[Run]) -> Job:
    """Return the Job of these states, which are on disk."""
    job = Job(job_id)
    for run in runs:
        job.update(run)
        job.stored[run.id] = run
    return job
