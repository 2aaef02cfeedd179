"""The commands `perstack task`: the table of operations, with help texts for the terminal from `COMMAND_HELP`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from perstack.core.base.records import Record
from perstack.core.base.text import argv_of
from perstack.core.definitions.job_status import PauseReason
from perstack.dataclass import dataclass
from perstack.doors.cli.param_types import ANSWER, ERROR, MOMENT, SPAN, STATE
from perstack.doors.cli.scheduler import run_due
from perstack.doors.cli.task_view import Tasks, delete, show_all, show_task, task_options, text, time_text
from perstack.doors.cli.terminal import print_err, print_out, table, write_json_line
from perstack.doors.shared.screen import Screen
from perstack.errors import UsageError
from perstack.tasks.arguments import FirstStatus
from perstack.tasks.events import OnFailure, TaskConfig, WaitingFor
from perstack.tasks.memory import read_command
from perstack.tasks.operation_table import OPERATIONS, Argument, Checkpoints, Operation
from perstack.tasks.state import TaskState, TaskStatus
from perstack.tasks.summaries import TaskPage

if TYPE_CHECKING:
    from perstack.tasks.execution_memory import StoredTasks


# An operation as a command: its arguments as options, its result as rows or JSON.

Maker = Callable[[], click.Parameter]  # creates a click parameter; a parameter object cannot be shared by two commands


def _option(*names: str, **settings: Any) -> Maker:
    """Return a function that creates a click option; the first name may be the argument's name."""
    return lambda: click.Option(names, **settings)


def _argument(name: str, **settings: Any) -> Maker:
    return lambda: click.Argument([name], **settings)


def _unchanged(values: Mapping[str, object]) -> dict[str, object]:
    return dict(values)


@dataclass(frozen=True, slots=True)
class _CommandHelp:
    help: str
    parameters: Mapping[str, Maker | tuple[Maker, ...] | None] = field(default_factory=dict[str, Maker])
    """Makers of parameters by the operation's arguments, in order. None: the shared maker; (): no parameter."""
    gather: Callable[[Mapping[str, object]], dict[str, object]] = _unchanged
    """Converts the typed values to the operation's arguments."""


_SHARED_PARAMETERS: dict[str, Maker] = {
    "task_id": _argument("task_id", metavar="TASK"),
    "state": _option("--state", type=STATE, help="The complete state: a JSON object, @FILE, or - for stdin."),
    "checkpoint_data": _option(
        "--checkpoint-data", type=STATE, help="Data of a checkpoint: a JSON object, @FILE, or -"
    ),
    "depends_on": _option(
        "--depends-on", metavar="TASK", multiple=True, help="Wait until this task is completed; repeatable."
    ),
    "expected_version": _option(
        "--expected-version", type=click.IntRange(min=0), metavar="N", help="Fail if the task has another version."
    ),
}


def command_of(operation: Operation, texts: _CommandHelp | None = None) -> click.Command:
    """Return the command. Without `texts` it has the operation's own description."""
    command_help = _CommandHelp(operation.description) if texts is None else texts

    @task_options
    def run(*, tasks: Tasks, **params: object) -> None:
        values = {name: value for name, value in params.items() if value not in (None, ())}
        command_help.gather(values)  # reports invalid values before the storage is opened

        async def work(memory: StoredTasks) -> Record:
            await _find(memory, values, () if operation.is_creation else ("task_id",))
            command = read_command(operation.command, **command_help.gather(values))
            return operation.to_result(command, await memory.do(command))

        _show((tasks.look if operation.is_read_only else tasks.do)(work), as_json=tasks.as_json)

    return click.command(operation.name, params=_parameters(operation, command_help), help=command_help.help)(run)


async def _find(memory: StoredTasks, values: dict[str, object], id_names: Sequence[str]) -> None:
    for name in id_names:
        if isinstance(typed_id := values.get(name), str):
            values[name] = await memory.resolve_id(typed_id)
    names = values.get("depends_on")
    if isinstance(names, tuple):
        values["depends_on"] = tuple([await memory.resolve_id(str(name)) for name in cast("tuple[object, ...]", names)])


def _parameters(operation: Operation, texts: _CommandHelp) -> list[click.Parameter]:
    arguments = {argument.name: argument for argument in operation.arguments("program")}
    names = dict.fromkeys(("task_id", *texts.parameters, *arguments))
    return [make() for name in names if name in arguments for make in _make_parameters(arguments[name], texts)]


def _make_parameters(argument: Argument, texts: _CommandHelp) -> Sequence[Maker]:
    custom = texts.parameters.get(argument.name)
    if custom is None:
        return (_SHARED_PARAMETERS.get(argument.name) or _plain(argument),)
    return (custom,) if callable(custom) else custom


