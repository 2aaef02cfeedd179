"""Runtime port implemented with bubblewrap: each program runs in a separate sandbox.

A sandbox is computed again for every program. `file_view` scans the workspace for files that must be hidden or
read-only, `bwrap_arguments` turns the result into a command line, `seccomp` has the system call filter, `machine` finds
bwrap and the system files. `limits` and `cgroups` enforce memory, processes and CPU time. A program with allowed
network places gets a `proxy`; `bridge.py` runs inside and forwards connections to it.

Mounts protect only files that exist. After each program, files that it created and that git or perstack would execute
are renamed (`set_aside`). Concurrent programs could change the tree during a scan, so mounts use open
handles (`open_mount_sources`), and only a scan without running programs counts as the person's own state.

Change together: a new limit with `limits.enforcement` and `unenforced_limits`; a new protected kind of file
with `ProtectedFileScanner` and `FileViewBuilder._executed_paths`; new options of bwrap with `machine.check_bwrap`.
"""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import Mapping
from contextlib import ExitStack
from threading import Lock

from typing_extensions import override

from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.dataclass import dataclass
from perstack.ports.runtime import NOTHING_TO_SAY, Ending, Program, Runtime, Surroundings
from perstack.system.process_groups import signal_group
from perstack.system.processes import end_with_block, launch
from perstack_bubblewrap.bwrap_arguments import (
    DEFAULT_TMP_BYTES,
    FolderView,
    arguments,
    environment,
    open_mount_sources,
)
from perstack_bubblewrap.cgroups import ProgramCgroup
from perstack_bubblewrap.file_view import FileViewBuilder
from perstack_bubblewrap.limits import (
    PausedProgram,
    SharedCgroup,
    describe_excess,
    join_cgroup_argv,
    paused_until_limited,
    pid_limit,
    rlimit_argv,
)
from perstack_bubblewrap.machine import memory_files, seccomp, system
from perstack_bubblewrap.proxy import Proxy, ProxyPool

_CHECK_INTERVAL_S = 0.1  # seconds between checks whether a program has exceeded a limit


@dataclass(slots=True)
class _Running:
    process: Process | None = None
    cgroup: ProgramCgroup | None = None
    proxy: Proxy | None = None
    refusals_before: int = 0  # number of the proxy's refusals before the program started
    watch_task: asyncio.Task[None] | None = None
    limit: str = ""  # description of the limit that the program exceeded


