"""The commands `perstack task`: the operations table as commands, with help texts for the terminal.

Operations, their arguments and fallback texts come from `core.tasks.operation_table`; `COMMAND_HELP` replaces texts and
options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from perstack.core.base.lifecycle import PauseReason
from perstack.core.base.records import Fact
from perstack.core.base.text import argv_of
from perstack.core.tasks.arguments import FirstStatus
from perstack.core.tasks.events import OnFailure, TaskConfig, WaitingFor
from perstack.core.tasks.operation_table import OPERATIONS, Argument, Checkpoints, Operation
from perstack.core.tasks.state import TaskState, TaskStatus
from perstack.core.tasks.summaries import TaskPage
from perstack.dataclass import dataclass
from perstack.doors.cli.param_types import ANSWER, ERROR, MOMENT, SPAN, STATE
from perstack.doors.cli.scheduler import run_due
from perstack.doors.cli.task_view import Tasks, delete, show_all, show_task, task_options, text, when
from perstack.doors.cli.terminal import Screen, print_err, print_out, table, write_json_line
from perstack.errors import UsageError
from perstack.ports.tasks import read_command

if TYPE_CHECKING:
    from perstack.engine.tasks.memory import ExecutionMemory


# An operation as a command: its arguments as options, its result as rows or JSON.

Made = Callable[[], click.Parameter]  # makes a parameter, since each command needs its own


def option(*names: str, **about: Any) -> Made:
    """Return a maker of an option; the first name may be the argument's name."""
    return lambda: click.Option(names, **about)


def argument(name: str, **about: Any) -> Made:
    """Return a maker of a positional argument."""
    return lambda: click.Argument([name], **about)


def _as_they_are(given: Mapping[str, object]) -> dict[str, object]:
    return dict(given)


@dataclass(frozen=True, slots=True)
class CommandHelp:
    """The texts and options of one command."""

    help: str
    parameters: Mapping[str, Made | tuple[Made, ...] | None] = field(default_factory=dict[str, Made])
    """Makers by argument, in order. None means the shared one; () leaves the argument out."""
    gather: Callable[[Mapping[str, object]], dict[str, object]] = _as_they_are
    """Returns the operation's arguments for the typed values."""


_SHARED: dict[str, Made] = {
    "task_id": argument("task_id", metavar="TASK"),
    "state": option("--state", type=STATE, help="The complete state: a JSON object, @FILE, or - for stdin."),
    "checkpoint_data": option("--checkpoint-data", type=STATE, help="Data of a checkpoint: a JSON object, @FILE, or -"),
    "depends_on": option(
        "--depends-on", metavar="TASK", multiple=True, help="Wait until this task is completed; repeatable."
    ),
    "expected_version": option(
        "--expected-version",
        type=click.IntRange(min=0),
        metavar="N",
        help="Fail if the task has another version.",
    ),
}


def command_of(operation: Operation, said: CommandHelp | None = None) -> click.Command:
    """Return the command. Without `said` it has the operation's own description."""
    words = CommandHelp(operation.description) if said is None else said

    @task_options
    def run(*, tasks: Tasks, **given: object) -> None:
        named = {name: value for name, value in given.items() if value not in (None, ())}
        words.gather(named)  # reports invalid values before the storage is opened

        async def work(memory: ExecutionMemory) -> Fact:
            await _find(memory, named, () if operation.makes else ("task_id",))
            command = read_command(operation.command, **words.gather(named))
            return operation.shown(command, await memory.do(command))

        _show((tasks.look if operation.reads else tasks.do)(work), as_json=tasks.as_json)

    return click.command(operation.name, params=_parameters(operation, words), help=words.help)(run)


async def _find(memory: ExecutionMemory, named: dict[str, object], own: Sequence[str]) -> None:
    """Replace typed ids by whole ones."""
    for name in own:
        if isinstance(typed := named.get(name), str):
            named[name] = await memory.find(typed)
    others = named.get("depends_on")
    if isinstance(others, tuple):
        named["depends_on"] = tuple([await memory.find(str(one)) for one in cast("tuple[object, ...]", others)])


def _parameters(operation: Operation, said: CommandHelp) -> list[click.Parameter]:
    arguments = {one.name: one for one in operation.arguments("program")}
    names = dict.fromkeys(("task_id", *said.parameters, *arguments))
    return [made() for name in names if name in arguments for made in _made(arguments[name], said)]


def _made(given: Argument, said: CommandHelp) -> Sequence[Made]:
    own = said.parameters.get(given.name)
    if own is None:
        return (_SHARED.get(given.name) or _plain(given),)
    return (own,) if callable(own) else own


