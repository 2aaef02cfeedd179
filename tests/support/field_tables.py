"""Tables of the fields of records, for pages: name, type, and meaning as the source says it.

The meaning is that of a key or an option, else the docstring below the field, else the comment at it.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import tokenize
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from io import StringIO
from types import NoneType, UnionType
from typing import Annotated, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from perstack.core.definitions.keys import Key
from perstack.core.definitions.options import Option

_SHORT = {"Path": "Path", "JsonValue": "JSON"}


def table_of(record: type) -> str:
    """Return a table of the fields of a record, required ones first, and of its own properties."""
    rows = [
        (name, shown, f"**required**; {about}" if needed else about) for name, shown, about, needed in _fields(record)
    ]
    rows.sort(key=lambda row: not row[2].startswith("**required**"))
    lines = ["| field | type | meaning |", "| --- | --- | --- |"]
    cells = (
        (f"`{name}`", f"`{shown}`".replace("|", "\\|"), about) for name, shown, about in (*rows, *_properties(record))
    )
    return "\n".join((*lines, *(f"| {' | '.join(row)} |" for row in cells)))


def _fields(record: type) -> Iterator[tuple[str, str, str, bool]]:
    others = {field: other for other, field in getattr(record, "argument_names", {}).items()}
    hints = get_type_hints(record, include_extras=True)
    if is_dataclass(record):
        for field in fields(record):
            yield (
                field.name,
                type_text(hints[field.name]),
                _meaning(record, field.name, get_args(hints[field.name])),
                False,
            )
        return
    assert issubclass(record, BaseModel)
    for name, about in record.model_fields.items():
        yield (
            others.get(name, name),
            type_text(about.annotation),
            _meaning(record, name, about.metadata),
            about.is_required(),
        )


def _meaning(record: type, name: str, parts: object) -> str:
    comment = _read_meaning(record, name)
    for part in cast("tuple[object, ...]", parts):
        if isinstance(part, Key):
            return _table_cell(part.text)
        if isinstance(part, Option):
            return _table_cell("; ".join(filter(None, (part.help.rstrip("."), comment))))
    if not comment:
        raise LookupError(f"{record.__name__}.{name}: say what it means, in a comment at it or a docstring below it")
    return _table_cell(comment)


_NAMES = ("True", "False", "None", "Job", "Jobs", "Expert", "Experts", "Run", "Runs")


def _table_cell(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|").rstrip(".")
    is_name = (re.match(r"\w+", text) or [""])[0] in _NAMES
    return text if is_name or not text[1:2].islower() else text[0].lower() + text[1:]


def _read_meaning(record: type, name: str) -> str:
    for owner in record.__mro__:
        if name in vars(owner).get("__annotations__", {}):
            source = textwrap.dedent(inspect.getsource(owner))
            return _read_meaning_in_class(source, name)
    return ""


def _read_meaning_in_class(source: str, name: str) -> str:
    (owner,) = ast.parse(source).body
    assert isinstance(owner, ast.ClassDef)
    comments = {
        at.start[0]: at.string.lstrip("# ")
        for at in tokenize.generate_tokens(StringIO(source).readline)
        if at.type == tokenize.COMMENT
    }
    body = list(_statements(owner.body))
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                return str(after.value.value)
            lines = source.splitlines()
            above = node.lineno - 1
            words = [comments[above]] if above in comments and lines[above - 1].lstrip().startswith("#") else []
            words += [
                comments[line] for line in range(node.lineno, (node.end_lineno or node.lineno) + 1) if line in comments
            ]
            return "; ".join(word for word in words if not word.startswith(("type:", "pyright:", "noqa")))
    return ""


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.If):
            yield from _statements(node.orelse or node.body)
        yield node


def _properties(record: type) -> Iterator[tuple[str, str, str]]:
    others = getattr(record, "argument_names", {})
    for name, found in vars(record).items():
        if isinstance(found, property) and found.__doc__ and not name.startswith("_") and name not in others:
            hint = get_type_hints(found.fget).get("return", object) if found.fget is not None else object
            yield name, type_text(hint), f"property; {_table_cell(found.__doc__.partition(chr(10) * 2)[0])}"


def type_text(hint: object) -> str:
    """Return a type as a program writes it."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return type_text(parts[0])
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(type_text(part) for part in parts))
    if origin is Literal:
        return " | ".join(f'"{part}"' if isinstance(part, str) else repr(part) for part in parts)
    if hint is NoneType or hint is None:
        return "None"
    if hint is Ellipsis:
        return "…"
    if isinstance(hint, list):
        return f"[{', '.join(map(type_text, hint))}]"
    name = "object" if isinstance(hint, TypeVar) else _type_name(origin or hint)
    if not parts:
        return _SHORT.get(name, name)
    inner = [type_text(part) for part in parts]
    return f"{name}[{', '.join(inner)}]"


def _type_name(hint: object) -> str:
    return str(getattr(hint, "__name__", None) or re.sub(r"[\w.]+\.", "", str(hint)))
