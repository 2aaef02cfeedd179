"""Prepare the runtimes in which programs start: each sandbox policy once, when its first program may start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.engine.plugins.agent_skills import UnpackedSkill, relocate_policy
from perstack.engine.plugins.registry import Plugins
from perstack.errors import UsageError
from perstack.ports.runtime import LOCAL_RUNTIME, Runtime, Surroundings
from perstack.ports.skill import SkillContext
from perstack.support.sandbox_paths import check_places


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

    def __init__(self, plugins: Plugins, surroundings: Surroundings, laid_out: tuple[UnpackedSkill, ...] = ()) -> None:
        """Create without preparing anything; `laid_out` are Agent Skills that are not at the paths in the policies."""
        self._laid_out = laid_out
        self._plugins = plugins
        self._surroundings = surroundings
        self._turn = asyncio.Lock()
        self._prepared: dict[bytes, Runtime] = {}

    async def of(self, policy: SandboxPolicy | None) -> Runtime:
        """Return the runtime of a policy. Raises UsageError if there is no runtime of that name, and SkillError."""
        policy = relocate_policy(policy, self._laid_out)
        if policy is None:
            return LOCAL_RUNTIME
        key = policy.to_json()
        async with self._turn:
            if key not in self._prepared:
                factory = self._plugins.runtime(policy.runtime)
                self._prepared[key] = await factory.prepare(policy, self._surroundings)
            return self._prepared[key]

    async def context(self, context: SkillContext, policy: SandboxPolicy | None) -> SkillContext:
        """Return the context with which a skill is opened under a policy. Raises the errors of `of`."""
        policy = relocate_policy(policy, self._laid_out)
        if policy is None:
            return context
        return replace(
            context,
            runtime=await self.of(policy),
            variables=policy.env,
            writable=policy.writable,
            readable=policy.readable,
        )

    async def close(self) -> None:
        prepared, self._prepared = list(self._prepared.values()), {}
        for runtime in prepared:
            await runtime.close()
