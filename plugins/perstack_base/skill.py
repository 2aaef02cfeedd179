"""Session of the base skill, which maps each tool to its function."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from perstack.core.base.records import JsonObject
from perstack.errors import NotFound, SkillError
from perstack.ports.skill import SkillContext, SkillSession, ToolCall, ToolResult, Toolset
from perstack_base.directories import create_directory, delete_directory, get_file_info, list_directory
from perstack_base.exec import Executor
from perstack_base.reading import IMAGE, PDF, read_blob, read_medium, read_text_file
from perstack_base.tool_io import answer, text
from perstack_base.tools import SPECS
from perstack_base.workspace import Workspace
from perstack_base.workspaces import WorkspaceSet
from perstack_base.writing import append_text_file, delete_file, edit_text_file, move_file, write_text_file

FileTool = Callable[[Workspace, JsonObject], JsonObject]
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
"""Bytes from which file operations run in a thread; below, a thread costs more than blocking other Runs briefly."""

_TOOLSET = Toolset(SPECS)

_BLOB = re.compile(r"blob:([0-9a-f]{64})")


class BaseSession(SkillSession):
    """Session of `@perstack/base` on one workspace, for one Job."""

    def __init__(self, context: SkillContext, domains: tuple[str, ...] = ()) -> None:
        """Open the workspace.

        Raises SkillError if it is not a directory, or a link redirects a path that [sandbox] names.
        """
        self._reach = WorkspaceSet(context)
        self._workspace = self._reach.workspace
        self._executor = Executor(self._workspace, context, domains)
        self._began = time.monotonic()
        self._threads: set[asyncio.Future[JsonObject]] = set()
        self._changing = asyncio.Lock()
        """Held during a change in a thread, so that two edits of one large file see each other's result."""
        self._async_tools: Mapping[str, AsyncTool] = {
            "exec": self._executor.call,
            "readTextFile": self._read_text,
            "readImageFile": lambda call: read_medium(self._workspace.opening(call.opens), call, IMAGE),
            "readPdfFile": lambda call: read_medium(self._workspace.opening(call.opens), call, PDF),
            "think": self._think,
            "healthCheck": self._health,
        }

    async def tools(self) -> Toolset:
        """Return all tools, which never change."""
        return _TOOLSET

    async def call(self, call: ToolCall) -> ToolResult:
        """Run a tool. An error becomes a one-line result for the model."""
        try:
            tool = self._async_tools.get(call.tool_name)
            if tool is not None:
                return await tool(call)
            file_tool = _FILE_TOOLS.get(call.tool_name)
            if file_tool is None:
                raise SkillError(f"{call.tool_name} is not a tool that this skill answers; use another one")
            return answer(await self._run_file_tool(file_tool, call))
        except SkillError as error:
            return ToolResult.text(str(error), is_error=True)

    async def close(self) -> None:
        """End all running processes, finish writing, and close the workspace."""
        await self._executor.close()
        await asyncio.gather(*self._threads, return_exceptions=True)
        self._reach.close()

    async def _read_text(self, call: ToolCall) -> ToolResult:
        name = text(call.args, "path")
        blob = _BLOB.fullmatch(name)
        if blob is None:
            return answer(await self._run_file_tool(read_text_file, call))
        try:
            data = await call.blobs.get(blob[1])
        except NotFound:
            raise SkillError(f"{name} is not there; copy the name exactly from the result that has it") from None
        if len(data) < _THREAD_FROM_BYTES:
            return answer(read_blob(name, data, call.args))
        return answer(await self._run_in_thread(lambda: read_blob(name, data, call.args)))

    async def _run_file_tool(self, tool: FileTool, call: ToolCall) -> JsonObject:
        workspace, args = self._workspace.opening(call.opens), call.args
        if tool not in (delete_directory, move_file) and self._weight(args) < _THREAD_FROM_BYTES:
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

    def _weight(self, args: JsonObject) -> int:
        weight = len(text(args, "text"))
        with suppress(SkillError):
            weight = max(weight, self._workspace.size(text(args, "path")))
        return weight

    async def _think(self, call: ToolCall) -> ToolResult:
        return answer({})

    async def _health(self, call: ToolCall) -> ToolResult:
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
