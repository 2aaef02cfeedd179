"""The tools in the form that a model sees.

Names and arguments are those of the original Perstack's base skill. Every word here costs tokens in every request, so
descriptions contain only what a model cannot guess; results are compact JSON for the same reason. Arguments have been
validated against the schema.
"""

from __future__ import annotations

import json

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.definitions.exec_grant import EXEC_SUBJECT
from perstack.core.definitions.skills import BASE_SKILL, Effect, Subject, ToolKind, ToolSpec
from perstack.errors import SkillError
from perstack.ports.skill import ToolResult

_TEXT: JsonObject = {"type": "string"}
_FLAG: JsonObject = {"type": "boolean"}
_PATH: JsonObject = {"type": "string", "description": "Relative to the workspace"}
_READS_PATH = Subject(paths=("path",), reads=("path",))
_WRITES_PATH = Subject(paths=("path",), writes=("path",))
_CHANGES_PATH = Subject(paths=("path",), reads=("path",), writes=("path",))


def _number_schema(description: str, minimum: int = 0) -> JsonObject:
    return {"type": "integer", "minimum": minimum, "description": description}


def _list_schema(kind: str, description: str) -> JsonObject:
    return {"type": "array", "items": {"type": kind}, "description": description}


def _tool_spec(
    name: str,
    effect: Effect,
    description: str,
    required: dict[str, JsonObject] | None = None,
    optional: dict[str, JsonObject] | None = None,
    kind: ToolKind = "tool",
    subject: Subject | None = None,
    *,
    polling: bool = False,
) -> ToolSpec:
    required_properties = required or {}
    properties: dict[str, JsonValue] = {**required_properties, **(optional or {})}
    schema: JsonObject = {"type": "object", "properties": properties}
    if required_properties:
        schema["required"] = list(required_properties)
    return ToolSpec(
        name=name,
        description=description,
        input_schema=schema,
        skill_name=BASE_SKILL,
        kind=kind,
        effect=effect,
        subject=subject,
        polling=polling,
    )


_CONTROL = (
    _tool_spec(
        "attemptCompletion",
        "readOnly",
        "Finish the task. Unfinished todos are returned instead, and the work continues.",
        optional={"result": {"type": "string", "description": "What was done or found; the answer to the query"}},
        kind="attemptCompletion",
    ),
    _tool_spec(
        "todo",
        "readOnly",
        "Keep a todo list: adds titles, marks ids as completed, returns the whole list.",
        optional={
            "newTodos": _list_schema("string", "Titles to add"),
            "completedTodos": _list_schema("number", "Ids that are done"),
        },
        kind="todo",
    ),
    _tool_spec("clearTodo", "readOnly", "Empty the todo list.", kind="clearTodo"),
    _tool_spec(
        "think",
        "readOnly",
        "Write down a step of reasoning. Has no other effect.",
        {"thought": _TEXT},
        subject=Subject(is_nothing=True),
    ),
    _tool_spec("healthCheck", "readOnly", "Whether the runtime is well: workspace, uptime, memory.", polling=True),
)

_EXEC = (
    _tool_spec(
        "exec",
        "sideEffect",
        "Run a program, without a shell: for pipes use command `sh`, args [`-c`, …]. Its stdin is empty, and what it"
        " started in the background ends with it. Long output is shortened; the rest can be read by readTextFile.",
        {"command": _TEXT},
        {
            "args": _list_schema("string", "One element for each argument"),
            "cwd": {"type": "string", "description": "Relative to the workspace, which is the default"},
            "env": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "Variables besides PATH, HOME and the like",
            },
            "timeout": {**_number_schema("Milliseconds", 1), "default": 60_000},
            "stdout": {"type": "boolean", "description": "Capture it (default true)"},
            "stderr": {"type": "boolean", "description": "Capture it (default true)"},
        },
        subject=EXEC_SUBJECT,
    ),
)