def _plain(given: Argument) -> Made:
    """Return a maker for an argument without texts here."""
    about = get_args(given.type)[1:] if get_origin(given.type) is Annotated else ()
    words = next((one.description for one in about if isinstance(one, FieldInfo)), None)
    if given.default is ...:
        return argument(given.name)
    return option(f"--{given.name.replace('_', '-')}", metavar="TEXT", help=words)


def _show(done: Fact, *, as_json: bool) -> None:
    match done:
        case Checkpoints() if as_json:
            for one in done.checkpoints:
                write_json_line(one.to_json())
        case _ if as_json:
            write_json_line(done.to_json())
        case TaskState():
            show_task(done)
        case TaskPage():
            _show_page(done)
        case Checkpoints():
            _show_checkpoints(done)
        case _:
            write_json_line(done.to_json())


def _show_page(page: TaskPage) -> None:
    if not page.tasks:
        print_out("no such tasks")
        return
    show_all(list(page.tasks))
    if page.next is not None:
        print_err(f"there are more: see them with --after {page.next}")


def _show_checkpoints(found: Checkpoints) -> None:
    if not found.checkpoints:
        print_out("no checkpoint yet")
        return
    rows = [(one.id, one.name or "", when(one.timestamp), text(one.state)) for one in found.checkpoints]
    table(Screen.of_stdout(), ("checkpoint", "name", "when", "state"), rows)


_REASON = f"Why the task waits: {', '.join(get_args(PauseReason))}; or any text, which only pauses it."
_AGENT = ("agent_id", "--agent", "--agent-id")
_OF_CONFIG = ("max_retries", "timeout", "on_failure", "checkpoint_interval")


