"""The groups of Jobs at work: Runs of a Job whose policies differ count together all the same."""

from __future__ import annotations

from itertools import count
from threading import Lock

from perstack.core.sandbox import SandboxPolicy
from perstack.dataclass import dataclass
from perstack.errors import SkillError
from perstack_bubblewrap.cgroups import Group, Limits
from perstack_bubblewrap.limits import limits_of

_TURN = Lock()
_SHARED: dict[tuple[str, Limits], Shared] = {}
_NUMBERS = count(1)


@dataclass(slots=True)
class Shared:
    """A group, and how many policies use it."""

    key: tuple[str, Limits]
    group: Group
    users: int = 0

    def leave(self) -> None:
        """The last one removes it."""
        with _TURN:
            self.users -= 1
            if self.users == 0:
                _SHARED.pop(self.key, None)
                self.group.remove()


def group_of(policy: SandboxPolicy, job_id: str) -> Shared | None:
    """The group for a policy of a Job, to be left; None if the kernel has nothing to count. Raises SkillError."""
    limits = limits_of(policy)
    if not limits.controllers:
        return None
    with _TURN:
        key = (job_id or f"none-{next(_NUMBERS)}", limits)
        shared = _SHARED.get(key)
        if shared is None:
            try:
                shared = _SHARED[key] = Shared(key, Group(limits, f"{next(_NUMBERS)}"))
            except OSError as error:
                raise SkillError(f"no cgroup can be made for the limits of [sandbox]: {error}") from error
        shared.users += 1
        return shared
