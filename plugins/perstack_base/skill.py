"""Session of the base skill, which maps each tool to its function, and the directories that it may use."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from typing_extensions import override

from perstack.core.base.records import JsonObject
from perstack.core.definitions.sandbox import is_below
from perstack.core.files.file_names import Parts
from perstack.errors import NotFound, SkillError
from perstack.ports.skill import SkillContext, SkillSession, ToolCall, ToolResult, Toolset
from perstack.support.sandbox_paths import SandboxPath, places
from perstack_base.directories import create_directory, delete_directory, get_file_info, list_directory
from perstack_base.exec import Executor
from perstack_base.files import printable
from perstack_base.reading import IMAGE, PDF, read_blob, read_medium, read_text_file
from perstack_base.tools import SPECS, answer, text
from perstack_base.workspace import PROTECTED_WAYS, OpenWorkspace, WorkspaceRules
from perstack_base.writing import append_text_file, delete_file, edit_text_file, move_file, write_text_file

FileTool = Callable[[OpenWorkspace, JsonObject], JsonObject]
AsyncTool = Callable[[ToolCall], Awaitable[ToolResult]]

_FILE_TOOLS: Mapping[str, FileTool] = {
    "writeTextFile": write_text_file,
    "appendTextFile": append_text_file,
    "editTextFile": edit_text_file,
    "moveFile": move_file,
    "deleteFile": delete_file,
    "getFileInfo": get_file_info,
    "listDirectory": list_directory,
    "createDirectory": create_directory,
    "deleteDirectory": delete_directory,
}

_THREAD_FROM_BYTES = 256 * 1024
"""Minimum size for file operations to run in a thread; for less, a thread costs more than blocking other Runs."""

_TOOLSET = Toolset(SPECS)

_BLOB = re.compile(r"blob:([0-9a-f]{64})")


class BaseSession(SkillSession):
    """Session of `@perstack/base` on one workspace, for one Job."""

    def __init__(self, context: SkillContext, domains: tuple[str, ...] = ()) -> None:
        """Open the workspace. Raises SkillError if it is not a directory, or a link redirects a named path."""
        self._reach = WorkspaceSet(context)
        self._workspace = self._reach.workspace
        self._executor = Executor(self._workspace, context, domains)
        self._began = time.monotonic()
        self._threads: set[asyncio.Future[JsonObject]] = set()
        self._changing = asyncio.Lock()
        """Held while a tool changes files, so that changes are made one at a time."""
        self._async_tools: Mapping[str, AsyncTool] = {
            "exec": self._executor.call,
            "readTextFile": self._read_file_or_blob,
            "readImageFile": lambda call: read_medium(self._workspace.opening(call.opens), call, IMAGE),
            "readPdfFile": lambda call: read_medium(self._workspace.opening(call.opens), call, PDF),
            "think": self._acknowledge_thought,
            "healthCheck": self._report_health,
        }

    @override
    async def tools(self) -> Toolset:
        return _TOOLSET

    @override
    async def call(self, tool_call: ToolCall) -> ToolResult:
        try:
            tool = self._async_tools.get(tool_call.tool_name)
            if tool is not None:
                return await tool(tool_call)
            file_tool = _FILE_TOOLS.get(tool_call.tool_name)
            if file_tool is None:
                raise SkillError(f"{tool_call.tool_name} is not a tool of this skill; use another one")
            return answer(await self._run_file_tool(file_tool, tool_call))
        except SkillError as error:
            return ToolResult.text(str(error), is_error=True)

    @override
    async def close(self) -> None:
        await self._executor.close()
        await asyncio.gather(*self._threads, return_exceptions=True)
        self._reach.close()

    async def _read_file_or_blob(self, tool_call: ToolCall) -> ToolResult:
        name = text(tool_call.args, "path")
        blob = _BLOB.fullmatch(name)
        if blob is None:
            return answer(await self._run_file_tool(read_text_file, tool_call))
        try:
            data = await tool_call.blobs.get(blob[1])
        except NotFound:
            raise SkillError(f"{name} does not exist; copy the name exactly from the earlier result") from None
        if len(data) < _THREAD_FROM_BYTES:
            return answer(read_blob(name, data, tool_call.args))
        return answer(await self._run_in_thread(lambda: read_blob(name, data, tool_call.args)))

    async def _run_file_tool(self, tool: FileTool, tool_call: ToolCall) -> JsonObject:
        workspace, args = self._workspace.opening(tool_call.opens), tool_call.args
        if tool not in (delete_directory, move_file) and self._bytes_to_process(args) < _THREAD_FROM_BYTES:
            return tool(workspace, args)
        if tool is read_text_file:
            return await self._run_in_thread(lambda: tool(workspace, args))
        async with self._changing:
            return await self._run_in_thread(lambda: tool(workspace, args))

    async def _run_in_thread(self, work: Callable[[], JsonObject]) -> JsonObject:
        """Run work in a thread and track it for `close`: after a cancellation the thread still uses the handles."""
        running = asyncio.ensure_future(asyncio.to_thread(work))
        self._threads.add(running)
        running.add_done_callback(self._threads.discard)
        return await asyncio.shield(running)

    def _bytes_to_process(self, args: JsonObject) -> int:
        """Return how many bytes a file tool moves: its text, or the file if that is larger."""
        size = len(text(args, "text"))
        with suppress(SkillError):
            size = max(size, self._workspace.size(text(args, "path")))
        return size

    async def _acknowledge_thought(self, tool_call: ToolCall) -> ToolResult:
        return answer({})

    async def _report_health(self, tool_call: ToolCall) -> ToolResult:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform != "darwin" else 1024**2)
        return answer(
            {
                "status": "ok",
                "workspace": str(self._workspace.root),
                "uptime": f"{time.monotonic() - self._began:.0f}s",
                "memory": {"peak": f"{peak}MB"},
                "pid": os.getpid(),
            }
        )


class WorkspaceSet:
    """Workspace of a Job with its added directories, some of which may be created later. The owner must `close` it."""

    def __init__(self, context: SkillContext) -> None:
        """Open the directories.

        Raises SkillError if the workspace is not a directory, or a link redirects an added directory.
        """
        self._context = context
        self._real = os.path.realpath(context.workspace)
        self._sandbox_paths: tuple[SandboxPath, ...] = ()
        self._added: dict[str, OpenWorkspace] = {}
        if context.writable or context.readable:
            self._sandbox_paths = places(context.workspace, context.writable, context.readable)
        self._rules = WorkspaceRules(
            self._may_change, self._may_remove, self._may_read_protected, self._locate_or_open, self._added_names
        )
        self.workspace = OpenWorkspace(
            context.workspace,
            context.state_dir,
            context.off_limits,
            (*context.protected, *self._protected_paths_in(*(place.real for place in self._sandbox_paths))),
            context.protected_patterns,
            self._rules,
            read_only=context.read_only,
            env=context.env,
        )
        try:
            self._open_sandbox_paths()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.workspace.close()
        for added in self._added.values():
            added.close()

    def _open_sandbox_paths(self) -> None:
        context = self._context
        if not context.writable and not context.readable:
            return
        self._sandbox_paths = places(context.workspace, context.writable, context.readable)
        tops = {place.real for place in self._sandbox_paths if Path(place.real).is_dir()}
        for place in sorted(self._sandbox_paths, key=lambda place: len(place.real)):
            outer = {self._real, *tops} - {place.real}
            if place.real not in self._added and place.real != self._real and not is_below(place.real, outer):
                self._added[place.real] = self._open_directory(place.real)

    def _open_directory(self, real: str) -> OpenWorkspace:
        """Open a directory that [sandbox] names, or the parent of a file."""
        context, path = self._context, Path(real)
        state = () if context.state_dir is None else (context.workspace / context.state_dir,)
        return OpenWorkspace(
            path if path.is_dir() else path.parent,
            None,
            (*state, *context.off_limits),
            (
                *context.protected,
                *self._protected_paths_in(
                    self._real, *(place.real for place in self._sandbox_paths if place.real != real)
                ),
            ),
            context.protected_patterns,
            self._rules,
            is_added=True,
            only="" if path.is_dir() else path.name,
            read_only=context.read_only,
            env=context.env,
        )

    def _protected_paths_in(self, *folders: str) -> Iterator[Path]:
        """Yield the protected paths at the top of these directories, which are protected under other names too."""
        for folder in folders:
            yield from (Path(folder).joinpath(*way) for way in PROTECTED_WAYS)

    def _locate_or_open(self, path: str) -> tuple[OpenWorkspace, Parts] | None:
        """Return the workspace of a path, after opening directories that exist only since the last call."""
        location = self._find_open(path)
        if location is None and len({*self._context.writable, *self._context.readable}) > len(self._sandbox_paths):
            self._open_sandbox_paths()
            location = self._find_open(path)
        return location

    def _find_open(self, path: str) -> tuple[OpenWorkspace, Parts] | None:
        normalized = os.path.normpath(path)
        for name in (normalized, *self._resolve_links(normalized)):
            for workspace in (self.workspace, *self._added.values()):
                parts = workspace.relative_parts(name)
                if parts is not None and (not workspace.only or parts[:1] == (workspace.only,)):
                    return workspace, parts
        return None

    def _resolve_links(self, path: str) -> tuple[str, ...]:
        return tuple(
            place.real + path.removeprefix(place.name)
            for place in self._sandbox_paths
            if place.name != place.real and is_below(path, (place.name,))
        )

    def _may_change(self, path: str) -> bool:
        """Return whether a path may be changed: the innermost named directory decides."""
        containing = [place for place in self._sandbox_paths if is_below(path, (place.real,))]
        deepest = max(containing, key=lambda place: (len(place.real), place.is_writable), default=None)
        if is_below(path, (self._real,)) and (deepest is None or len(deepest.real) <= len(self._real)):
            return True
        return deepest is not None and deepest.is_writable

    def _may_remove(self, path: str) -> bool:
        return not any(
            is_below(needed, (path,)) for needed in (self._real, *(place.real for place in self._sandbox_paths))
        )

    def _may_read_protected(self, path: str) -> bool:
        files = (place.real for place in self._sandbox_paths if not place.is_writable)
        return path in files and Path(path).is_file()

    def _added_names(self) -> str:
        added = ", ".join(sorted(printable(place.name) for place in self._sandbox_paths if place.real in self._added))
        return f", or one in {added}" if added else ""
