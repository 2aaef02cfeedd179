"""The declared skills, without a Run: logins to their servers, and perstack.lock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from perstack.config.lock import Lock, LockedFolder, lock_path, merged, read_lock, write_lock
from perstack.core.definitions.project import with_delegates
from perstack.core.definitions.skills import Skill, agent_skills
from perstack.engine.context.host_context import ContextSource, HostContext
from perstack.engine.plugins.skills import check_agreed
from perstack.errors import UsageError
from perstack.ports.skill import SkillContext, SkillFactory

if TYPE_CHECKING:
    from perstack.engine.diagnostics.install import Installed, InstallStep, OnInstall


class Skills:
    """The skills that the Experts of the definition in force declare."""

    def __init__(self, source: ContextSource) -> None:
        """Create; `source` has the context in force."""
        self._source = source

    async def login(
        self, skill_name: str, present: Callable[[str], Awaitable[None]], *, expert_key: str | None = None
    ) -> None:
        """Log in to the server of a skill, for all later Jobs.

        `present` receives the address that a person must open.

        Raises UsageError if no Expert has such a skill, or if several declare it differently and `expert_key` selects
        none of them, and SkillError if the login is not completed within some minutes.
        """
        setup = self._source.current
        factory, definition = _login_of(setup, skill_name, expert_key)
        check_agreed(definition, setup.agreement)
        await factory.login(definition, setup.skill_context(""), present)

    async def logout(self, skill_name: str, *, expert_key: str | None = None) -> bool:
        """Delete a login. Return False if there was none."""
        setup = self._source.current
        factory, definition = _login_of(setup, skill_name, expert_key)
        return await factory.logout(definition, setup.skill_context(""))

    async def install(self, *expert_keys: str, on_step: OnInstall = lambda step: None) -> Installed:
        """Ask every skill of these Experts, or of all, and of their delegates for its tools; write perstack.lock.

        Later Runs offer the locked tools at once, and connect when a tool is first called. `on_step` receives the
        progress of each skill. A skill that fails keeps its earlier entry. Raises StorageError if the file cannot be
        written.
        """
        from perstack.engine.diagnostics.install import Installed, ask_skills
        from perstack.engine.plugins.agent_skills import path_in_lock, read_to_lock

        setup = self._source.current
        if setup.project.path is None:
            raise UsageError("there is no perstack.toml that a perstack.lock could stand beside")
        path = lock_path(setup.project.path)
        keys = [setup.expert(key).key for key in expert_keys] or list(setup.project.experts)
        experts = with_delegates(setup.project, keys)
        await setup.check_policies(map(setup.policy, experts))
        folders = await asyncio.to_thread(read_to_lock, setup.project.path, experts)
        runtimes = setup.runtimes("install")

        async def context_of(key: str) -> SkillContext:
            return await runtimes.context(setup.skill_context("install"), setup.policy(setup.expert(key)))

        try:
            new, steps = await ask_skills(setup.plugins.skills, context_of, experts, on_step, setup.agreement)
        finally:
            await runtimes.close()
        try:
            old = read_lock(path)
        except UsageError:
            old = Lock()  # an unreadable lock is replaced
        declared = setup.project.experts.values()
        places = {path_in_lock(setup.project.path, one) for each in declared for one in agent_skills(each.skills)}
        locked = tuple(one for one in folders if not isinstance(one, UsageError))
        write_lock(path, merged(old, new.model_copy(update={"agent_skills": locked}), declared, places))
        return Installed(path, (*steps, *map(_step, folders)))


def _step(folder: LockedFolder | UsageError) -> InstallStep:
    from perstack.engine.diagnostics.install import InstallStep

    if isinstance(folder, UsageError):
        return InstallStep("agent skills", "failed", problem=folder.note)
    return InstallStep(folder.path, "ready")


def _login_of(setup: HostContext, skill_name: str, expert_key: str | None) -> tuple[SkillFactory, Skill]:
    from perstack.engine.diagnostics.install import login_of

    return login_of(setup.plugins.skills, setup.project.experts, skill_name, expert_key)
