"""Prepare the runtimes in which programs start: each sandbox policy once, when its first program may start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.sandbox import SandboxPolicy, is_below
from perstack.core.definitions.skills import agent_skills
from perstack.dataclass import dataclass
from perstack.engine.plugins.registry import Plugins
from perstack.errors import UsageError
from perstack.ports.runtime import LOCAL_RUNTIME, Runtime, Surroundings
from perstack.ports.skill import SkillContext
from perstack.support.sandbox_paths import check_places


@dataclass(frozen=True, slots=True)
class UnpackedSkill:
    """An Agent Skill that was stored with a Job, unpacked on this machine."""

    path: str  # its original path, which Experts name
    folder: Path
    is_in_workspace: bool  # True if it was below the workspace, which all programs may read


def make_skills_readable(policy: SandboxPolicy | None, expert: Expert, workspace: str) -> SandboxPolicy | None:
    """Return a policy under which programs may also read the Expert's skills, so that scripts in them can run."""
    if policy is None:
        return None
    readable_paths = (*policy.writable, *policy.readable, workspace)
    unreadable_paths = tuple(
        skill.path for skill in agent_skills(expert.skills) if not is_below(skill.path, readable_paths)
    )
    return policy.model_copy(update={"readable": (*policy.readable, *unreadable_paths)}) if unreadable_paths else policy


def relocate_policy(policy: SandboxPolicy | None, unpacked_skills: Iterable[UnpackedSkill]) -> SandboxPolicy | None:
    """Return the policy with the local folders of unpacked skills in place of their original, readable paths."""
    skills = tuple(unpacked_skills)
    if policy is None or not skills:
        return policy
    allowed_paths, old_paths = (*policy.writable, *policy.readable), {skill.path for skill in skills}
    local_folders = tuple(
        str(skill.folder) for skill in skills if skill.is_in_workspace or is_below(skill.path, allowed_paths)
    )
    readable = (*(path for path in policy.readable if path not in old_paths), *local_folders)
    return policy.model_copy(update={"readable": tuple(dict.fromkeys(readable))})


async def check_policies(
    plugins: Plugins, policies: Iterable[SandboxPolicy | None], surroundings: Callable[[], Surroundings]
) -> None:
    """Raise UsageError, with the remedy, if one of the policies cannot be enforced on this machine."""
    for policy in {policy.to_json(): policy for policy in policies if policy is not None}.values():
        check_places(policy, surroundings())
        unenforced = await plugins.runtime(policy.runtime).check(policy, surroundings())
        if unenforced:
            raise UsageError(
                f"the runtime {policy.runtime} cannot enforce what [sandbox] says: {'; '.join(unenforced)}"
            )


class Runtimes:
    """The prepared runtimes of one Job. Call `close` after all its programs have ended."""

    def __init__(
        self, plugins: Plugins, surroundings: Surroundings, unpacked_skills: tuple[UnpackedSkill, ...] = ()
    ) -> None:
        """Prepare nothing yet. `unpacked_skills`: Agent Skills that are not at the paths that the policies name."""
        self._unpacked_skills = unpacked_skills
        self._plugins = plugins
        self._surroundings = surroundings
        self._mutex = asyncio.Lock()
        self._prepared: dict[bytes, Runtime] = {}

    async def get(self, policy: SandboxPolicy | None) -> Runtime:
        """Return the runtime of a policy, prepared once. Raises UsageError for an unknown runtime, and SkillError."""
        policy = relocate_policy(policy, self._unpacked_skills)
        if policy is None:
            return LOCAL_RUNTIME
        key = policy.to_json()
        async with self._mutex:
            if key not in self._prepared:
                factory = self._plugins.runtime(policy.runtime)
                self._prepared[key] = await factory.prepare(policy, self._surroundings)
            return self._prepared[key]

    async def skill_context(self, context: SkillContext, policy: SandboxPolicy | None) -> SkillContext:
        """Return the context for opening a skill under a policy. Raises the errors of `get`."""
        policy = relocate_policy(policy, self._unpacked_skills)
        if policy is None:
            return context
        return replace(
            context,
            runtime=await self.get(policy),
            variables=policy.env,
            writable=policy.writable,
            readable=policy.readable,
        )

    async def close(self) -> None:
        prepared, self._prepared = list(self._prepared.values()), {}
        for runtime in prepared:
            await runtime.close()
