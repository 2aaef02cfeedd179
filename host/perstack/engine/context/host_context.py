"""What a Host works with, and what is asked of it by everything that begins: never changed, only replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perstack.config.lock import NO_LOCK, Lock, lock_path, read_lock
from perstack.config.settings import Overrides, resolve_sandbox, resolve_settings
from perstack.core.definitions import Budget, Expert, Project
from perstack.core.policy.budget import lower
from perstack.core.results import schema_fault
from perstack.core.sandbox import SandboxPolicy
from perstack.core.teams import with_delegates
from perstack.dataclass import dataclass
from perstack.engine.audit import Auditing
from perstack.engine.dispatching import Dispatching
from perstack.engine.guarding import programs_of
from perstack.engine.knowledge import Knowledge, LaidOut, reachable, relocated
from perstack.engine.notices import notice
from perstack.engine.plugins import Plugins
from perstack.engine.providers import ProviderPool
from perstack.engine.runtimes import Ground, Runtimes, check_policies, prepared
from perstack.engine.state import places_of
from perstack.engine.trust import TrustStore
from perstack.errors import UsageError
from perstack.ports.clock import Clock
from perstack.ports.environment import Environment
from perstack.ports.runtime import Surroundings
from perstack.ports.skill import SkillContext
from perstack.ports.storage import Storage

if TYPE_CHECKING:
    from perstack.core.recorded import SeriesDefinition
    from perstack.engine.snapshots.of_job import JobSnapshots
    from perstack.ports.tasks import TaskMemory  # half of what a run without tasks would import

STATE_DIR = "perstack"
"""The directory of a workspace that tools keep off."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A definition, and what its Experts run with."""

    project: Project
    overrides: Overrides
    workspace: Path
    env: Environment
    storage: Storage
    plugins: Plugins
    providers: ProviderPool
    audit: Auditing
    clock: Clock
    dispatching: Dispatching
    laid_out: tuple[LaidOut, ...] | None = None
    """The Agent Skills that were kept with the Job; None: they are where Experts name them."""

    def under(self, definition: SeriesDefinition) -> Setup:
        """The same with the Experts of a recorded definition alone, and today's secrets."""
        from perstack.engine.recorded import in_force_now

        project, overrides = in_force_now(definition, self.project, self.overrides)
        return replace(self, project=project, overrides=overrides)

    def within(self, expert_key: str, left: Budget | None, chosen: Overrides | None = None) -> Setup:
        """The same, with a budget for a Job of the Expert that is at most what is left of a series'.

        `chosen` are the options that its own budget follows from; these, if they are not given.
        """
        if left is None:
            return self
        own = resolve_settings(self.project, self.expert(expert_key), chosen or self.overrides).limits.budget
        most = lower(own, left) or left
        asked = replace(self.overrides, max_cost=most.max_cost, max_tokens=most.max_tokens)
        return replace(self, overrides=asked)

    def expert(self, key: str) -> Expert:
        """Raises UsageError, with those that there are, and DefinitionError for one with errors."""
        fault = None if self.overrides.output is None else schema_fault(self.overrides.output)
        if fault is not None:
            raise UsageError(f"the schema for the result {fault}")
        expert = self.project.expert(key)
        if expert is None:
            self.project.check_broken(key)
            names = ", ".join(sorted(self.project.experts)) or "none"
            raise UsageError(f"there is no Expert {key!r} in {self.project.path or 'the project'}; there are: {names}")
        return expert

    def check_ready(self, expert_key: str) -> Expert:
        """Raises UsageError or MissingCredential if a Run of the Expert could not begin."""
        expert = self.expert(expert_key)
        for policy in self.policies(expert):
            if policy is not None:
                self.plugins.runtime(policy.runtime)
        self.providers.check(self.providers.settings(self.project, expert, self.overrides), self.project, expert)
        return expert

    def policy(self, expert: Expert | None = None) -> SandboxPolicy | None:
        """What programs of an Expert's tools are held to, or if none is given those that are no Expert's."""
        nobody = Expert(key="", instruction="")
        expert = nobody if expert is None else expert
        return reachable(resolve_sandbox(self.project, expert, self.overrides), expert, str(self.workspace))

    def policies(self, expert: Expert) -> list[SandboxPolicy | None]:
        """Those of the Expert and of all that it may delegate to."""
        return [self.policy(one) for one in with_delegates(self.project, (expert.key,))]

    async def check_sandbox(self, expert: Expert) -> None:
        """Raises UsageError if what its programs, or those of its delegates, are held to cannot be kept here."""
        await self.check_policies(self.policies(expert))

    async def check_policies(self, policies: Iterable[SandboxPolicy | None]) -> None:
        """Raises UsageError if one of them cannot be kept here."""
        here = [relocated(policy, self.laid_out or ()) for policy in policies]
        await check_policies(self.plugins, here, lambda: self.surroundings(""))

    def runtimes(self, job_id: str) -> Runtimes:
        """Where programs of a Job run."""
        return Runtimes(self.plugins, self.surroundings(job_id), self.laid_out or ())

    def ground(self, expert_key: str | None) -> AbstractAsyncContextManager[Ground]:
        """Where a program of an Expert's that is no tool's runs, or with None one that is no Expert's."""
        expert = None if expert_key is None else self.project.expert(expert_key)
        policy = relocated(self.policy(expert), self.laid_out or ())
        return prepared(self.plugins, policy, self.surroundings(""))

    def surroundings(self, job_id: str) -> Surroundings:
        """What of this machine programs are kept from, where they are kept from anything."""
        return Surroundings(
            self.workspace,
            job_id,
            self.env,
            hidden=(
                self.workspace / STATE_DIR,
                *places_of(self.storage),
                *self.audit.anchor_places,
                *self._secret_files,
            ),
            protected=self._definitions,
            on_notice=notice,
        )

    def snapshots(self, job_id: str) -> JobSnapshots:
        """Those of the workspace that a Job takes: of nothing that belongs to the host alone."""
        from perstack.engine.snapshots.of_job import JobSnapshots

        return JobSnapshots(self.storage, job_id, self.workspace, self.surroundings(job_id).hidden)

    @property
    def _definitions(self) -> tuple[Path, ...]:
        """The files that say what is executed."""
        lock = () if self.project.path is None else (lock_path(self.project.path),)
        return tuple(Path(name).absolute() for name in (*self.project.files, *lock))

    @property
    def _secret_files(self) -> tuple[Path, ...]:
        """The files that the host itself reads, and nobody else."""
        named = (*map(Path, self.project.env_path), *self.env.files, *self.audit.key_files)
        return (*(path.absolute() for path in named), TrustStore.of_user().folder)

    def definition(self, expert_key: str) -> SeriesDefinition:
        """What is recorded of an Expert by what begins now. Raises as `check_ready`."""
        from perstack.engine.recorded import record_definition

        return record_definition(self.providers, self.project, self.expert(expert_key), self.overrides)

    def lock(self) -> Lock:
        """perstack.lock; an empty one if there is none. Raises UsageError if it does not read."""
        return NO_LOCK if self.project.path is None else read_lock(lock_path(self.project.path))

    async def knowledge(self, expert_key: str, lock: Lock | None = None) -> Knowledge:
        """What an Expert and all that it may delegate to know, read now."""
        found = Knowledge(self.project, self.lock() if lock is None else lock, self.workspace, self.laid_out)
        await found.read(with_delegates(self.project, (expert_key,)))
        return found

    def skill_context(self, job_id: str, tasks: Callable[[], TaskMemory] | None = None) -> SkillContext:
        """What skills are given."""
        return SkillContext(
            self.workspace,
            job_id,
            self.env,
            STATE_DIR,
            tasks=tasks,
            off_limits=(*places_of(self.storage), *self.audit.anchor_places),
            programs=programs_of(self.storage),
            protected=(*self._definitions, *self._secret_files),
            protected_patterns=self.project.includes,
        )
