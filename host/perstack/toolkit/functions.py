"""Functions as tools: the schema from type hints, descriptions from the docstring, arguments by type."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from inspect import cleandoc
from os.path import relpath
from typing import Annotated, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_json

from perstack.core.base.records import JsonObject
from perstack.core.definitions.skills import (
    LEGAL_TOOL_NAME,
    TOOL_OPTIONS,
    Effect,
    Subject,
    ToolSpec,
    named_arguments,
)
from perstack.dataclass import dataclass
from perstack.errors import PluginError, SkillError
from perstack.toolkit.context import ToolContext

# Docstrings of tools: Google style, with the section `Args:`.

_SECTION = re.compile(r"(?:Args|Arguments|Parameters):\s*")
_PARAMETER = re.compile(r"(\w+)\s*(?:\([^)]*\))?:\s*(.*)")


@dataclass(frozen=True, slots=True)
class ParsedDocstring:
    """A parsed docstring."""

    description: str  # the text without the section of the parameters
    parameters: Mapping[str, str]  # the description of each parameter, on one line


def read_docstring(docstring: str) -> ParsedDocstring:
    """Parse a docstring in Google style. Lines indented deeper than a parameter's first line continue it."""
    description_lines: list[str] = []
    parameter_lines: list[str] = []
    is_in_section = False
    for line in cleandoc(docstring).splitlines():
        if _SECTION.fullmatch(line):
            is_in_section = True
            continue
        is_in_section = is_in_section and (not line or line.startswith(" "))
        (parameter_lines if is_in_section else description_lines).append(line)
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(description_lines)).strip()
    return ParsedDocstring(description, _parameters(cleandoc("\n".join(["", *parameter_lines])).splitlines()))


def _parameters(lines: list[str]) -> dict[str, str]:
    parameters: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        match = _PARAMETER.fullmatch(line)
        if match is not None:
            current = parameters.setdefault(match[1], [])
        current.append(match[2] if match is not None else line.strip())
    return {name: " ".join(part for part in parts if part) for name, parts in parameters.items()}


# Settings in definitions, and their validation errors in one line.


def read_settings(model: type[BaseModel] | None, declared: JsonObject, skill_name: str) -> BaseModel | None:
    """Validate the `settings` of a definition. Raises SkillError with the skill, the key and the expected value."""
    if model is None:
        if declared:
            raise SkillError(f"skill {skill_name!r} has no settings: remove {', '.join(declared)} from perstack.toml")
        return None
    try:
        return model.model_validate_json(to_json(declared), extra=None if "extra" in model.model_config else "forbid")
    except ValidationError as error:
        problem = format_errors(error, "settings.")
        raise SkillError(f"skill {skill_name!r} cannot be used as perstack.toml declares it: {problem}") from error


def format_errors(error: ValidationError, prefix: str = "") -> str:
    """Return pydantic's errors in one line, with their places and without the values, which may be secret."""
    return "; ".join(
        f"{prefix}{'.'.join(map(str, detail['loc']))}: {detail['msg']}" if detail["loc"] else detail["msg"]
        for detail in error.errors(include_url=False, include_input=False)
    )


Function = Callable[..., object]  # async, or plain, which runs in a thread

_NAMED_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class _Schemas(GenerateJsonSchema):
    """Schemas without titles, which would only repeat names."""

    def field_title_should_be_set(self, schema: object) -> bool:
        """Return False: no titles."""
        return False

    def emit_warning(self, kind: str, detail: str) -> None:
        """Suppress warnings: a default that is not JSON is still a default."""


@dataclass(frozen=True)
class ToolFunction:
    """A validated tool function."""

    name: str
    description: str
    effect: Effect
    polling: bool
    pin: bool
    subject: Subject | None
    function: Function
    parameters: tuple[inspect.Parameter, ...]  # the parameters that a model fills, with types and descriptions
    context_name: str | None  # name of the parameter for the ToolContext; None without one

    def spec(self) -> ToolSpec:
        """Return the tool as models see it. Raises SkillError for a type that JSON cannot express."""
        try:
            schema = self._adapter.json_schema(schema_generator=_Schemas)
        except PydanticUserError as error:
            raise SkillError(
                f"{_label(self.function)}: {str(error).splitlines()[0]}; use types that pydantic reads from JSON"
            ) from error
        return ToolSpec(
            name=self.name,
            description=self.description,
            input_schema=schema,
            effect=self.effect,
            polling=self.polling,
            pin=self.pin,
            subject=self.subject,
        )

    def bind(self, args: JsonObject) -> dict[str, object]:
        """Convert arguments to the annotated types. Raises SkillError with a message for the model."""
        try:
            return cast("dict[str, object]", self._adapter.validate_json(to_json(named_arguments(self.subject, args))))
        except ValidationError as error:
            raise SkillError(f"Wrong arguments: {format_errors(error)}") from error

    @cached_property
    def _adapter(self) -> TypeAdapter[object]:
        def arguments(**values: object) -> dict[str, object]:
            return values

        # pydantic reads the schema of a function's arguments from these two. A model's fields would not do: a parameter
        # may be called `schema` or `copy`
        vars(arguments)["__signature__"] = inspect.Signature(self.parameters)
        arguments.__annotations__ = {parameter.name: parameter.annotation for parameter in self.parameters}
        return TypeAdapter[object](cast("type[object]", arguments))


# Options of a function that is a tool without a Toolkit's decorator: in a `file`, or in `Expert(tools=[…])`.

