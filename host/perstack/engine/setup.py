"""What a Host works with, and what is asked of it by everything that begins: never changed, only replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from perstack.config.lock import Lock, lock_path, read_lock
from perstack.config.settings import Overrides
from perstack.core.definitions import Expert, Project
from perstack.core.recorded import SeriesDefinition
from perstack.engine.audit import Auditing
from perstack.engine.guarding import programs_of
from perstack.engine.plugins import Plugins
from perstack.engine.providers import ProviderPool
from perstack.engine.recorded import in_force_now, record_definition
from perstack.engine.state import places_of
from perstack.engine.trust import TrustStore
from perstack.errors import UsageError
from perstack.ports.clock import Clock
from perstack.ports.environment import Environment
from perstack.ports.skill import SkillContext
from perstack.ports.storage import Storage

if TYPE_CHECKING:
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

    def under(self, definition: SeriesDefinition) -> Setup:
        """The same with the Experts of a recorded definition alone, and today's secrets."""
        project, overrides = in_force_now(definition, self.project, self.overrides)
        return replace(self, project=project, overrides=overrides)

    def expert(self, key: str) -> Expert:
        """Raises UsageError, with those that there are, and DefinitionError for one with errors."""
        expert = self.project.expert(key)
        if expert is None:
            self.project.check_broken(key)
            names = ", ".join(sorted(self.project.experts)) or "none"
            raise UsageError(f"there is no Expert {key!r} in {self.project.path or 'the project'}; there are: {names}")
        return expert

    def check_ready(self, expert_key: str) -> Expert:
        """Raises UsageError or MissingCredential if a Run of the Expert could not begin."""
        expert = self.expert(expert_key)
        self.providers.get(self.providers.settings(self.project, expert, self.overrides).provider)
        return expert

    def definition(self, expert_key: str) -> SeriesDefinition:
        """What is recorded of an Expert by what begins now. Raises as `check_ready`."""
        return record_definition(self.providers, self.project, self.expert(expert_key), self.overrides)

    def lock(self) -> Lock:
        """perstack.lock; an empty one if there is none. Raises UsageError if it does not read."""
        return Lock() if self.project.path is None else read_lock(lock_path(self.project.path))

    def skill_context(self, job_id: str, tasks: Callable[[], TaskMemory] | None = None) -> SkillContext:
        """What skills are given."""
        project = self.project
        lock = () if project.path is None else (lock_path(project.path),)
        read = (*project.files, *project.env_path, *self.env.files, *lock, *self.audit.key_files)
        return SkillContext(
            self.workspace,
            job_id,
            self.env,
            STATE_DIR,
            tasks=tasks,
            off_limits=(*places_of(self.storage), *self.audit.anchor_places),
            programs=programs_of(self.storage),
            protected=(*(Path(name).absolute() for name in read), TrustStore.of_user().folder),
            protected_patterns=project.includes,
        )
