"""The declared Experts: look them up, and check and preview what a Run of one would use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.models import NAMED, full_name, split_full_name
from perstack.core.definitions.project import with_delegates
from perstack.core.definitions.skills import Skill, agent_skills
from perstack.engine.context.host_setup import HostSetup, SetupSource
from perstack.errors import UsageError
from perstack.next_steps import Install
from perstack.ports.skill import SkillContext, SkillFactory

if TYPE_CHECKING:
    from perstack.diagnostics.doctor import DoctorFinding, ProgramExit, ProviderState, RuntimeState
    from perstack.diagnostics.install import Installed, InstallStep, OnInstall
    from perstack.diagnostics.prompt_preview import OfferedTools, PromptPreview
    from perstack.lockfile.lock import LockedFolder


class Experts:
    """The Experts of the definition in force."""

    def __init__(self, source: SetupSource) -> None:
        self._source = source

    def all(self) -> Mapping[str, Expert]:
        """Return the Experts by key, without those whose definition has errors."""
        return self._source.setup.project.experts

    def get(self, key: str) -> Expert:
        """Return an Expert. Raises UsageError, listing the known Experts, and DefinitionError for one with errors."""
        return self._source.setup.expert(key)

    def check_ready(self, key: str) -> None:
        """Raise UsageError or MissingCredential if a Run of the Expert could not begin."""
        self._source.setup.check_ready(key)

    async def run_program(self, expert_key: str, argv: Sequence[str]) -> ProgramExit:
        """Run a program as a tool of this Expert would, with this process's standard streams. Raises UsageError."""
        from perstack.diagnostics.doctor import run_program

        setup = self._source.setup
        return await run_program(setup, setup.expert(expert_key), argv)

    async def test_command(
        self,
        expert_key: str,
        command: str | tuple[str, ...],
        stdin_text: str = "",
        *,
        timeout_ms: int = 600_000,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Run a command on what a Job has left in the workspace. Return why it fails; empty for exit status 0.

        The command runs in the Expert's sandbox, with `stdin_text` on stdin. Raises UsageError.
        """
        from perstack.iterations.commands import failure_reason

        setup = self._source.setup
        setup.expert(expert_key)
        return await failure_reason(setup, expert_key, command, stdin_text, timeout_ms, variables or {})

    async def runtimes(self) -> tuple[RuntimeState, ...]:
        """Return the installed runtimes, and whether each can be used on this machine."""
        from perstack.diagnostics.doctor import runtimes

        return await runtimes(self._source.setup)

    async def providers(self) -> tuple[ProviderState, ...]:
        """Return the installed providers with their models, in the order in which they are tried."""
        from perstack.diagnostics.doctor import provider_states

        return await provider_states(self._source.setup)

    def model(self, expert_key: str, model: str | None = None) -> str:
        """Return, as `provider/model`, what a Run of the Expert would use; `model` replaces the configured one.

        Raises UsageError and MissingCredential.
        """
        setup = self._source.setup.with_model(model)
        settings = setup.providers.settings(setup.project, setup.expert(expert_key), setup.overrides)
        return full_name(settings.provider.provider_name, settings.model)

    async def models(self, expert_key: str) -> tuple[str, ...]:
        """Return the model of a Run of the Expert, the names of `[models]`, and the known models of its provider.

        Raises UsageError and MissingCredential.
        """
        from perstack.diagnostics.doctor import provider_state

        setup = self._source.setup
        provider, current_model = split_full_name(self.model(expert_key))
        model_names = (model.name for model in (await provider_state(setup, provider)).models)
        return tuple(dict.fromkeys((current_model, *(f"{NAMED}{name}" for name in setup.project.models), *model_names)))

    async def diagnosis(self) -> tuple[DoctorFinding, ...]:
        """Check whether this machine has what perstack needs; findings include remedies."""
        from perstack.diagnostics.doctor import diagnosis

        return await diagnosis(self._source.setup)

    async def sent(self, expert_key: str, *, as_delegate: bool = False) -> PromptPreview:
        """Return what the Expert's model would be sent before the query. Its skills are opened and closed."""
        from perstack.diagnostics.prompt_preview import preview_prompt

        setup = self._source.setup
        expert = setup.expert(expert_key)
        await setup.check_sandbox(expert)
        return await preview_prompt(setup, expert, as_delegate=as_delegate)

    async def tools(self, expert_key: str) -> OfferedTools:
        """Return the tools that a Coordinator's Run of this Expert would offer. Its skills are opened and closed."""
        from perstack.diagnostics.prompt_preview import list_offered_tools

        setup = self._source.setup
        expert = setup.expert(expert_key)
        await setup.check_sandbox(expert)
        return await list_offered_tools(setup, expert)


# The declared skills, without a Run: logins to their servers, and perstack.lock.


AgreesToChanges = Callable[[Sequence[str]], bool]
"""Return whether a person agrees to what these lines show, whole: tools and instructions that differ from the lock."""


def refuse_changes(changes: Sequence[str]) -> bool:
    """Raise UsageError that names each new or changed tool, because nobody was asked about them."""
    names = "; ".join(line.rstrip(":") for line in changes if not line.startswith(" "))
    raise UsageError(
        f"perstack.lock differs from what its skills offer now ({names}), and nobody has agreed to it",
        next_steps=(Install(),),
    )


class Skills:
    """The skills that the Experts of the definition in force declare."""

    def __init__(self, source: SetupSource) -> None:
        self._source = source

    async def login(
        self, skill_name: str, present: Callable[[str], Awaitable[None]], *, expert_key: str | None = None
    ) -> None:
        """Log in to a skill's server, for all later Jobs; `present` receives the address that a person must open.

        Raises UsageError if no Expert has the skill, or several declare it differently and `expert_key` selects none of
        them, and SkillError if the login is not completed within some minutes.
        """
        from perstack.engine.plugins.job_skills import check_agreed  # lists of Experts and Jobs need none of it

        setup = self._source.setup
        setup.agreement.check_definition()
        factory, definition = _login_of(setup, skill_name, expert_key)
        check_agreed(definition, setup.agreement)
        await factory.login(definition, setup.skill_context(""), present)

    async def logout(self, skill_name: str, *, expert_key: str | None = None) -> bool:
        """Delete a login. Return False if there was none."""
        setup = self._source.setup
        factory, definition = _login_of(setup, skill_name, expert_key)
        return await factory.logout(definition, setup.skill_context(""))

    async def install(
        self, *expert_keys: str, on_step: OnInstall = lambda step: None, agrees: AgreesToChanges = refuse_changes
    ) -> Installed:
        """Ask every skill of these Experts, or of all, and of their delegates for its tools; write perstack.lock.

        `on_step` receives the progress. `agrees` is called before new or changed tools of a locked skill replace those
        of the lock; by default they are refused. A skill that fails keeps its earlier entry. Raises NotAgreed,
        StorageError, and UsageError if the changes are not agreed to.
        """
        from perstack.agent_skills.library import read_lock_entries
        from perstack.diagnostics.install import Installed, ask_skills
        from perstack.diagnostics.lock_update import lock_changes, merge_locks, write_lock
        from perstack.lockfile.lock import Lock, lock_path, path_in_lock, read_lock

        setup = self._source.setup
        setup.agreement.check_definition()
        if setup.project.path is None:
            raise UsageError("there is no perstack.toml here, next to which perstack.lock is written")
        path = lock_path(setup.project.path)
        keys = [setup.expert(key).key for key in expert_keys] or list(setup.project.experts)
        experts = with_delegates(setup.project, keys)
        await setup.check_policies(map(setup.policy, experts))
        folders = await asyncio.to_thread(read_lock_entries, setup.project.path, experts)
        runtimes = setup.runtimes("install")

        async def context_of(key: str) -> SkillContext:
            return await runtimes.skill_context(setup.skill_context("install"), setup.policy(setup.expert(key)))

        try:
            new_lock, steps = await ask_skills(setup.plugins.skills, context_of, experts, on_step, setup.agreement)
        finally:
            await runtimes.close()
        try:
            old_lock = read_lock(path)
        except UsageError:
            old_lock = Lock()  # an unreadable lock is replaced
        declared_experts = setup.project.experts.values()
        skills = (skill for expert in declared_experts for skill in agent_skills(expert.skills))
        places = {path_in_lock(setup.project.path, skill) for skill in skills}
        locked_folders = tuple(folder for folder in folders if not isinstance(folder, UsageError))
        changes = lock_changes(old_lock, new_lock)
        if changes and not agrees(changes):
            raise UsageError("the changes were not agreed to: perstack.lock is as it was")
        write_lock(
            path,
            merge_locks(
                old_lock, new_lock.model_copy(update={"agent_skills": locked_folders}), declared_experts, places
            ),
        )
        return Installed(path, (*steps, *map(_folder_step, folders)))


def _folder_step(folder: LockedFolder | UsageError) -> InstallStep:
    from perstack.diagnostics.install import InstallStep

    if isinstance(folder, UsageError):
        return InstallStep("agent skills", "failed", problem=folder.note)
    return InstallStep(folder.path, "ready")


def _login_of(setup: HostSetup, skill_name: str, expert_key: str | None) -> tuple[SkillFactory, Skill]:
    from perstack.diagnostics.install import login_of

    return login_of(setup.plugins.skills, setup.project.experts, skill_name, expert_key)
