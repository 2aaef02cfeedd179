"""The todo list of one Run: a value, and what the todo tools do to it.

Names and result shape are those of Perstack's base skill: `{"todos": [{"id", "title", "completed"}]}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from pydantic import JsonValue

from perstack.core.base import Fact, JsonObject


class Todo(Fact):
    """One thing to do; `id` counts from 0 within its Run."""

    id: int
    title: str
    completed: bool = False


Todos = tuple[Todo, ...]


def apply_todo(todos: Todos, args: JsonObject) -> Todos:
    """Mark `completedTodos` (ids; unknown ones are ignored) and add `newTodos`, as the `todo` tool does."""
    done = _ids(args.get("completedTodos"))
    marked = [todo.model_copy(update={"completed": True}) if todo.id in done else todo for todo in todos]
    titles = args.get("newTodos")
    next_id = max((todo.id for todo in todos), default=-1) + 1
    new = [title for title in titles if isinstance(title, str)] if isinstance(titles, list) else []
    return (*marked, *(Todo(id=next_id + i, title=title) for i, title in enumerate(new)))


def remaining(todos: Iterable[Todo]) -> Todos:
    """Those not completed."""
    return tuple(todo for todo in todos if not todo.completed)


def todos_json(todos: Iterable[Todo], key: str = "todos") -> str:
    """What the model is shown."""
    return json.dumps({key: [todo.model_dump() for todo in todos]}, ensure_ascii=False, separators=(",", ":"))


def _ids(value: JsonValue) -> frozenset[int]:
    if not isinstance(value, list):
        return frozenset()
    return frozenset(int(item) for item in value if isinstance(item, int | float))
