"""Tasks in a list of all of them, as their summaries stand in JSON: ten thousand are looked at without parsing one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from perstack.errors import NotAllowed

Row = dict[str, object]
"""A summary as JSON has it."""


def by_id(rows: Sequence[Row]) -> dict[str, Row]:
    """The summaries of tasks, to look others up."""
    return {str(row.get("taskId")): row for row in rows}


def depends_on(row: Row) -> Sequence[str]:
    """The tasks that one waits for."""
    found = row.get("dependsOn")
    return found if isinstance(found, list | tuple) else ()  # pyright: ignore[reportUnknownVariableType]


def is_completed(row: Row | None) -> bool:
    """Whether a task is done, for good."""
    return row is not None and row.get("status") == "completed"


def to_look_after(rows: Sequence[Row], now: int) -> list[Row]:
    """The tasks of which something may be due. One that waits for another task is not among them."""
    each: Mapping[str, Row] = by_id(rows)
    held = {id(row) for row in rows if any(not is_completed(each.get(one)) for one in depends_on(row))}
    return [row for row in rows if id(row) not in held and _may_be_due(row, now)]


def _may_be_due(row: Row, now: int) -> bool:
    if row.get("archivedAt") is not None:
        return False
    due = row.get("dueAt")
    is_due = isinstance(due, int) and due <= now
    works = row.get("status") == "running" and row.get("jobId") is not None
    return bool(row.get("damaged")) or is_due or bool(row.get("polls")) or works


def check_unneeded(task_id: str, rows: Collection[Row]) -> None:
    """Raises NotAllowed if one of these tasks waits for this one."""
    waiting = sorted(str(row["taskId"]) for row in rows if task_id in depends_on(row))
    if waiting:
        raise NotAllowed(
            f"task {task_id} cannot be deleted, since {in_short(waiting)} waits for it: resume or delete {waiting[0]}"
            " first"
        )


def in_short(ids: Sequence[str]) -> str:
    """`task a` or `tasks a, b, c, …`."""
    return f"{'task' if len(ids) == 1 else 'tasks'} {', '.join(ids[:3])}{', …' if len(ids) > 3 else ''}"
