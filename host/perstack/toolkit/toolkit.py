"""The Toolkit: a collection of tool functions that is also the plugin, and the session of one Job."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from dataclasses import replace
from typing import Generic, cast

from pydantic import BaseModel
from typing_extensions import override

from perstack.core.definitions.skills import Effect, PluginSkill, Skill, Subject, ToolSpec
from perstack.core.runs.facts import Question
from perstack.errors import PluginError, SkillError
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession, ToolCall, ToolResult, Toolset
from perstack.system.concurrency import in_daemon_thread
from perstack.toolkit.context import ResourceT, SettingsT, Setup, ToolContext, as_result
from perstack.toolkit.functions import FunctionT, ToolFunction, options_of, read_settings, tool_function


class Lifespan(Generic[ResourceT]):
    """Enters and exits a context manager in one task, because many must be exited in the task that entered them."""

    def __init__(self, manager: AbstractAsyncContextManager[ResourceT], skill_name: str) -> None:
        """Enter nothing yet: the first use of the resource does."""
        self._manager = manager
        self._skill_name = skill_name
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._yielded: list[ResourceT] = []

    async def resource(self) -> ResourceT:
        """Return the yielded resource, entering the manager first. Raises SkillError if that fails or has failed."""
        if self._task is None:
            self._task = asyncio.create_task(self._hold_resource())
        if not self._entered.done():
            await asyncio.wait({self._task, self._entered}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            raise self._error_of(self._task)
        return self._yielded[0]

    async def close(self) -> None:
        """Exit the manager, or cancel entering it. Raises the error of the exit; calls have reported earlier errors."""
        if self._task is None:
            return
        if self._entered.done() and not self._task.done():
            self._ending.set()
            await self._task
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _hold_resource(self) -> None:
        """Enter and exit the context manager, both in this task, which `close` ends."""
        async with self._manager as resource:
            self._yielded.append(resource)
            self._entered.set_result(None)
            await self._ending.wait()

    def _error_of(self, task: asyncio.Task[None]) -> SkillError:
        error = _first_leaf(None if task.cancelled() else task.exception())
        if isinstance(error, SkillError):
            return error
        reason = f"{type(error).__name__}: {error}" if error is not None else "it was cancelled"
        return SkillError(f"skill {self._skill_name!r} could not be opened, or did not stay open: {reason}")


class KitSession(SkillSession, Generic[SettingsT, ResourceT]):
    """An open Toolkit with the settings of one definition, for one Job."""

    def __init__(
        self,
        toolset: Toolset,
        functions: Mapping[str, ToolFunction],
        setup: Setup[SettingsT],
        lifespan: Lifespan[ResourceT] | None,
    ) -> None:
        """`lifespan`: None for a Toolkit without one."""
        self._toolset = toolset
        self._functions = functions
        self._setup = setup
        self._lifespan = lifespan

    @override
    async def tools(self) -> Toolset:
        await self._resource()
        return self._toolset

    @override
    async def call(self, tool_call: ToolCall) -> ToolResult | Question:
        tool = self._functions[tool_call.tool_name]
        is_cancelled = threading.Event()
        is_async = inspect.iscoroutinefunction(tool.function)
        arguments = tool.bind(tool_call.args)
        if tool.context_name is not None:
            setup = self._setup
            arguments[tool.context_name] = ToolContext(
                setup.settings,
                setup.workspace,
                setup.env,
                await self._resource(),
                tool_call if is_async else _thread_safe_call(tool_call, is_cancelled),
                parts=setup.parts,
                is_cancelled=is_cancelled.is_set,
            )
        if is_async:
            value = await cast("Awaitable[object]", tool.function(**arguments))
        else:
            value = await _run_in_thread(tool, arguments, is_cancelled)
        return await as_result(value, tool_call.blobs)

    @override
    async def close(self) -> None:
        if self._lifespan is not None:
            await self._lifespan.close()

    async def _resource(self) -> ResourceT:
        return await self._lifespan.resource() if self._lifespan is not None else cast("ResourceT", None)


# Plain functions run in threads, which cannot be stopped: a cancelled call leaves its thread running, and the function
# may check `is_cancelled`.


async def _run_in_thread(tool: ToolFunction, arguments: Mapping[str, object], is_cancelled: threading.Event) -> object:
    context = copy_context()

    def work() -> object:
        try:
            return context.run(tool.function, **arguments)
        except (StopIteration, SystemExit) as error:  # asyncio passes on neither: one hangs, the other ends the process
            raise SkillError(f"the tool raised {type(error).__name__}: {error}") from error

    try:
        value = await in_daemon_thread(work, f"tool {tool.name}")
    except asyncio.CancelledError:
        is_cancelled.set()
        raise
    return (
        await value if inspect.isawaitable(value) else value
    )  # a decorated async function looks like a plain one, and returns an awaitable


def _thread_safe_call(tool_call: ToolCall, is_cancelled: threading.Event) -> ToolCall:
    """Return the call with progress that any thread may show, until the call is cancelled."""
    loop = asyncio.get_running_loop()

    def show(text: str) -> None:
        if not is_cancelled.is_set():
            loop.call_soon_threadsafe(tool_call.on_progress, text)

    return replace(tool_call, on_progress=show)


def _first_leaf(error: BaseException | None) -> BaseException | None:
    """Return the first error inside nested groups, whose own messages only give a number of errors."""
    while isinstance(error, BaseExceptionGroup):
        exceptions = cast("BaseExceptionGroup[BaseException]", error).exceptions
        error = exceptions[0]
    return error


class Toolkit(SkillFactory, Generic[SettingsT, ResourceT]):
    """Tools from functions, declared in perstack.toml as `type = "pluginSkill"` and `plugin = "NAME"`.

    `settings` is a pydantic model of the definition's `settings`; unknown keys are refused unless its own config allows
    them. `lifespan` opens what the functions share for one Job, such as a connection: it is entered before the tools
    are offered, and exited when the Job ends or stops. The functions see only the environment variables in
    `required_env`, all of which must be set. `instructions` are shown to the model.
    """

    def __init__(
        self,
        name: str,
        *,
        settings: type[SettingsT] | None = None,
        lifespan: Callable[[Setup[SettingsT]], AbstractAsyncContextManager[ResourceT]] | None = None,
        required_env: Sequence[str] = (),
        instructions: str = "",
    ) -> None:
        """Make an empty kit. Add tools with `tool`."""
        self.name = name
        self._settings = cast("type[BaseModel] | None", settings)
        self._lifespan = lifespan
        self._required_env = tuple(required_env)
        self._instructions = instructions
        self._functions: dict[str, ToolFunction] = {}
        self._toolset: Toolset | None = None

    def tool(
        self,
        *,
        effect: Effect = "sideEffect",
        name: str | None = None,
        description: str | None = None,
        polling: bool = False,
        pin: bool = False,
        subject: Subject | None = None,
    ) -> Callable[[FunctionT], FunctionT]:
        """Return a decorator that makes a function a tool of this kit and returns the function unchanged.

        A plain `def` runs in a new thread. If its call is cancelled, the Job does not wait for the thread, and
        `is_cancelled()` of its ToolContext is True.

        The schema comes from the type hints, the descriptions from the docstring (`Args:`, in Google style) or from
        `Annotated[…, Field(description=…)]`.

        `effect` says what a repetition would do: after a crash, calls that are `readOnly` or `idempotent` are run
        again, those with a `sideEffect` are not unless the user decides so. Set `polling` for a tool that is called
        repeatedly until something has happened; for other tools, repeated calls with the same result count as a loop.
        `subject` says which arguments are paths, addresses or commands, so that permission rules read them as such and
        not as plain text. Results of a tool with `pin` are never removed from a context that is nearly full.

        Raises PluginError for a function that cannot be a tool.
        """

        def register(function: FunctionT) -> FunctionT:
            tool = tool_function(
                function,
                name=name,
                description=description,
                effect=effect,
                polling=polling,
                pin=pin,
                subject=subject,
                settings=self._settings,
            )
            if tool.name in self._functions:
                raise PluginError(f"toolkit {self.name} has two tools {tool.name!r}; rename one, or give it a `name`")
            self._functions[tool.name] = tool
            return function

        return register

    def add(self, function: Callable[..., object]) -> None:
        """Make a function a tool, with the options that `perstack.tool` gave it. Raises PluginError as `tool` does."""
        tool_options = options_of(function)
        self.tool(
            effect=tool_options.effect,
            name=tool_options.name,
            description=tool_options.description,
            polling=tool_options.polling,
            pin=tool_options.pin,
            subject=tool_options.subject,
        )(function)

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of its tools, in the order in which they were added."""
        return tuple(self._functions)

    @hookimpl
    def perstack_skills(self) -> Sequence[SkillFactory]:
        """Return this kit: the hook, for a module or an entry point."""
        return [self]

    @override
    def handles(self, definition: Skill) -> bool:
        return isinstance(definition, PluginSkill) and definition.plugin == self.name

    @override
    def known_tools(self, definition: Skill) -> tuple[ToolSpec, ...]:
        return self._tools().specs

    @override
    def check(self, definition: Skill) -> None:
        self._settings_of(definition)

    def _settings_of(self, definition: Skill) -> SettingsT:
        declared = definition.settings if isinstance(definition, PluginSkill) else {}
        return cast("SettingsT", read_settings(self._settings, declared, definition.name))

    async def open(self, definition: Skill, context: SkillContext) -> SkillSession:
        """Validate settings, environment and schemas. Raises SkillError with the skill and what to change."""
        settings = self._settings_of(definition)
        variables = self._variables(context.env, definition.name)
        setup = Setup(settings, context.workspace, variables, parts=context.parts)
        lifespan = None if self._lifespan is None else Lifespan(self._lifespan(setup), definition.name)
        return KitSession(self._tools(), self._functions, setup, lifespan)

    def _variables(self, env: Mapping[str, str], skill_name: str) -> Mapping[str, str]:
        missing = [name for name in self._required_env if not env.get(name)]
        if missing:
            names = " and ".join(missing)
            raise SkillError(f"skill {skill_name!r} needs {names}: set it in the environment or in a .env file")
        return {name: env[name] for name in self._required_env}

    def _tools(self) -> Toolset:
        """Return the toolset, built when first needed: a schema takes too long for an import."""
        if self._toolset is None:
            self._toolset = Toolset(tuple(function.spec() for function in self._functions.values()), self._instructions)
        return self._toolset
