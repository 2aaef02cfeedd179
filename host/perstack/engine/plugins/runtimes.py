"""The runtimes that programs start in: each policy is prepared once, when a program of it first may start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

from perstack.core.sandbox import LOCAL, SandboxPolicy
from perstack.dataclass import dataclass
from perstack.engine.knowledge import LaidOut, relocated
from perstack.engine.plugins import Plugins
from perstack.errors import UsageError
from perstack.ports.places import check_places
from perstack.ports.runtime import LOCAL_RUNTIME, Runtime, Surroundings
from perstack.ports.skill import SkillContext


async def check_policies(
    plugins: Plugins, policies: Iterable[SandboxPolicy | None], around: Callable[[], Surroundings]
) -> None:
    """Raises UsageError, with what to do, if one of them cannot be kept on this machine."""
    for policy in {policy.to_json(): policy for policy in policies if policy is not None}.values():
        check_places(policy, around())
        unenforced = await plugins.runtime(policy.runtime).check(policy, around())
        if unenforced:
            raise UsageError(
                f"the runtime {policy.runtime} cannot enforce what [sandbox] says: {'; '.join(unenforced)}"
            )


class Runtimes:
    """Those of one Job. `close` it when all its programs have ended."""

    def __init__(self, plugins: Plugins, around: Surroundings, laid_out: tuple[LaidOut, ...] = ()) -> None:
        """`laid_out` are Agent Skills that are not where the policies name them."""
        self._laid_out = laid_out
        self._plugins = plugins
        self._around = around
        self._turn = asyncio.Lock()
        self._prepared: dict[bytes, Runtime] = {}

    async def of(self, policy: SandboxPolicy | None) -> Runtime:
        """The runtime of a policy. Raises UsageError if there is none of that name, and SkillError."""
        policy = relocated(policy, self._laid_out)
        if policy is None:
            return LOCAL_RUNTIME
        key = policy.to_json()
        async with self._turn:
            if key not in self._prepared:
                factory = self._plugins.runtime(policy.runtime)
                self._prepared[key] = await factory.prepare(policy, self._around)
            return self._prepared[key]

    async def context(self, context: SkillContext, policy: SandboxPolicy | None) -> SkillContext:
        """What a skill is given under a policy. Raises as `of`."""
        policy = relocated(policy, self._laid_out)
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
        """Remove what was made for them."""
        prepared, self._prepared = list(self._prepared.values()), {}
        for runtime in prepared:
            await runtime.close()


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a program that no tool starts runs: an evaluator, or the command of a task."""

    runtime: Runtime = LOCAL_RUNTIME
    variables: tuple[str, ...] = ()
    """The names of the variables that it is given besides."""
    confines: bool = False
    """Whether it has less than all rights of the host's user."""


NO_SANDBOX = Ground()


@asynccontextmanager
async def prepared(plugins: Plugins, policy: SandboxPolicy | None, around: Surroundings) -> AsyncGenerator[Ground]:
    """Where programs of a policy run while the block does. Raises UsageError if the policy cannot be kept here."""
    if policy is None:
        yield NO_SANDBOX
        return
    await check_policies(plugins, (policy,), lambda: around)
    runtimes = Runtimes(plugins, around)
    try:
        yield Ground(await runtimes.of(policy), policy.env, policy.runtime != LOCAL)
    finally:
        await runtimes.close()
