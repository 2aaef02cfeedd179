"""Resource limits for all programs of a Job together, through cgroups.

Both versions are supported: one directory for everything (v2), or one per controller (v1). A Job's group has a subgroup
per program, which shows which program exceeded a limit.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal

from perstack.dataclass import dataclass
from perstack.system.process_groups import process_start_time

Controller = Literal["memory", "pids", "cpu"]

_PERIOD_US = 100_000  # microseconds of the period for which CPU time is limited
_MIN_QUOTA_US = 1_000
_PREFIX = "perstack-"
_POLL_INTERVAL_S = 0.02
_REMOVAL_TIMEOUT_S = 2.0  # seconds to wait for the last processes of a group to end


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The limits of a Job. None means no limit."""

    memory: int | None = None  # bytes of all programs together
    processes: int | None = None
    cpu: float | None = None  # number of processors

    @property
    def controllers(self) -> tuple[Controller, ...]:
        """The controllers that these limits need."""
        limits: tuple[tuple[Controller, float | None], ...] = (
            ("memory", self.memory),
            ("pids", self.processes),
            ("cpu", self.cpu),
        )
        return tuple(name for name, limit in limits if limit is not None)


@dataclass(frozen=True, slots=True)
class CgroupParent:
    """A directory of this process's own cgroup in which groups can be created."""

    folder: Path
    controllers: tuple[str, ...]
    is_v2: bool  # True for cgroups v2


@cache
def cgroup_parents() -> tuple[CgroupParent, ...]:
    """Return the directories in which groups can be created on this machine, verified by creating one."""
    own_groups = dict(_groups_of_this_process())
    parents: list[CgroupParent] = []
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, mount, kind, options = line.split(" ")[:4]
            if kind == "cgroup2" and "" in own_groups:
                parents += _v2_parent(Path(mount), own_groups[""])
            elif kind == "cgroup":
                names = tuple(name for name in options.split(",") if name in ("memory", "pids", "cpu"))
                if names and names[0] in own_groups:
                    parents += _v1_parent(Path(mount), own_groups[names[0]], names)
    return tuple(parents)


def available_controllers() -> frozenset[str]:
    return frozenset(name for place in cgroup_parents() for name in place.controllers)


class JobCgroup:
    """The cgroup of a Job, with its limits."""

    def __init__(self, job_limits: JobLimits, name: str) -> None:
        """Create the group; first remove groups left by killed processes. Raises OSError if that fails."""
        self._limits = job_limits
        self._parts: list[tuple[CgroupParent, Path, tuple[str, ...]]] = []
        self._read_count = 0
        missing = set(job_limits.controllers)
        for parent in cgroup_parents():
            controllers = tuple(controller for controller in parent.controllers if controller in missing)
            if controllers:
                _remove_stale_groups(parent.folder)
                folder = parent.folder / f"{_PREFIX}{os.getpid()}-{process_start_time(os.getpid())}-{name}"
                folder.mkdir()
                self._parts.append((parent, folder, controllers))
                missing -= set(controllers)
                self._write_limits(parent, folder, controllers)

    def add_program(self) -> ProgramCgroup:
        """Create the subgroup of one more program."""
        self._read_count += 1
        parts: list[tuple[CgroupParent, Path]] = []
        for parent, folder, controllers in self._parts:
            if parent.is_v2:
                (folder / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in controllers))
            subgroup = folder / str(self._read_count)
            subgroup.mkdir()
            parts.append((parent, subgroup))
            if parent.is_v2 and "memory" in controllers:
                (subgroup / "memory.oom.group").write_text("1")
        return ProgramCgroup(tuple(parts))

    def remove(self) -> None:
        """Remove the group once no program is left. A non-empty group stays, for the next process to remove."""
        for _, folder, _ in self._parts:
            _remove_group(folder)

    def _write_limits(self, parent: CgroupParent, folder: Path, controllers: Sequence[str]) -> None:
        """Write the limits of these controllers into a new group."""
        job_limits = self._limits
        if job_limits.memory is not None and "memory" in controllers:
            if parent.is_v2:
                (folder / "memory.max").write_text(str(job_limits.memory))
                with suppress(OSError):
                    (folder / "memory.swap.max").write_text("0")
            else:
                (folder / "memory.limit_in_bytes").write_text(str(job_limits.memory))
                with suppress(OSError):
                    (folder / "memory.memsw.limit_in_bytes").write_text(str(job_limits.memory))
        if job_limits.processes is not None and "pids" in controllers:
            (folder / "pids.max").write_text(str(job_limits.processes))
        if job_limits.cpu is not None and "cpu" in controllers:
            quota = max(_MIN_QUOTA_US, round(job_limits.cpu * _PERIOD_US))
            if parent.is_v2:
                (folder / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
            else:
                (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (folder / "cpu.cfs_quota_us").write_text(str(quota))


@dataclass(frozen=True, slots=True)
class ProgramCgroup:
    """The subgroup of one program."""

    parts: tuple[tuple[CgroupParent, Path], ...]

    @property
    def procs_files(self) -> tuple[str, ...]:
        """Files into which a process writes 0 to join the group."""
        return tuple(str(folder / "cgroup.procs") for _, folder in self.parts)

    def exceeded_controller(self) -> Controller | None:
        """Return the controller whose limit was exceeded; None without one."""
        for parent, folder in self.parts:
            if _read_count(folder / ("memory.events" if parent.is_v2 else "memory.oom_control"), "oom_kill"):
                return "memory"
            if _read_count(folder / "pids.events", "max"):
                return "pids"
        return None

    async def remove(self) -> None:
        """Remove the group after its program has ended, waiting for the last processes for _REMOVAL_TIMEOUT_S."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _REMOVAL_TIMEOUT_S
        remaining = [folder for _, folder in self.parts]
        while (remaining := [folder for folder in remaining if not _remove_group(folder)]) and loop.time() < deadline:  # noqa: ASYNC110 - the kernel has no event for this
            await asyncio.sleep(_POLL_INTERVAL_S)


def _groups_of_this_process() -> Iterator[tuple[str, str]]:
    """Yield controller names with this process's group; the name is empty for v2."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            for name in names.split(","):
                yield name, path


def _v2_parent(mount: Path, own_path: str) -> Iterator[CgroupParent]:
    folder = mount / own_path.lstrip("/")
    while folder.is_relative_to(mount):
        with suppress(OSError):
            names = (folder / "cgroup.subtree_control").read_text().split()
            useful = tuple(name for name in names if name in ("memory", "pids", "cpu"))
            if useful and _can_create(folder):
                yield CgroupParent(folder, useful, is_v2=True)
                return
        folder = folder.parent


def _v1_parent(mount: Path, own_path: str, names: tuple[str, ...]) -> Iterator[CgroupParent]:
    folder = mount / own_path.lstrip("/")
    if _can_create(folder):
        yield CgroupParent(folder, names, is_v2=False)


def _can_create(folder: Path) -> bool:
    test_group = folder / f"{_PREFIX}{os.getpid()}-{process_start_time(os.getpid())}-trial"
    try:
        test_group.mkdir()
        can_join = os.access(test_group / "cgroup.procs", os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)
        test_group.rmdir()
    except OSError:
        return False
    return can_join


def _remove_stale_groups(folder: Path) -> None:
    for group in folder.glob(f"{_PREFIX}*"):
        _, pid, start, *_ = (*group.name.split("-"), "", "")
        if pid.isdigit() and process_start_time(int(pid)) != start:
            for subgroup in group.iterdir():
                if subgroup.is_dir():
                    _remove_group(subgroup)
            _remove_group(group)


def _remove_group(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _read_count(file: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0
