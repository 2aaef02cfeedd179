"""What the Runs of a Job are driven with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from perstack.config.lock import Lock
from perstack.config.settings import Overrides
from perstack.core.definitions import Project
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.clock import SYSTEM
from perstack.engine.dispatching import Dispatching
from perstack.engine.emit import Emitter
from perstack.engine.knowledge import Knowledge
from perstack.engine.providers import ProviderPool
from perstack.engine.setup import Setup
from perstack.engine.skills import JobSkills
from perstack.engine.snapshots.of_job import JobSnapshots
from perstack.errors import PerstackError
from perstack.ports.clock import Clock
from perstack.ports.provider import plays_recording
from perstack.ports.skill import Toolset
from perstack.ports.storage import Storage

if TYPE_CHECKING:
    from perstack.ports.tasks import TaskMemory  # half of what a run without tasks would import


@dataclass(slots=True)
class Wiring:
    """What a driver works with, whichever Run it drives."""

    storage: Storage
    project: Project
    providers: ProviderPool
    skills: JobSkills
    emit: Emitter
    overrides: Overrides
    directory: str
    """The working directory, as the model is told."""
    knowledge: Knowledge
    snapshots: JobSnapshots
    dispatching: Dispatching
    clock: Clock = SYSTEM

    def played_skills(self, run: Run) -> Mapping[str, Toolset]:
        """The skills that are not opened for a Run, because it plays a recording."""
        try:
            provider = self.providers.for_run(run, self.project, self.overrides).provider
        except PerstackError:
            return {}  # the Run fails with it where it is needed
        if not plays_recording(provider):
            return {}
        from perstack.engine.playing import played_skills  # only for Runs that play one

        return played_skills(provider, run)


def wired(
    setup: Setup, job_id: str, emit: Emitter, tasks: Callable[[], TaskMemory], lock: Lock, knowledge: Knowledge
) -> Wiring:
    """What a Job is driven with by a setup."""
    skills = JobSkills(
        setup.plugins.skills,
        setup.skill_context(job_id, tasks),
        emit,
        lock,
        setup.clock,
        runtimes=setup.runtimes(job_id),
        knowledge=knowledge,
    )
    return Wiring(
        storage=setup.storage,
        project=setup.project,
        providers=setup.providers,
        skills=skills,
        emit=emit,
        overrides=setup.overrides,
        directory=str(setup.workspace),
        knowledge=knowledge,
        snapshots=setup.snapshots(job_id),
        dispatching=setup.dispatching,
        clock=setup.clock,
    )
