"""The definition and the services that a Host works with.

A `HostSetup` is frozen: a change replaces it in the `SetupSource`, and a Job keeps the setup that it began with. Its
methods check whether an Expert can begin, and compute the sandbox, the protected files and the recorded definition.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from perstack.config.grants import ProjectGrants
from perstack.config.project_place import folder_of
from perstack.config.resolved_settings import resolve_sandbox, resolve_settings
from perstack.core.base.records import JsonObject
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.keys import hint_for_scoped_key
from perstack.core.definitions.project import Project, with_delegates
from perstack.core.definitions.sandbox import SandboxPolicy, is_below
from perstack.core.definitions.settings import Budget, Overrides, lower_budget
from perstack.core.files.file_names import STATE_FOLDER
from perstack.core.schemas.result_schemas import schema_fault
from perstack.dataclass import dataclass
from perstack.engine.context.audit_trail import AuditTrail
from perstack.engine.context.connections import LazyDispatcher
from perstack.engine.context.protection import RUN_FILES, FileOwners, Protection
from perstack.engine.log.snapshot_protocol import SNAPSHOTS, SnapshotRecorder
from perstack.engine.plugins.providers_and_prices import ProviderPool, RunSettings
from perstack.engine.plugins.registry import Plugins
from perstack.engine.plugins.runtimes import (
    Runtimes,
    UnpackedSkill,
    check_policies,
    make_skills_readable,
    relocate_policy,
)
from perstack.errors import UsageError
from perstack.ports.environment import Environment
from perstack.ports.parts import NO_PARTS, Parts
from perstack.ports.runtime import Surroundings
from perstack.ports.skill import SkillContext
from perstack.ports.storage import Storage
from perstack.system.clock import Clock
from perstack.system.user import notice

if TYPE_CHECKING:
    from perstack.core.definitions.recorded_definition import SeriesDefinition
    from perstack.engine.log.run_session import Emitter, EventListener
    from perstack.engine.plugins.knowledge import Knowledge
    from perstack.engine.plugins.secret_vault import SecretVault
    from perstack.engine.plugins.trust_checks import ToolLock, TrustCheck


_MAX_VAULTS = 1_000  # maximum number of Jobs whose secrets a process remembers; then the oldest is dropped


def never_attended() -> bool:
    """Return False: nobody answers questions while a Job is driven."""
    return False


@dataclass(frozen=True, slots=True)
class HostSetup:
    """A definition, and the services that its Experts run with."""

    project: Project
    overrides: Overrides
    workspace: Path
    env: Environment
    storage: Storage
    plugins: Plugins
    providers: ProviderPool
    audit: AuditTrail
    clock: Clock
    dispatching: LazyDispatcher
    agreement: TrustCheck
    parts: Parts = NO_PARTS
    is_attended: Callable[[], bool] = never_attended
    """Return whether a person answers questions of the Job that this task drives, while it is driven."""
    check_result: Callable[[JsonObject], str | None] | None = None
    """Caller's check of a Coordinator's result that fits its schema: return the problem, or None."""
    unpacked_skills: tuple[UnpackedSkill, ...] | None = None
    """Agent Skills that were stored with the Job, unpacked; None to read them where Experts name them."""
    declared_project: Project | None = None
    """Today's definition, if `project` is a recorded one: the files that it runs are protected too."""
    task_commands: tuple[tuple[str, ...], ...] = ()
    """Commands that tasks wait with: the files that they run are protected too."""
    vaults: dict[tuple[str, int], SecretVault] = field(default_factory=dict[tuple[str, int], "SecretVault"])
    """Secrets that tools have shown, by the Job and the block of their numbers."""

    def with_recorded(self, definition: SeriesDefinition) -> HostSetup:
        """Return this setup with only the Experts of a recorded definition, and today's secrets."""
        from perstack.core.definitions.recorded_definition import restore_project

        project, overrides = restore_project(definition, self.project), self.overrides.or_else(definition.chosen)
        return replace(
            self, project=project, overrides=overrides, declared_project=self.declared_project or self.project
        )

    def with_budget(
        self, expert_key: str, remaining_budget: Budget | None, budget_options: Overrides | None = None
    ) -> HostSetup:
        """Return this setup with the Expert's budget for one Job, at most the rest of a series' budget.

        `budget_options` are the options that determine the Expert's own budget; None for the options of this setup.
        """
        if remaining_budget is None:
            return self
        own_budget = resolve_settings(
            self.project, self.expert(expert_key), budget_options or self.overrides
        ).limits.budget
        budget = lower_budget(own_budget, remaining_budget) or remaining_budget
        overrides = replace(self.overrides, max_cost=budget.max_cost, max_tokens=budget.max_tokens)
        return replace(self, overrides=overrides)

    def with_model(self, model: str | None) -> HostSetup:
        """Return this setup with `model` for new Runs; None for the configured one."""
        return self if model is None else replace(self, overrides=replace(self.overrides, model=model))

    def expert(self, key: str) -> Expert:
        """Return an Expert. Raises UsageError that lists all Experts, and DefinitionError for one with errors."""
        fault = None if self.overrides.output is None else schema_fault(self.overrides.output)
        if fault is not None:
            raise UsageError(f"the schema for the result {fault}")
        expert = self.project.expert(key)
        if expert is None:
            self.project.check_broken(key)
            names = ", ".join(sorted(self.project.experts)) or "none"
            source = self.project.path or "the project"
            hint = hint_for_scoped_key(key, self.project.experts)
            raise UsageError(f"there is no Expert {key!r} in {source}; available: {names}{hint}")
        return expert

    def check_ready(self, expert_key: str) -> Expert:
        """Return the Expert. Raises NotAgreed, UsageError or MissingCredential if a Run of it could not begin."""
        expert = self.expert(expert_key)
        for policy in self.policies(expert):
            if policy is not None:
                self.plugins.runtime(policy.runtime)
        self.agreement.check_definition()
        settings = self.providers.settings(self.project, expert, self.overrides)
        self.providers.check(settings, self.project, expert)
        self.check_tools(with_delegates(self.project, expert.delegates), settings)
        return expert

    def check_tools(self, delegates: Iterable[Expert], settings: RunSettings) -> None:
        """Raise UsageError if a provider lacks a tool that a delegate wants. `settings` are the Coordinator's."""
        if self.providers.get(settings.provider).player is None:
            for delegate in delegates:
                self.providers.check_tools(self.project, delegate, self.overrides)

    def policy(self, expert: Expert | None = None) -> SandboxPolicy | None:
        """Return the sandbox policy of an Expert's programs; without `expert`, of programs that belong to none."""
        no_expert = Expert(key="", instruction="")
        expert = no_expert if expert is None else expert
        return make_skills_readable(resolve_sandbox(self.project, expert, self.overrides), expert, str(self.workspace))

    def policies(self, expert: Expert) -> list[SandboxPolicy | None]:
        """Return the sandbox policies of the Expert and of all Experts that it may delegate to."""
        return [self.policy(member) for member in with_delegates(self.project, (expert.key,))]

    def emitter(self, on_event: EventListener | None = None) -> Emitter:
        """Return the emitter that shows events to the listeners of plugins, and to `on_event`."""
        from perstack.engine.log.run_session import Emitter

        return Emitter(self.plugins.listeners, on_event)

    async def check_sandbox(self, expert: Expert) -> None:
        """Raise UsageError if this machine cannot apply the sandbox policies of the Expert or its delegates."""
        await self.check_policies(self.policies(expert))

    async def check_policies(self, policies: Iterable[SandboxPolicy | None]) -> None:
        """Raise UsageError if this machine cannot apply one of these policies."""
        local_policies = [relocate_policy(policy, self.unpacked_skills or ()) for policy in policies]
        await check_policies(self.plugins, local_policies, lambda: self.surroundings(""))

    def runtimes(self, job_id: str) -> Runtimes:
        """Return the runtimes for programs of a Job."""
        return Runtimes(self.plugins, self.surroundings(job_id), self.unpacked_skills or ())

    def surroundings(self, job_id: str) -> Surroundings:
        """Return the facts about this machine that sandboxes need: the workspace, hidden and protected files."""
        protection = self.protection
        return Surroundings(
            self.workspace,
            job_id,
            self.env.without_stored,
            hidden=protection.hidden,
            protected=(*protection.definitions, *protection.programs),
            shown=tuple(skill.folder for skill in self.unpacked_skills or ()),
            included=self._find_included_files,
            on_notice=notice,
        )

    @property
    def grants(self) -> ProjectGrants:
        """The rules that a person has approved for the whole project."""
        return ProjectGrants(folder_of(self.project, self.workspace))

    def vault(self, job_id: str, block: int) -> SecretVault:
        """Return the secrets of a Job that this process masks; `block` is the range of their numbers here."""
        from perstack.engine.plugins.secret_vault import SecretVault

        if len(self.vaults) > _MAX_VAULTS:
            self.vaults.pop(next(iter(self.vaults)))
        return self.vaults.setdefault((job_id, block), SecretVault(self.env))

    def snapshots(self, job_id: str) -> SnapshotRecorder:
        """Create the recorder of a Job's workspace snapshots, without the files that are hidden from tools."""
        make_recorder = self.parts.get(SNAPSHOTS)
        return make_recorder(self.storage, job_id, self.workspace, tuple(self.surroundings(job_id).hidden))

    @property
    def protection(self) -> Protection:
        """The files that Experts and their programs must not use. Raises StorageError for unreadable grants."""
        widening = self.overrides.widening
        keys = (*map(Path, self.project.env_path), *self.env.files, *self.audit.key_files)
        owners = FileOwners(
            (self.project,) if self.declared_project is None else (self.project, self.declared_project),
            self.workspace,
            self.env,
            state=(*self.storage.places, *self.audit.anchor_places),
            secret=tuple(path.absolute() for path in keys),
            commands=self.task_commands,
            rules=(*(() if widening is None else widening.allow), *self.grants.rules()),
        )
        return self.parts.get(RUN_FILES).protection_of(owners)

    def _find_included_files(self) -> list[Path]:
        """Return the files that patterns of `include` match now. Print a notice for a pattern with too many."""
        from perstack.config.file_patterns import TooManyNames, matches  # imported late: few definitions have includes

        folders = sorted({str(Path(name).absolute().parent) for name in self.project.files}, key=len, reverse=True)
        paths: list[Path] = []
        for pattern in self.project.includes:
            # the name of the folder may contain characters that are special in patterns
            folder = next((candidate for candidate in folders if is_below(pattern, (candidate,))), "/")
            try:
                paths += (Path(folder, name) for name in matches(os.path.relpath(pattern, folder), Path(folder)))
            except TooManyNames as error:
                notice(f"`{pattern}` of `include` {error}; check which files programs have created there")
        return paths

    def definition(self, expert_key: str) -> SeriesDefinition:
        """Return the definition to record for an Expert that begins now. Raises the errors of `check_ready`."""
        from perstack.core.definitions.recorded_definition import definition_of

        project, expert, overrides = self.project, self.expert(expert_key), self.overrides
        settings = self.providers.settings(project, expert, overrides)
        # record the default provider of today: a key for another provider may be added later
        if resolve_settings(project, expert, overrides).provider is None:
            model = project.model or settings.model
            project = project.model_copy(update={"provider": settings.provider, "model": model})
        return definition_of(project, expert, overrides)

    def lock(self) -> ToolLock:
        """Return perstack.lock; an empty lock without the file. Raises UsageError if it cannot be parsed."""
        from perstack.engine.plugins.trust_checks import TOOL_LOCKS

        return self.parts.get(TOOL_LOCKS)(self.project.path)

    def knowledge(self, tool_lock: ToolLock) -> Knowledge:
        """Return the access to Agent Skills and AGENTS.md files of the project; nothing is read yet."""
        from perstack.engine.plugins.knowledge import LIBRARY, Knowledge

        return Knowledge(
            self.project, lambda: self.parts.get(LIBRARY)(self.project, tool_lock, self.workspace, self.unpacked_skills)
        )

    def skill_context(self, job_id: str) -> SkillContext:
        """Return the context that skills are opened with."""
        protection = self.protection
        return SkillContext(
            self.workspace,
            job_id,
            self.env.without_stored,
            STATE_FOLDER,
            parts=self.parts,
            off_limits=protection.state,
            programs=self.storage.programs,
            protected=(*protection.definitions, *protection.secret),
            read_only=protection.programs,
            protected_patterns=self.project.includes,
        )


class SetupSource:
    """Holder of the setup in force. A Job reads `setup` once, when it begins, and keeps it."""

    def __init__(self, setup: HostSetup) -> None:
        self.setup = setup

    def replace(self, setup: HostSetup) -> None:
        """Use this setup for Jobs that begin from now on."""
        self.setup = setup
