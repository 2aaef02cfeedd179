"""A kit that is up, for one Job."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Generic, cast

from perstack.core.questions import Question
from perstack.errors import SkillError
from perstack.ports.skill import ToolCall, ToolResult, Toolset
from perstack.ports.toolkit.context import ResourceT, SettingsT, Setup, ToolContext
from perstack.ports.toolkit.function import ToolFunction
from perstack.ports.toolkit.results import as_result


class Lifespan(Generic[ResourceT]):
    """Enters and leaves a context manager in a task of its own: many may only be left where they were entered."""

    def __init__(self, manager: AbstractAsyncContextManager[ResourceT], skill_name: str) -> None:
        self._manager = manager
        self._skill_name = skill_name
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._yielded: list[ResourceT] = []

    async def resource(self) -> ResourceT:
        """What was yielded; opens it first. Raises SkillError if that fails, or if it has broken since."""
        if self._task is None:
            self._task = asyncio.create_task(self._live())
        if not self._entered.done():
            await asyncio.wait({self._task, self._entered}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            raise self._broken(self._task)
        return self._yielded[0]

    async def close(self) -> None:
        """Leave it, or stop entering it. Raises what leaving raised; what broke before, the calls were told."""
        if self._task is None:
            return
        if self._entered.done() and not self._task.done():
            self._ending.set()
            await self._task
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _live(self) -> None:
        async with self._manager as resource:
            self._yielded.append(resource)
            self._entered.set_result(None)
            await self._ending.wait()

    def _broken(self, task: asyncio.Task[None]) -> SkillError:
        error = _leaf(None if task.cancelled() else task.exception())
        if isinstance(error, SkillError):
            return error
        why = f"{type(error).__name__}: {error}" if error is not None else "it was cancelled"
        return SkillError(f"skill {self._skill_name!r} could not be opened, or did not stay open: {why}")


class KitSession(Generic[SettingsT, ResourceT]):
    """The functions of a kit with the settings of one declaration."""

    def __init__(
        self,
        toolset: Toolset,
        functions: Mapping[str, ToolFunction],
        setup: Setup[SettingsT],
        lifespan: Lifespan[ResourceT] | None,
    ) -> None:
        self._toolset = toolset
        self._functions = functions
        self._setup = setup
        self._lifespan = lifespan

    async def tools(self) -> Toolset:
        """All of them, once the resource is there."""
        await self._resource()
        return self._toolset

    async def call(self, call: ToolCall) -> ToolResult | Question:
        """Call the function; what it raises is for the model to read."""
        tool = self._functions[call.tool_name]
        arguments = tool.bind(call.args)
        if tool.context_name is not None:
            setup = self._setup
            arguments[tool.context_name] = ToolContext(
                setup.settings, setup.workspace, setup.env, await self._resource(), call, tasks=setup.tasks
            )
        return await as_result(await tool.function(**arguments), call.blobs)

    async def close(self) -> None:
        """Leave the lifespan."""
        if self._lifespan is not None:
            await self._lifespan.close()

    async def _resource(self) -> ResourceT:
        return await self._lifespan.resource() if self._lifespan is not None else cast("ResourceT", None)


def _leaf(error: BaseException | None) -> BaseException | None:
    """The first error inside of groups, which only say how many there are."""
    while isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        error = inner[0]
    return error
