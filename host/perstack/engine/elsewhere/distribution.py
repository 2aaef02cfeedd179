"""Which delegates of a Run others may drive, and how they are queued."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.definitions import Expert
from perstack.core.ids import may_be_elsewhere
from perstack.core.policy.shares import WHOLE
from perstack.core.run_facts import Delegation
from perstack.core.runs.state import Run
from perstack.core.teams import with_delegates
from perstack.engine.drives import Drives
from perstack.engine.session import Session


class Distribution:
    """That of one driver."""

    def __init__(self, driver: Drives) -> None:
        self._driver = driver
        self._project = driver.wiring.project

    def takes(self, session: Session, delegations: Sequence[Delegation]) -> bool:
        """Whether others drive these. All of them or none, so that nothing here spends beside their shares.

        Only of the Run that this process was given to drive; and not if an Expert below them has a budget of its own,
        whose share nobody would know.
        """
        driver = self._driver
        if session.run.id != driver.root or not driver.job.may_be_distributed:
            return False
        return all(may_be_elsewhere(one.run_id) and self._has_one_budget(one) for one in delegations)

    def expert(self, delegation: Delegation, run: Run | None) -> Expert | None:
        """As it is, or would be, recorded; None if there is no such Expert any more."""
        return self._project.expert(delegation.expert_key) if run is None else run.start.expert

    def account_of(self, delegation: Delegation, run: Run | None) -> str:
        """Whose budget it uses beside that of all: its Expert's, unless the Run that is driven here does already."""
        expert, root = self.expert(delegation, run), self._driver.job.runs[self._driver.root].start
        is_above = root.delegated_by is not None and expert is not None and expert.key == root.expert_key
        return WHOLE if expert is None or expert.budget is None or is_above else expert.key

    @property
    def definition(self) -> str | None:
        """The blob with what the Job was queued with."""
        queued = self._driver.job.coordinator.queued
        return None if queued is None else queued.definition

    @property
    def priority(self) -> int:
        """That of the Job, and more for each that is above: what has begun is to end."""
        job = self._driver.job
        queued = job.coordinator.queued
        return (0 if queued is None else queued.priority) + job.runs[self._driver.root].start.depth + 1

    @property
    def submitted_at(self) -> int:
        """When the Job was queued, in milliseconds since 1970."""
        queued = self._driver.job.coordinator.queued
        return 0 if queued is None else queued.timestamp

    def _has_one_budget(self, delegation: Delegation) -> bool:
        team = with_delegates(self._project, (delegation.expert_key,))
        return all(expert.budget is None for expert in team if expert.key != delegation.expert_key)
