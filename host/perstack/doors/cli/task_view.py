"""What the `perstack task` commands share: how JSON is given, and how a task is shown."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

import click
from pydantic import JsonValue

from perstack.core.shell import line_of
from perstack.core.tasks.dependencies import in_words
from perstack.core.tasks.state import TaskState
from perstack.core.tasks.summary import TaskSummary
from perstack.dataclass import dataclass
from perstack.engine.clock import SYSTEM
from perstack.engine.who import this_user
from perstack.errors import UsageError
from perstack.frontends.cli.given import given_answer, given_error, given_object
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.spans import read_span
from perstack.frontends.cli.terminal import Screen, table
from perstack.frontends.shared.words import ago, local_time, shorten

if TYPE_CHECKING:
    from perstack.engine.memory import ExecutionMemory
    from perstack.host import Host

_F = TypeVar("_F", bound=Callable[..., object])
_T = TypeVar("_T")
_SHOWN = 40
"""Cells of what was typed, in an error."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of one place: the values of `task_options`."""

    place: PlaceOptions
    as_json: bool

    def look(self, work: Callable[[ExecutionMemory], Awaitable[_T]]) -> _T:
        """What `work` gives, which changes none of them."""
        return self._on(self.place.reader(), work)

    def do(self, work: Callable[[ExecutionMemory], Awaitable[_T]]) -> _T:
        """What `work` gives, which may change them."""
        return self._on(self.place.writer(), work)

    def _on(self, host: Host, work: Callable[[ExecutionMemory], Awaitable[_T]]) -> _T:
        async def main() -> _T:
            async with host:
                return await work(host.memory.signed(this_user("cli")))

        return asyncio.run(main())


def task_options(command: Callable[..., None]) -> Callable[..., None]:
    """Where the tasks are, and how one is shown, which the command is given as one `tasks: Tasks`."""

    @wraps(command)
    def gather(
        *, as_json: bool, config: str | None, workspace: str | None, storage: str | None, **others: object
    ) -> None:
        command(tasks=Tasks(PlaceOptions(config, workspace, storage), as_json), **others)

    return click.option("--json", "as_json", is_flag=True, help="The whole task as one JSON object.")(
        place_options(gather)
    )


def version_option(command: _F) -> _F:
    """The fence."""
    return click.option(
        "--expected-version",
        type=click.IntRange(min=0),
        metavar="N",
        help="Do nothing if the task is of another version.",
    )(command)


def read_moment(text: str | None, what: str) -> int | None:
    """Milliseconds since 1970 from `+5m`, `2026-11-22T08:00`, or the number itself. Raises UsageError."""
    if text is None or re.fullmatch(r"[0-9]{1,15}", text):
        return None if text is None else int(text)
    if text.startswith("+"):
        return SYSTEM.now() + (read_span(text[1:], what) or 0)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{what} {shorten(text, _SHOWN)}: give a moment such as +5m or 2026-11-22T08:00") from error


class _Read(click.ParamType[object]):
    """What is typed, as a function reads it that takes the text and the name of the option."""

    def __init__(self, name: str, read: Callable[[str, str], object]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        if not isinstance(value, str) or param is None:
            return value
        is_option = param.param_type_name == "option"
        return self._read(value, param.opts[0] if is_option else param.metavar or (param.name or "").upper())


STATE = _Read("json", given_object)
ANSWER = _Read("answer", given_answer)
ERROR = _Read("error", given_error)
SPAN = _Read("time", read_span)
MOMENT = _Read("time", read_moment)


def show_task(task: TaskState) -> None:
    """A task, for a person."""
    table(Screen.of_stdout(), ("task", task.task_id), [(name, value) for name, value in _facts(task) if value])


def _facts(task: TaskState) -> list[tuple[str, str]]:
    now = SYSTEM.now()
    waits = task.waiting_for
    return [
        ("name", task.name if task.name != task.task_id else ""),
        ("description", task.description),
        ("agent", task.agent_id),
        ("status", _status(task, now)),
        ("message", task.pause_message or ""),
        ("waits for", waits.what if waits else ""),
        ("depends on", ", ".join(task.depends_on)),
        ("held up", in_words(task.blocked_by)),
        ("asks", line_of(waits.command) if waits else ""),
        ("token", task.token or ""),
        ("webhook", f"POST /v1/hooks/{task.token}, where perstack mcp --http serves" if task.token else ""),
        ("resumes", when(task.resume_at)),
        ("input", text(task.input)),
        ("said", task.input_text),
        ("said by", str(task.input_by) if task.input_by else ""),
        ("state", text(task.state)),
        ("data", text(task.checkpoint_data)),
        ("result", text(task.result)),
        ("error", task.error or ""),
        ("details", text(task.error_details)),
        ("retries", f"{task.retry_count} of {task.config.max_retries}" if task.retry_count else ""),
        ("checkpoint", f"{task.checkpoint_id} ({task.checkpoints} in all)" if task.checkpoint_id else ""),
        ("next due", when(task.checkpoint_due_at)),
        ("Job", task.job_id or ""),
        ("version", str(task.version)),
        ("written", ago(task.updated_at, now)),
    ]


def show_all(tasks: list[TaskSummary]) -> None:
    """A list of tasks, for a person."""
    now = SYSTEM.now()
    rows = [
        (
            task.task_id,
            task.agent_id,
            _status(task, now),
            str(task.checkpoints),
            ago(task.updated_at, now) if task.updated_at else "?",
            _about(task),
        )
        for task in tasks
    ]
    table(
        Screen.of_stdout(),
        ("task", "agent", "status", "checkpoints", "when", "about"),
        rows,
        right=(3,),
        drops=(3, 1, 4, 2),
    )


def _about(task: TaskSummary) -> str:
    said = task.error or task.pause_message or when(task.resume_at)
    return "; ".join(filter(None, (said, in_words(task.blocked_by)))) or task.name


def _status(task: TaskState | TaskSummary, now: int) -> str:
    if isinstance(task, TaskSummary) and task.damaged:
        return "damaged"
    if task.archived_at is not None:
        return f"{task.status}, archived"
    if task.pause_reason is not None:
        return f"{task.status}: {task.pause_reason}{', answered' if task.answered else ''}"
    is_late = task.checkpoint_due_at is not None and task.checkpoint_due_at < now
    return f"{task.status}: checkpoint late" if is_late else task.status


def when(moment: int | None) -> str:
    """A moment, here."""
    return "" if moment is None else f"{local_time(moment):%Y-%m-%d %H:%M:%S}"


def text(value: JsonValue) -> str:
    """A JSON value on one line; nothing for nothing."""
    if value is None or value == {}:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
