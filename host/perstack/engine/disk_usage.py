"""How much room Jobs, tasks and series of iterations take in a storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from perstack.core.owners import Owner, OwnerKind
from perstack.dataclass import dataclass
from perstack.engine.spaces import space_of
from perstack.errors import NotFound, UsageError
from perstack.ports.storage import JobSize, Measures, Storage


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """What takes how many bytes."""

    owners: tuple[tuple[Owner, JobSize], ...]
    """Jobs, tasks and series, the largest first."""
    storage: int
    """All that the storage takes where it is: with what is of none of them, or of others."""

    @property
    def total(self) -> JobSize:
        """Of all of them together."""
        sizes = [size for _, size in self.owners]
        return JobSize(*(sum(column) for column in zip(*sizes, strict=True))) if sizes else JobSize()


async def disk_usage(storage: Storage, ids: Sequence[str] = ()) -> DiskUsage:
    """Of those of these ids, or of all. Raises NotFound, and UsageError for a storage that cannot measure."""
    found: list[tuple[Owner, JobSize]] = []
    for kind in get_args(OwnerKind):
        space = space_of(storage, kind)
        if not isinstance(space, Measures) or not isinstance(storage, Measures):
            raise UsageError(f"{storage.location}: this storage does not say how much room it takes")
        sizes = await space.sizes(ids or None)
        found += [(Owner(kind, of), size) for of, size in sizes.items()]
    missing = [one for one in ids if one not in {owner.id for owner, _ in found}]
    if missing:
        raise NotFound(f"there is no Job, task or series {', '.join(missing)} in {storage.location}")
    found.sort(key=lambda one: (-one[1].total, one[0]))
    return DiskUsage(tuple(found), await storage.size() if isinstance(storage, Measures) else 0)