FunctionT = TypeVar("FunctionT", bound=Function)


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """Options of one tool, see `Toolkit.tool`."""

    effect: Effect = "sideEffect"
    name: str | None = None
    description: str | None = None
    polling: bool = False
    pin: bool = False
    subject: Subject | None = None


def tool(
    *,
    effect: Effect = "sideEffect",
    name: str | None = None,
    description: str | None = None,
    polling: bool = False,
    pin: bool = False,
    subject: Subject | None = None,
) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that gives options to a function of a `file`, or of `Expert(tools=[…])`.

    The function itself is returned. A function without options is a tool with a `sideEffect`. The options are those of
    a Toolkit's decorator (docs/plugins.md).
    """
    tool_options = ToolOptions(effect, name, description, polling, pin, subject)

    def mark(function: FunctionT) -> FunctionT:
        setattr(function, TOOL_OPTIONS, tool_options)
        return function

    return mark


def options_of(function: Function) -> ToolOptions:
    """Return the options that `tool` gave to a function."""
    options: object = getattr(function, TOOL_OPTIONS, None)
    return options if isinstance(options, ToolOptions) else ToolOptions()


def tool_function(
    function: Function,
    *,
    name: str | None,
    description: str | None,
    effect: Effect,
    polling: bool,
    pin: bool,
    subject: Subject | None,
    settings: type[object] | None,
) -> ToolFunction:
    """Validate a function when its module is imported. Raises PluginError with what to change."""
    label = _label(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise PluginError(f"{label}: return a list instead of yielding: the model gets one result")
    name = name or function.__name__
    if not LEGAL_TOOL_NAME.fullmatch(name):
        raise PluginError(f"{label}: {name!r} is not a valid name of a tool; use at most 64 of a-z, A-Z, 0-9, _ and -")
    docstring = read_docstring(function.__doc__ or "")
    description = description or docstring.description
    if not description:
        raise PluginError(f"{label}: describe it in a docstring: the model chooses a tool by its description")
    hints = _type_hints(function, label)
    model_parameters: list[inspect.Parameter] = []
    contexts: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        _check_parameter(parameter, label)
        hint = hints[parameter.name]
        if get_origin(hint) is ToolContext or hint is ToolContext:
            _check_context(hint, settings, label)
            contexts.append(parameter.name)
        else:
            model_parameters.append(_describe_parameter(parameter, hint, docstring.parameters.get(parameter.name)))
    if len(contexts) > 1:
        raise PluginError(f"{label}: take one ToolContext, not {len(contexts)}")
    unknown_names = set(docstring.parameters) - {parameter.name for parameter in model_parameters} - set(contexts)
    if unknown_names:
        raise PluginError(
            f"{label}: the docstring describes {', '.join(sorted(unknown_names))}, which is not a parameter"
        )
    missing_names = set(subject.names if subject is not None else ()) - {
        parameter.name for parameter in model_parameters
    }
    if missing_names:
        raise PluginError(f"{label}: its subject names {', '.join(sorted(missing_names))}, which is not a parameter")
    context = contexts[0] if contexts else None
    return ToolFunction(name, description, effect, polling, pin, subject, function, tuple(model_parameters), context)


def _label(function: Function) -> str:
    """Return the function's name and place for messages."""
    code = inspect.unwrap(function).__code__ if inspect.isfunction(function) else None
    name, module = getattr(function, "__qualname__", function), function.__module__
    if code is not None and module == code.co_filename:  # a `file`, whose module has its path as its name
        return f"{shown_path(module)}:{code.co_firstlineno}: tool {name}"
    line = f", line {code.co_firstlineno}" if code is not None else ""
    return f"tool {name} of {module}{line}"


def shown_path(path: str) -> str:
    """Return a path as messages show it: relative to the current folder if it is inside."""
    relative = relpath(path)
    return path if relative.startswith("..") else relative


def _type_hints(function: Function, label: str) -> Mapping[str, object]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise PluginError(
            f"{label}: {error}; define or import what the type hints name above it, outside of functions"
            " and of `if TYPE_CHECKING`"
        ) from error


def _check_parameter(parameter: inspect.Parameter, label: str) -> None:
    if parameter.kind not in _NAMED_KINDS:
        raise PluginError(
            f"{label}: parameter {str(parameter).partition(':')[0]} cannot be passed by name; make it an ordinary one"
        )
    if parameter.annotation is inspect.Parameter.empty:
        raise PluginError(
            f"{label}: parameter {parameter.name} has no type; annotate it, as in `{parameter.name}: str`"
        )


def _check_context(hint: object, settings: type[object] | None, label: str) -> None:
    declared_type = get_args(hint)[:1]
    expected_type = settings or type(None)
    if declared_type and declared_type != (expected_type,):
        names = [getattr(item, "__name__", str(item)) for item in (*declared_type, expected_type)]
        raise PluginError(
            f"{label}: the Toolkit's settings are {names[1]}, so take ToolContext[{names[1]}], not {names[0]}"
        )


def _describe_parameter(parameter: inspect.Parameter, hint: object, description: str | None) -> inspect.Parameter:
    """Return the parameter as keyword-only, with its resolved type and, unless Field has one, its description."""
    metadata = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    has_description = any(isinstance(item, FieldInfo) and item.description for item in (*metadata, parameter.default))
    if description and not has_description:
        hint = Annotated[hint, Field(description=description)]
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hint)