class BubblewrapRuntime(Runtime):
    """The sandbox of one policy on one workspace.

    A program runs in a PID namespace below bwrap, which leads its process group: processes that leave the group end
    too.
    """

    def __init__(
        self, bwrap: str, policy: SandboxPolicy, surroundings: Surroundings, group: SharedCgroup | None = None
    ) -> None:
        """Run programs in `group`, the Job's cgroup; None if cgroups limit nothing."""
        self._bwrap = bwrap
        self._policy = policy
        self._view_builder = FileViewBuilder(policy, surroundings)
        self._on_notice = surroundings.on_notice
        self._group = group
        self._proxies = ProxyPool(surroundings.on_notice)
        self._view_lock = Lock()
        self._running: dict[Process, _Running] = {}
        self._unchecked: dict[int, _Running] = {}
        """Programs whose created files have not been checked since they ended, by `id`."""
        self._watch_tasks: set[asyncio.Task[None]] = set()

    async def start(self, program: Program) -> Process:
        """Start a program. Raises SkillError if what it would see cannot be determined reliably."""
        running = _Running()
        self._unchecked[id(running)] = running
        try:
            process = running.process = await self._start_in_view(program, running)
        except BaseException:
            del self._unchecked[id(running)]
            raise
        self._running[process] = running
        if running.cgroup is not None or running.proxy is not None or self._policy.time is not None:
            self._start_watching(process, running)
        return process

    async def _start_in_view(self, program: Program, running: _Running) -> Process:
        """Start a program with its proxy, file view and cgroup, which is removed if the start fails."""
        allowed = (*self._policy.network, *program.domains)
        proxy = running.proxy = await self._proxies.proxy_for(allowed) if allowed else None
        view = await asyncio.to_thread(self._build_view, program, () if proxy is None else proxy.readable, running)
        env = {**environment(program.env, view), **({} if proxy is None else proxy.env)}
        cgroup = running.cgroup = None if self._group is None else self._group.group.add_program()
        running.refusals_before = 0 if proxy is None else proxy.refusal_count
        try:
            return await self._launch(program, view, env, running)
        except BaseException:
            if cgroup is not None:
                await cgroup.remove()
            raise

    async def _launch(self, program: Program, view: FolderView, env: Mapping[str, str], running: _Running) -> Process:
        """Start bwrap with the arguments of the view, paused until the process limit is set."""
        policy, proxy, cgroup = self._policy, running.proxy, running.cgroup
        mounts, tmp = () if proxy is None else proxy.mounts, policy.tmp or DEFAULT_TMP_BYTES
        with ExitStack() as stack:
            handles = stack.enter_context(open_mount_sources(view))
            cwd = str(program.cwd)
            args = arguments(system(), view, cwd=cwd, env=env, tmp=tmp, extra_mounts=mounts, handles=handles)
            args_fd, filter_fd = stack.enter_context(memory_files(args, seccomp()))
            paused = stack.enter_context(paused_until_limited(pid_limit(policy, cgroup)))
            bound_argv = () if paused is None else paused.bwrap_argv
            bwrap = (self._bwrap, *bound_argv, "--args", str(args_fd), "--seccomp", str(filter_fd), "--")
            inner = (*rlimit_argv(policy, cgroup), *(() if proxy is None else proxy.argv))
            process = await launch(
                (*join_cgroup_argv(cgroup), *bwrap, *inner, *program.argv),
                cwd="/",
                # Variables of bwrap itself, such as LD_PRELOAD, would take effect outside the sandbox.
                env={},
                stdin=program.stdin,
                stdout=program.stdout,
                stderr=program.stderr,
                records=program.records,
                pass_fds=(args_fd, filter_fd, *handles.values(), *(() if paused is None else paused.inherited)),
            )
            if paused is not None:
                await _set_limit(paused, process)
        return process

    def ending(self, process: Process) -> Ending:
        """Return the exceeded limit, and the refusals to the program or to concurrent programs."""
        running = self._running.pop(process, None)
        if running is None:
            return NOTHING_TO_SAY
        self._check_limit(running)
        refused = () if running.proxy is None else running.proxy.refusals_since(running.refusals_before)
        return Ending(running.limit, (*refused, *self._check_created_files()))

    @override
    async def close(self) -> None:
        if self._watch_tasks:
            await asyncio.wait(self._watch_tasks)
        self._running.clear()
        if self._unchecked:
            await asyncio.to_thread(self._check_created_files)
        await self._proxies.close()
        if self._group is not None:
            self._group.leave()

    def _build_view(self, program: Program, more_readable: tuple[str, ...], running: _Running) -> FolderView:
        is_quiet = all(other is running for other in tuple(self._unchecked.values()))
        if not is_quiet:
            self._check_created_files()
        with self._view_lock:
            return self._view_builder.build((*map(str, program.readable), *more_readable), is_quiet=is_quiet)

    def _check_created_files(self) -> tuple[str, ...]:
        """Rename what ended programs created for git or perstack to execute, and tell the person."""
        with self._view_lock:
            ended_keys = [
                key
                for key, running in tuple(self._unchecked.items())
                if running.process is not None and running.process.returncode is not None
            ]
            lines = self._view_builder.set_aside()
            for key in ended_keys:
                self._unchecked.pop(key, None)
        for line in lines:
            self._on_notice(line)
        return lines

    def _start_watching(self, process: Process, running: _Running) -> None:
        running.watch_task = asyncio.create_task(self._watch_program(process, running))
        self._watch_tasks.add(running.watch_task)
        running.watch_task.add_done_callback(self._watch_tasks.discard)

    async def _watch_program(self, process: Process, running: _Running) -> None:
        """Kill a program that exceeds a limit; remove its cgroup once it has ended."""
        loop = asyncio.get_running_loop()
        time_limit_ms = self._policy.time
        deadline = None if time_limit_ms is None else loop.time() + time_limit_ms / 1000
        exit_task = asyncio.create_task(process.wait())
        while not (await asyncio.wait({exit_task}, timeout=_CHECK_INTERVAL_S))[0]:
            self._check_limit(running)
            if not running.limit and deadline is not None and loop.time() >= deadline:
                running.limit = f"it ran longer than {time_limit_ms} ms"
            if running.limit:
                signal_group(process.pid, signal.SIGKILL)
        self._check_limit(running)
        if running.cgroup is not None:
            await running.cgroup.remove()

    def _check_limit(self, running: _Running) -> None:
        controller = None if running.limit or running.cgroup is None else running.cgroup.exceeded_controller()
        if controller is not None:
            running.limit = describe_excess(controller, self._policy)


async def _set_limit(paused: PausedProgram, process: Process) -> None:
    """Set the limit of a paused program; if that fails, end it before it begins."""
    try:
        await paused.bind()
    except BaseException:
        async with end_with_block(process):
            process.kill()
        raise
