"""The services that a driver uses for every Run of a Job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from perstack.config.lock import Lock
from perstack.core.definitions.overrides import Overrides
from perstack.core.definitions.project import Project
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.context.connections import Dispatching
from perstack.engine.context.host_context import JobSnapshots, Setup
from perstack.engine.log.emitter import Emitter
from perstack.engine.plugins.agent_skills import SkillLibrary
from perstack.engine.plugins.providers import ProviderPool
from perstack.engine.plugins.skills import JobSkills
from perstack.errors import PerstackError
from perstack.ports.skill import Toolset
from perstack.ports.storage import Storage
from perstack.system.clock import SYSTEM, Clock

if TYPE_CHECKING:
    from perstack.engine.plugins.secret_masking import SecretVault
    from perstack.ports.tasks import TaskMemory  # slow import that a Job without tasks does not need


@dataclass(slots=True)
class Wiring:
    """Services and definitions that a driver uses, the same for each Run."""

    storage: Storage
    project: Project
    providers: ProviderPool
    skills: JobSkills
    emit: Emitter
    overrides: Overrides
    directory: str
    """The working directory that the model is given."""
    knowledge: SkillLibrary
    snapshots: JobSnapshots
    dispatching: Dispatching
    vault: Callable[[int], SecretVault]
    """Returns the secrets that tools have shown, by the block of their numbers."""
    clock: Clock = SYSTEM

    def played_skills(self, run: Run) -> Mapping[str, Toolset]:
        """Return the skills that are not opened for a Run, because a recording answers for their tools."""
        try:
            provider = self.providers.for_run(run, self.project, self.overrides).provider
        except PerstackError:
            return {}  # the Run fails with it when it opens its endpoint
        if provider.player is None:
            return {}
        from perstack.engine.runs.playback import played_skills  # only for Runs that play one

        return played_skills(provider, run)


def wired(
    setup: Setup, job_id: str, emit: Emitter, tasks: Callable[[], TaskMemory], lock: Lock, knowledge: SkillLibrary
) -> Wiring:
    """Create the services for a Job from a setup."""
    skills = JobSkills(
        setup.plugins.skills,
        setup.skill_context(job_id, tasks),
        emit,
        lock,
        setup.clock,
        runtimes=setup.runtimes(job_id),
        agreement=setup.agreement,
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
        vault=partial(setup.vault, job_id),
        clock=setup.clock,
    )