def _plain(argument: Argument) -> Maker:
    metadata = get_args(argument.type)[1:] if get_origin(argument.type) is Annotated else ()
    help_text = next((item.description for item in metadata if isinstance(item, FieldInfo)), None)
    if argument.default is ...:
        return _argument(argument.name)
    return _option(f"--{argument.name.replace('_', '-')}", metavar="TEXT", help=help_text)


def _show(result: Record, *, as_json: bool) -> None:
    match result:
        case Checkpoints() if as_json:
            for task_checkpoint in result.checkpoints:
                write_json_line(task_checkpoint.to_json())
        case _ if as_json:
            write_json_line(result.to_json())
        case TaskState():
            show_task(result)
        case TaskPage():
            _show_page(result)
        case Checkpoints():
            _show_checkpoints(result)
        case _:
            write_json_line(result.to_json())


def _show_page(page: TaskPage) -> None:
    if not page.tasks:
        print_out("no such tasks")
        return
    show_all(list(page.tasks))
    if page.next is not None:
        print_err(f"there are more: see them with --after {page.next}")


def _show_checkpoints(page: Checkpoints) -> None:
    if not page.checkpoints:
        print_out("no checkpoint yet")
        return
    rows = [(item.id, item.name or "", time_text(item.timestamp), text(item.state)) for item in page.checkpoints]
    table(Screen.of_stdout(), ("checkpoint", "name", "when", "state"), rows)


_REASON = f"Why the task waits: {', '.join(get_args(PauseReason))}; or a question for a person."
_AGENT_OPTIONS = ("agent_id", "--agent", "--agent-id")
_CONFIG_FIELDS = ("max_retries", "timeout", "on_failure", "checkpoint_interval")


