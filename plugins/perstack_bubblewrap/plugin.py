"""Registration with the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perstack.core.sandbox import SandboxPolicy
from perstack.ports.hooks import hookimpl
from perstack.ports.runtime import Runtime, RuntimeFactory, Surroundings


class BubblewrapFactory:
    """`runtime = "bubblewrap"`."""

    name = "bubblewrap"

    async def check(self, policy: SandboxPolicy, around: Surroundings) -> Sequence[str]:
        """Raises UsageError if bwrap is missing or the kernel forbids it, or for a workspace that gives too much."""
        from perstack.ports.places import check_place, check_places
        from perstack_bubblewrap.limits import unenforced
        from perstack_bubblewrap.machine import check, find, seccomp
        from perstack_bubblewrap.network import wrong_ports
        from perstack_bubblewrap.ways import check_library

        bwrap = find(around.env)
        seccomp()
        await check(bwrap)
        check_place("the workspace", str(around.workspace), around, writable=True)
        check_places(policy, around)
        if policy.network:
            check_library()
        ports = wrong_ports(policy.network)
        return (*unenforced(policy), *((ports,) if ports else ()))

    def limits(self) -> Mapping[str, str]:
        """By cgroups, or else by what binds a process."""
        from perstack_bubblewrap.limits import ways

        return ways()

    async def prepare(self, policy: SandboxPolicy, around: Surroundings) -> Runtime:
        """Raises UsageError as `check`, which may have been long ago."""
        from perstack_bubblewrap.groups import group_of
        from perstack_bubblewrap.machine import find
        from perstack_bubblewrap.runtime import BubblewrapRuntime

        await self.check(policy, around)
        return BubblewrapRuntime(find(around.env), policy, around, group_of(policy, around.job_id))


@hookimpl
def perstack_runtimes() -> Sequence[RuntimeFactory]:
    """Runtime `bubblewrap`."""
    return [BubblewrapFactory()]