_READING = (
    _tool_spec(
        "readTextFile",
        "readOnly",
        "Read UTF-8 text, all of it or the lines from `from` up to, not including, `to`.",
        {"path": {"type": "string", "description": "Relative to the workspace, or blob:… from a result"}},
        {"from": _number_schema("First line, counted from 0"), "to": _number_schema("Line to stop before")},
        subject=_READS_PATH,
    ),
    _tool_spec(
        "readImageFile",
        "readOnly",
        "See an image: PNG, JPEG, GIF or WebP, up to 15 MB.",
        {"path": _PATH},
        subject=_READS_PATH,
    ),
    _tool_spec("readPdfFile", "readOnly", "See a PDF, up to 30 MB.", {"path": _PATH}, subject=_READS_PATH),
    _tool_spec(
        "getFileInfo",
        "readOnly",
        "Type, size, times and permissions; `exists` is false if not.",
        {"path": _PATH},
        subject=_READS_PATH,
    ),
    _tool_spec(
        "listDirectory",
        "readOnly",
        "What is in a directory: directories first, each by name. Not recursive.",
        {"path": {"type": "string", "description": "Relative to the workspace; `.` is the workspace"}},
        subject=_READS_PATH,
    ),
)

_WRITING = (
    _tool_spec(
        "writeTextFile",
        "idempotent",
        "Write a whole text file, replacing what was there and making missing directories.",
        {"path": _PATH, "text": _TEXT},
        subject=_WRITES_PATH,
    ),
    _tool_spec(
        "appendTextFile",
        "sideEffect",
        "Add to the end of an existing text file, exactly as given: begin with a newline if the file does not end in"
        " one.",
        {"path": _PATH, "text": _TEXT},
        subject=_WRITES_PATH,
    ),
    _tool_spec(
        "editTextFile",
        "sideEffect",
        "Replace a piece of a text file. `oldText` must occur exactly once: give enough of its surroundings. Line"
        " endings of the file are kept.",
        {"path": _PATH, "oldText": _TEXT, "newText": _TEXT},
        subject=_CHANGES_PATH,
    ),
    _tool_spec(
        "moveFile",
        "sideEffect",
        "Move or rename a file or directory, making missing directories. Never overwrites.",
        {"source": _PATH, "destination": _PATH},
        subject=Subject(paths=("source", "destination"), reads=("source",), writes=("source", "destination")),
    ),
    _tool_spec(
        "deleteFile", "sideEffect", "Delete a file, or a symbolic link itself.", {"path": _PATH}, subject=_WRITES_PATH
    ),
    _tool_spec(
        "createDirectory", "idempotent", "Make a directory, with its parents.", {"path": _PATH}, subject=_WRITES_PATH
    ),
    _tool_spec(
        "deleteDirectory",
        "sideEffect",
        "Delete a directory; one that is not empty only with `recursive`.",
        {"path": _PATH},
        {"recursive": _FLAG},
        subject=_WRITES_PATH,
    ),
)

SPECS: tuple[ToolSpec, ...] = (*_CONTROL, *_EXEC, *_READING, *_WRITING)
"""All tools of the skill, in the order in which they are offered."""


compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # encode a value as JSON without spaces


def answer(value: JsonObject, *, is_error: bool = False) -> ToolResult:
    """Return a result that is one JSON object."""
    return ToolResult.text(compact(value), is_error=is_error)


def text(args: JsonObject, name: str) -> str:
    """Return a string argument; empty if it is missing."""
    value = args.get(name, "")
    return value if isinstance(value, str) else ""


def utf8(args: JsonObject, name: str) -> bytes:
    """Return a string argument as UTF-8. Raises SkillError for invalid Unicode."""
    try:
        return text(args, name).encode()
    except UnicodeEncodeError as error:
        raise SkillError(f"{name} has a lone surrogate at character {error.start}; send valid Unicode") from error


def integer(args: JsonObject, name: str) -> int | None:
    """Return an integer argument, even if it is written 3.0; None if it is missing."""
    value = args.get(name)
    return int(value) if isinstance(value, int | float) else None


def boolean(args: JsonObject, name: str, default: bool) -> bool:
    """Return a boolean argument, or the default."""
    value = args.get(name)
    return value if isinstance(value, bool) else default


def strings(args: JsonObject, name: str) -> list[str]:
    """Return the strings of a list argument."""
    value = args.get(name)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def string_map(args: JsonObject, name: str) -> dict[str, str]:
    """Return the string values of an object argument by name."""
    value = args.get(name)
    return {key: item for key, item in value.items() if isinstance(item, str)} if isinstance(value, dict) else {}