def _create_arguments(values: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments, with the options that configure the task as `config`, and without a false `start`."""
    config = TaskConfig.model_validate({name: values[name] for name in _CONFIG_FIELDS if name in values})
    remaining = {name: value for name, value in values.items() if name not in _CONFIG_FIELDS and value is not False}
    return {**remaining, "config": config}


def _pause_arguments(values: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments, with the options of an external dependency as `waiting_for`.

    Raises UsageError for a missing option.
    """
    if "reason" not in values and not values.get("depends_on"):
        raise UsageError(f"--reason is missing: {_REASON}")
    if values.get("reason") == "scheduled_wait" and "resume_at" not in values:
        raise UsageError("--reason scheduled_wait needs --resume-at, the time to continue, such as +5m")
    dependency = {name: cast("str", values[name]) for name in ("waiting_for", "command") if name in values}
    remaining = {name: value for name, value in values.items() if name not in ("waiting_for", "command")}
    if not dependency:
        return remaining
    waiting_for = WaitingFor(what=dependency.get("waiting_for", ""), command=argv_of(dependency.get("command", "")))
    return {**remaining, "waiting_for": waiting_for}


COMMAND_HELP: dict[str, _CommandHelp] = {
    "create": _CommandHelp(
        "Create TASK, whose id has up to 128 characters of A-Z a-z 0-9 _ and -.",
        {
            "name": _option("--name", metavar="TEXT", help="A short name."),
            "description": _option("--description", metavar="TEXT", help="The description of the work."),
            "agent_id": _option(
                *_AGENT_OPTIONS, metavar="ID", help="The agent that works on it: an Expert, or any name."
            ),
            "state": None,
            "checkpoint_data": None,
            "depends_on": None,
            "config": (
                _option(
                    "--max-retries", type=click.IntRange(min=0), default=3, show_default=True, help="Maximum retries."
                ),
                _option("--timeout", type=SPAN, help="Maximum time without an update while it runs, such as 30m."),
                _option(
                    "--on-failure",
                    type=click.Choice(get_args(OnFailure)),
                    default="fail",
                    show_default=True,
                    help="What to do when it fails.",
                ),
                _option("--checkpoint-interval", type=SPAN, help="The expected interval between checkpoints."),
            ),
            "start": _option("--start", is_flag=True, help="Start it immediately."),
            "status": _option(
                "--status",
                type=click.Choice(get_args(FirstStatus)),
                help="The initial status; `running` is the same as --start.",
            ),
        },
        gather=_create_arguments,
    ),
    "start": _CommandHelp("Start TASK, which has only been created."),
    "get": _CommandHelp("Show TASK with its state."),
    "list": _CommandHelp(
        (
            "List tasks, the most recently changed first. With --json: an object with `tasks`, and `next` if "
            "there are more."
        ),
        {
            "status": _option("--status", type=click.Choice(get_args(TaskStatus)), help=("Only tasks in this status.")),
            "reason": _option(
                "--reason",
                type=click.Choice(get_args(PauseReason)),
                help=("Only tasks that are paused for this reason."),
            ),
            "agent_id": _option(*_AGENT_OPTIONS, metavar="ID", help="Only tasks of this agent."),
            "older_than": _option(
                "--older-than", type=SPAN, help=("Only tasks without a change for this time, such as 2h.")
            ),
            "newer_than": _option("--newer-than", type=SPAN, help="Only tasks that changed within this time."),
            "archived": _option("--archived", is_flag=True, help="List archived tasks instead of the others."),
            "limit": _option(
                "limit",
                "--take",
                type=click.IntRange(min=1),
                metavar="N",
                default=50,
                show_default=True,
                help="Maximum number.",
            ),
            "after": _option("--after", metavar="CURSOR", help="Continue a previous list from its `next`."),
        },
    ),
    "checkpoint": _CommandHelp(
        "Save the progress of TASK.",
        {
            "state": None,
            "name": _option("--name", metavar="TEXT", help="The name of the checkpoint."),
            "checkpoint_data": _option(
                "--checkpoint-data", "--data", type=STATE, help="Data of a checkpoint: a JSON object, @FILE, or -"
            ),
            "data": (),
        },
    ),
    "checkpoints": _CommandHelp(
        "List the checkpoints of TASK, the oldest first. With --json: one object a line, with its state."
    ),
    "pause": _CommandHelp(
        "Pause TASK. For an external dependency, the token for a webhook is shown, only this once.",
        {
            "reason": _option("--reason", metavar="REASON", help=_REASON),
            "message": _option("--message", metavar="TEXT", help="A message for people."),
            "state": None,
            "checkpoint_data": None,
            "depends_on": None,
            "resume_at": _option(
                "--resume-at", type=MOMENT, help=("The end of a scheduled wait or rate limit: +5m, 2026-11-22T08:00.")
            ),
            "waiting_for": (
                _option(
                    "--waiting-for",
                    metavar="TEXT",
                    help=("With external_dependency: a description of what the task waits for."),
                ),
                _option(
                    "--command",
                    metavar="LINE",
                    help=("With external_dependency: a command line for `sh` that exits with 0 when the wait is over."),
                ),
            ),
        },
        gather=_pause_arguments,
    ),
    "answer": _CommandHelp(
        (
            "Give TASK the answer that it waits for.\n\n"
            "ANSWER is text, JSON, @FILE, or - for stdin. The task continues when it is resumed."
        ),
        {"value": _argument("value", metavar="ANSWER", type=ANSWER)},
    ),
    "resume": _CommandHelp(
        "Resume TASK, paused or failed, from its current state or from an earlier checkpoint.",
        {
            "checkpoint": _option(
                "--checkpoint", metavar="ID", help=("Resume from this checkpoint, by id or name; later ones are kept.")
            ),
            "state": None,
            "value": _option("value", "--answer", type=ANSWER, help="The answer: text, JSON, @FILE, or -"),
        },
    ),
    "complete": _CommandHelp(
        "Complete TASK permanently.",
        {
            "result": _option("--result", metavar="RESULT", type=ANSWER, help="The result: text, JSON, @FILE, or -"),
            "state": (),
        },
    ),
    "fail": _CommandHelp(
        (
            "Report a failure of TASK: as text, or as a JSON object with a `message`.\n\n"
            "The task then fails, pauses or is retried, as specified at its creation."
        ),
        {"error": _argument("error", type=ERROR)},
    ),
    "retry": _CommandHelp(
        "Retry TASK, which has failed.\n\n"
        "It continues from its last state. The limit of retries is set at its creation."
    ),
    "cancel": _CommandHelp(
        "Cancel TASK: it counts as failed, and can be resumed.",
        {"message": _option("--message", metavar="TEXT", help="The reason.")},
    ),
    "archive": _CommandHelp("Hide TASK, which has ended, from lists."),
}
"""Texts and options by operation; an operation without an entry uses the texts of the table."""


class _OrderedGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group("task", cls=_OrderedGroup, context_settings={"help_option_names": ["-h", "--help"]})
def task_command() -> None:
    """Manage tasks that agents pause and resume, from any process."""


_COMMAND_ORDER = list(COMMAND_HELP)

for _operation in sorted(
    OPERATIONS,
    key=lambda operation: _COMMAND_ORDER.index(operation.name) if operation.name in COMMAND_HELP else len(COMMAND_HELP),
):
    task_command.add_command(
        delete if _operation.name == delete.name else command_of(_operation, COMMAND_HELP.get(_operation.name))
    )
task_command.add_command(run_due)