def _created(given: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments with the config of its options; without `--start`, `start` is left out."""
    config = TaskConfig.model_validate({name: given[name] for name in _OF_CONFIG if name in given})
    rest = {name: value for name, value in given.items() if name not in _OF_CONFIG and value is not False}
    return {**rest, "config": config}


def _paused(given: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments with the external dependency of its options. Raises UsageError for a missing option."""
    if "reason" not in given and not given.get("depends_on"):
        raise UsageError(f"--reason is missing: {_REASON}")
    if given.get("reason") == "scheduled_wait" and "resume_at" not in given:
        raise UsageError("--reason scheduled_wait needs --resume-at: when it is to continue, such as +5m")
    outside = {name: cast("str", given[name]) for name in ("waiting_for", "command") if name in given}
    rest = {name: value for name, value in given.items() if name not in ("waiting_for", "command")}
    if not outside:
        return rest
    waits = WaitingFor(what=outside.get("waiting_for", ""), command=argv_of(outside.get("command", "")))
    return {**rest, "waiting_for": waits}


COMMAND_HELP: dict[str, CommandHelp] = {
    "create": CommandHelp(
        "Create TASK, whose id has up to 128 characters of A-Z a-z 0-9 _ and -.",
        {
            "name": option("--name", metavar="TEXT", help="A short name."),
            "description": option("--description", metavar="TEXT", help="The description of the work."),
            "agent_id": option(*_AGENT, metavar="ID", help="The agent that works on it: an Expert, or any name."),
            "state": None,
            "checkpoint_data": None,
            "depends_on": None,
            "config": (
                option(
                    "--max-retries",
                    type=click.IntRange(min=0),
                    default=3,
                    show_default=True,
                    help="Maximum retries.",
                ),
                option("--timeout", type=SPAN, help="Maximum time without an update while it runs, such as 30m."),
                option(
                    "--on-failure",
                    type=click.Choice(get_args(OnFailure)),
                    default="fail",
                    show_default=True,
                    help="What to do when it fails.",
                ),
                option("--checkpoint-interval", type=SPAN, help="The expected interval between checkpoints."),
            ),
            "start": option("--start", is_flag=True, help="Start it immediately."),
            "status": option(
                "--status",
                type=click.Choice(get_args(FirstStatus)),
                help="The initial status; `running` is the same as --start.",
            ),
        },
        gather=_created,
    ),
    "start": CommandHelp("Start TASK, which has only been created."),
    "get": CommandHelp("Show TASK with its state."),
    "list": CommandHelp(
        (
            "List tasks, the most recently changed first. With --json: an object with `tasks`, and `next` if "
            "there are more."
        ),
        {
            "status": option("--status", type=click.Choice(get_args(TaskStatus)), help=("Only tasks in this status.")),
            "reason": option(
                "--reason",
                type=click.Choice(get_args(PauseReason)),
                help=("Only tasks that are paused for this reason."),
            ),
            "agent_id": option(*_AGENT, metavar="ID", help="Only tasks of this agent."),
            "older_than": option(
                "--older-than", type=SPAN, help=("Only tasks without a change for this time, such as 2h.")
            ),
            "newer_than": option("--newer-than", type=SPAN, help="Only tasks that changed within this time."),
            "archived": option("--archived", is_flag=True, help="List archived tasks instead of the others."),
            "limit": option(
                "limit",
                "--take",
                type=click.IntRange(min=1),
                metavar="N",
                default=50,
                show_default=True,
                help="Maximum number.",
            ),
            "after": option("--after", metavar="CURSOR", help="Continue a previous list from its `next`."),
        },
    ),
    "checkpoint": CommandHelp(
        "Save the progress of TASK.",
        {
            "state": None,
            "name": option("--name", metavar="TEXT", help="The name of the checkpoint."),
            "checkpoint_data": option(
                "--checkpoint-data",
                "--data",
                type=STATE,
                help="Data of a checkpoint: a JSON object, @FILE, or -",
            ),
            "data": (),
        },
    ),
    "checkpoints": CommandHelp(
        "List the checkpoints of TASK, the oldest first. With --json: one object a line, with its state."
    ),
    "pause": CommandHelp(
        "Pause TASK. For an external dependency, the token for a webhook is shown, only this once.",
        {
            "reason": option("--reason", metavar="REASON", help=_REASON),
            "message": option("--message", metavar="TEXT", help="A message for people."),
            "state": None,
            "checkpoint_data": None,
            "depends_on": None,
            "resume_at": option(
                "--resume-at", type=MOMENT, help=("The end of a scheduled wait or rate limit: +5m, 2026-11-22T08:00.")
            ),
            "waiting_for": (
                option(
                    "--waiting-for",
                    metavar="TEXT",
                    help=("With external_dependency: a description of what the task waits for."),
                ),
                option(
                    "--command",
                    metavar="LINE",
                    help=("With external_dependency: a command line for `sh` that exits with 0 when the wait is over."),
                ),
            ),
        },
        gather=_paused,
    ),
    "answer": CommandHelp(
        (
            "Answer TASK with what it waits for.\n\n"
            "ANSWER is text, JSON, @FILE, or - for stdin. The task continues when it is resumed."
        ),
        {"value": argument("value", metavar="ANSWER", type=ANSWER)},
    ),
    "resume": CommandHelp(
        "Resume TASK, paused or failed, from its current state or from an earlier checkpoint.",
        {
            "checkpoint": option(
                "--checkpoint", metavar="ID", help=("Resume from this checkpoint, by id or name; later ones are kept.")
            ),
            "state": None,
            "value": option("value", "--answer", type=ANSWER, help="The answer: text, JSON, @FILE, or -"),
        },
    ),
    "complete": CommandHelp(
        "Complete TASK permanently.",
        {
            "result": option("--result", metavar="RESULT", type=ANSWER, help="The result: text, JSON, @FILE, or -"),
            "state": (),
        },
    ),
    "fail": CommandHelp(
        (
            "Report a failure of TASK: as text, or as a JSON object with a `message`.\n\n"
            "It is then failed, paused or retried, as its creation specifies."
        ),
        {"error": argument("error", type=ERROR)},
    ),
    "retry": CommandHelp(
        "Retry TASK, which has failed.\n\n"
        "It continues from its last state. The number of retries is limited at its creation."
    ),
    "cancel": CommandHelp(
        "Cancel TASK: it is failed, and can be resumed.",
        {"message": option("--message", metavar="TEXT", help="The reason.")},
    ),
    "archive": CommandHelp("Hide TASK, which has ended, from lists."),
}
"""Texts and options by operation; an operation without an entry uses the texts of the table."""


class InOrder(click.Group):
    """A group that lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which they were added."""
        return list(self.commands)


@click.group("task", cls=InOrder, context_settings={"help_option_names": ["-h", "--help"]})
def task_command() -> None:
    """Manage tasks that agents pause and resume, from any process."""


_ORDER = list(COMMAND_HELP)

for _operation in sorted(
    OPERATIONS, key=lambda one: _ORDER.index(one.name) if one.name in COMMAND_HELP else len(COMMAND_HELP)
):
    task_command.add_command(
        delete if _operation.name == delete.name else command_of(_operation, COMMAND_HELP.get(_operation.name))
    )
task_command.add_command(run_due)
