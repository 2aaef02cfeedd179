"""A collection of functions that are tools, and the plugin that it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar, cast

from pydantic import BaseModel

from perstack.core.definitions import PluginSkill, Skill
from perstack.core.tools import Effect, Subject, ToolSpec
from perstack.errors import PluginError, SkillError
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession, Toolset
from perstack.ports.toolkit.context import ResourceT, SettingsT, Setup
from perstack.ports.toolkit.function import ToolFunction, tool_function
from perstack.ports.toolkit.session import KitSession, Lifespan
from perstack.ports.toolkit.validation import read_settings

FunctionT = TypeVar("FunctionT", bound=Callable[..., Awaitable[object]])


class Toolkit(Generic[SettingsT, ResourceT]):
    """Tools from async functions, declared in perstack.toml as `type = "pluginSkill"` and `plugin = "NAME"`.

    `settings` is a pydantic model of the declaration's `settings`; keys that it does not have are refused, unless its
    own config says otherwise. `lifespan` opens what the functions share for one Job, a connection for example: it is
    entered before the tools are offered, and left when the Job ends or stops. The functions see only those variables
    of the environment that `required_env` names, and all of them have to be set. `instructions` are told to the model.
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
        """Make an async function a tool of this kit; the function itself stays as it is.

        The schema comes from the type hints, the descriptions from the docstring (`Args:`, in Google style) or from
        `Annotated[…, Field(description=…)]`. `effect` says what a repetition would do: calls that are `readOnly` or
        `idempotent` are run again after a crash, those with a `sideEffect` never are by the host alone.
        A tool that is called again and again until something has come about is `polling`: other calls that are
        repeated with the same result are taken for a loop. `subject` says which arguments are paths, addresses or
        commands, so that permission rules read them as such, and not as texts. Results of one with `pin` are never left
        out of a context that is nearly full.

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

    @hookimpl
    def perstack_skills(self) -> Sequence[SkillFactory]:
        """This kit: the hook, for a module or an entry point."""
        return [self]

    def handles(self, definition: Skill) -> bool:
        """Whether the declaration names this kit."""
        return isinstance(definition, PluginSkill) and definition.plugin == self.name

    def known_tools(self, definition: Skill) -> tuple[ToolSpec, ...]:
        """Those of its functions."""
        return self._tools().specs

    async def open(self, definition: Skill, context: SkillContext) -> SkillSession:
        """Check settings, environment and schemas. Raises SkillError that names the skill and what to change."""
        declared = definition.settings if isinstance(definition, PluginSkill) else {}
        settings = cast("SettingsT", read_settings(self._settings, declared, definition.name))
        variables = self._variables(context.env, definition.name)
        setup = Setup(settings, context.workspace, variables, tasks=context.tasks)
        lifespan = None if self._lifespan is None else Lifespan(self._lifespan(setup), definition.name)
        return KitSession(self._tools(), self._functions, setup, lifespan)

    def _variables(self, env: Mapping[str, str], skill_name: str) -> Mapping[str, str]:
        missing = [name for name in self._required_env if not env.get(name)]
        if missing:
            names = " and ".join(missing)
            raise SkillError(f"skill {skill_name!r} needs {names}: set it in the environment or in a .env file")
        return {name: env[name] for name in self._required_env}

    def _tools(self) -> Toolset:
        """Made when the kit is first opened: a schema costs more than an import may."""
        if self._toolset is None:
            self._toolset = Toolset(tuple(one.spec() for one in self._functions.values()), self._instructions)
        return self._toolset
