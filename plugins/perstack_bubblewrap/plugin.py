"""Registration of the plugin with the host."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from typing_extensions import override

from perstack.core.definitions.sandbox import SandboxPolicy, is_below
from perstack.errors import UsageError
from perstack.ports.hooks import hookimpl
from perstack.ports.runtime import Runtime, RuntimeFactory, Surroundings

PLUGIN_API = 1

_JOURNAL = "-journal"  # suffix of SQLite's rollback journal


class BubblewrapFactory(RuntimeFactory):
    """Factory for `runtime = "bubblewrap"`."""

    name = "bubblewrap"

    async def check(self, policy: SandboxPolicy, surroundings: Surroundings) -> Sequence[str]:
        """Return warnings. Raises UsageError without a usable bwrap, or for a workspace that exposes too much."""
        from perstack.support.sandbox_paths import check_place, check_places
        from perstack_bubblewrap.limits import unenforced_limits
        from perstack_bubblewrap.machine import check_bwrap, find_bwrap, seccomp
        from perstack_bubblewrap.network import wrong_ports
        from perstack_bubblewrap.proxy import check_library

        bwrap = find_bwrap(surroundings.env)
        seccomp()
        await check_bwrap(bwrap)
        check_place("the workspace", str(surroundings.workspace), surroundings, writable=True)
        check_places(policy, surroundings)
        _check_database(policy, surroundings)
        if policy.network:
            check_library()
        ports = wrong_ports(policy.network)
        return (*unenforced_limits(policy), *((ports,) if ports else ()))

    @override
    def limits(self) -> Mapping[str, str]:
        from perstack_bubblewrap.limits import enforcement

        return enforcement()

    @override
    async def prepare(self, policy: SandboxPolicy, surroundings: Surroundings) -> Runtime:
        from perstack_bubblewrap.limits import cgroup_of
        from perstack_bubblewrap.machine import find_bwrap
        from perstack_bubblewrap.runtime import BubblewrapRuntime

        await self.check(policy, surroundings)
        return BubblewrapRuntime(
            find_bwrap(surroundings.env), policy, surroundings, cgroup_of(policy, surroundings.job_id)
        )


def _check_database(policy: SandboxPolicy, surroundings: Surroundings) -> None:
    """Raise UsageError for an SQLite database in a directory that programs may change.

    SQLite creates files next to it and trusts their content. A file that does not exist cannot be hidden, so a program
    that creates `state.db-journal` could rewrite the database.
    """
    roots = [
        name for path in (str(surroundings.workspace), *policy.writable) for name in (path, os.path.realpath(path))
    ]
    hidden = {name for path in surroundings.hidden for name in (os.path.normpath(path), os.path.realpath(path))}
    for name in sorted(hidden):
        if name.endswith(_JOURNAL) and is_below(name, roots) and not is_below(name, hidden - {name}):
            raise UsageError(
                f"the database {name.removesuffix(_JOURNAL)} is in a folder that programs in a sandbox may change, and"
                " SQLite's files next to it cannot be kept from them: name another place in `storage`, such as"
                " sqlite:perstack/state.db"
            )


@hookimpl
def perstack_runtimes() -> Sequence[RuntimeFactory]:
    return [BubblewrapFactory()]
