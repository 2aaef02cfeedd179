"""How an operation of the table becomes a command: its arguments as options, and what it gives as rows or JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from perstack.core.base import Fact
from perstack.core.tasks.state import TaskState
from perstack.core.tasks.summary import TaskPage
from perstack.core.tasks.table import Argument, Checkpoints, Operation
from perstack.dataclass import dataclass
from perstack.frontends.cli.task_options import STATE, Tasks, show_all, show_task, task_options, text, when
from perstack.frontends.cli.terminal import Screen, data, err, out, table
from perstack.ports.tasks import read_command

if TYPE_CHECKING:
    from perstack.engine.memory import ExecutionMemory

Made = Callable[[], click.Parameter]
"""Makes a parameter: each command has one of its own."""


def option(*names: str, **about: Any) -> Made:
    """An option; the first name may be that of the argument."""
    return lambda: click.Option(names, **about)


def argument(name: str, **about: Any) -> Made:
    """An argument by its place."""
    return lambda: click.Argument([name], **about)


def _as_they_are(given: Mapping[str, object]) -> dict[str, object]:
    return dict(given)


@dataclass(frozen=True, slots=True)
class Said:
    """The words of one command."""

    help: str
    parameters: Mapping[str, Made | tuple[Made, ...] | None] = field(default_factory=dict[str, Made])
    """By the argument, in their order; None is what all commands have for it, and () leaves it out."""
    gather: Callable[[Mapping[str, object]], dict[str, object]] = _as_they_are
    """The arguments of the operation, of what was given."""


_SHARED: dict[str, Made] = {
    "task_id": argument("task_id", metavar="TASK"),
    "state": option("--state", type=STATE, help="The whole state: a JSON object, @FILE, or - for stdin."),
    "checkpoint_data": option(
        "--checkpoint-data", type=STATE, help="What else to keep, as a checkpoint: a JSON object, @FILE, or -"
    ),
    "depends_on": option(
        "--depends-on", metavar="TASK", multiple=True, help="Wait until this task is completed. May be repeated."
    ),
    "expected_version": option(
        "--expected-version",
        type=click.IntRange(min=0),
        metavar="N",
        help="Do nothing if the task is of another version.",
    ),
}


def command_of(operation: Operation, said: Said | None = None) -> click.Command:
    """The command. Without words of its own it has those of the operation."""
    words = Said(operation.description) if said is None else said

    @task_options
    def run(*, tasks: Tasks, **given: object) -> None:
        named = {name: value for name, value in given.items() if value not in (None, ())}
        words.gather(named)  # what is wrong with it is said before anything is opened

        async def work(memory: ExecutionMemory) -> Fact:
            await _find(memory, named, () if operation.makes else ("task_id",))
            command = read_command(operation.command, **words.gather(named))
            return operation.shown(command, await memory.do(command))

        _show((tasks.look if operation.reads else tasks.do)(work), as_json=tasks.as_json)

    return click.command(operation.name, params=_parameters(operation, words), help=words.help)(run)


async def _find(memory: ExecutionMemory, named: dict[str, object], own: Sequence[str]) -> None:
    """Put whole ids in place of those that were typed."""
    for name in own:
        if isinstance(typed := named.get(name), str):
            named[name] = await memory.find(typed)
    others = named.get("depends_on")
    if isinstance(others, tuple):
        named["depends_on"] = tuple([await memory.find(str(one)) for one in cast("tuple[object, ...]", others)])


def _parameters(operation: Operation, said: Said) -> list[click.Parameter]:
    arguments = {one.name: one for one in operation.arguments("program")}
    names = dict.fromkeys(("task_id", *said.parameters, *arguments))
    return [made() for name in names if name in arguments for made in _made(arguments[name], said)]


def _made(given: Argument, said: Said) -> Sequence[Made]:
    own = said.parameters.get(given.name)
    if own is None:
        return (_SHARED.get(given.name) or _plain(given),)
    return (own,) if callable(own) else own


def _plain(given: Argument) -> Made:
    """For an argument that nobody has words for here."""
    about = get_args(given.type)[1:] if get_origin(given.type) is Annotated else ()
    words = next((one.description for one in about if isinstance(one, FieldInfo)), None)
    if given.default is ...:
        return argument(given.name)
    return option(f"--{given.name.replace('_', '-')}", metavar="TEXT", help=words)


def _show(done: Fact, *, as_json: bool) -> None:
    match done:
        case Checkpoints() if as_json:
            for one in done.checkpoints:
                data(one.to_json())
        case _ if as_json:
            data(done.to_json())
        case TaskState():
            show_task(done)
        case TaskPage():
            _show_page(done)
        case Checkpoints():
            _show_checkpoints(done)
        case _:
            data(done.to_json())


def _show_page(page: TaskPage) -> None:
    if not page.tasks:
        out("no such tasks")
        return
    show_all(list(page.tasks))
    if page.next is not None:
        err(f"there are more: see them with --after {page.next}")


def _show_checkpoints(found: Checkpoints) -> None:
    if not found.checkpoints:
        out("no checkpoint yet")
        return
    rows = [(one.id, one.name or "", when(one.timestamp), text(one.state)) for one in found.checkpoints]
    table(Screen.of_stdout(), ("checkpoint", "name", "when", "state"), rows)
