"""Options that several commands share, and the Host opened from them.

What only a running command needs is imported in functions: `--help` and shell completion load none of it.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import wraps
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

import click

from perstack.core.definitions.options import BUDGET_OPTIONS, OPTIONS, Option
from perstack.dataclass import dataclass
from perstack.doors.cli.terminal import print_err
from perstack.doors.shared.next_step_phrases import cli_phrase
from perstack.errors import DefinitionError, NotAgreed, UsageError

if TYPE_CHECKING:
    from perstack.config.project_place import ProjectPlace
    from perstack.core.definitions.permissions import Widening
    from perstack.core.definitions.project import Project
    from perstack.core.definitions.settings import Compaction, Overrides, ReasoningBudget
    from perstack.core.runs.start import CallerFields
    from perstack.host import Host
    from perstack.ports.dispatcher import Dispatcher
    from perstack.ports.environment import Environment
    from perstack.toml_reader.definition_with_includes import LoadedProject
    from perstack.trust.agreements import Agreement


_F = TypeVar("_F", bound=Callable[..., object])
_T = TypeVar("_T")

# Where a project is and how its Jobs are driven.


def _no_overrides() -> Overrides:
    from perstack.core.definitions.settings import NO_OVERRIDES

    return NO_OVERRIDES


@dataclass(frozen=True, slots=True)
class HostOptions:
    """The values of `place_options` or `driving_options`, from which a command opens its Host."""

    config: str | None = None
    workspace: str | None = None
    storage: str | None = None
    dispatcher: str | None = None  # the dispatcher's address; None to use what the definition or the storage names
    env_path: tuple[str, ...] = ()
    overrides: Overrides = field(default_factory=_no_overrides)
    folder: str = "."  # the current folder, used if no workspace is named
    is_attended: Callable[[], bool] | None = None  # returns True if a person answers while a Job is driven
    branch_folder: Path | None = None  # a folder to work in that does not change where the project is found
    place: ProjectPlace | None = None  # place of the project, once `located`

    @classmethod
    def take_from(cls, values: dict[str, Any]) -> HostOptions:
        """Return the options for a command's parameters, and remove the used ones from `values`."""
        names = ("config", "workspace", "storage", "dispatcher", "env_path")
        return cls(**{name: values.pop(name) for name in names if name in values})

    @property
    def workspace_path(self) -> str | Path:
        """The named workspace; the default if none is named."""
        if self.branch_folder is not None:
            return self.branch_folder.resolve()
        return "." if self.workspace is None else Path(self.workspace).resolve()

    @property
    def as_arguments(self) -> str:
        """The given options that locate the project, in shell form, each with a leading space."""
        given = {"--config": self.config, "--workspace": self.workspace, "--storage": self.storage}
        return "".join(f" {name} {quote(value)}" for name, value in given.items() if value is not None)

    def load(self, *, strict: bool = False) -> LoadedProject:
        """Return the project and its files. Warnings go to stderr.

        Raises UsageError if there is no file, and with `strict` DefinitionError for warnings.
        """
        from perstack.definition_files import load_usable

        loaded = load_usable(self.find().require_path())
        if strict and loaded.warnings:
            raise DefinitionError(tuple(replace(problem, severity="error") for problem in loaded.warnings))
        for problem in loaded.warnings:
            print_err(f"warning: {problem}")
        if loaded.project.broken:
            names = ", ".join(loaded.project.broken)
            print_err(f"warning: {loaded.files[0]}: cannot be run: {names}; `perstack validate` says why")
        return loaded

    def project(self, *, required: bool) -> Project:
        """Return the project; an empty one if there is no file and it is not required."""
        if required:
            return self.load().project
        from perstack.core.definitions.project import Project
        from perstack.definition_files import load_usable

        config = self.find().config
        return Project() if config is None else load_usable(config).project

    def located(self) -> HostOptions:
        """Return these options with the place of the project, so that each later step uses the same one."""
        return replace(self, place=self.find())

    def find(self) -> ProjectPlace:
        """Return where the project is. Raises UsageError for a named file or folder that does not exist."""
        if self.place is not None:
            return self.place
        from perstack.config.project_place import find_place

        if self.workspace is not None and not Path(self.workspace).is_dir():
            raise UsageError(f"--workspace {self.workspace}: no such directory")
        if self.config is not None and not Path(self.config).is_file():
            raise UsageError(f"--config {self.config}: no such file")
        place = find_place(self.workspace or self.folder, self.config)
        if self.env_path:
            from perstack.trust.env_files import missing_file

            name = missing_file(place.folder, self.env_path)
            if name is not None:
                raise UsageError(f"--env-path {name}: no such file in {place.folder}")
        return place

    def look(self, work: Callable[[Host], Awaitable[_T]]) -> _T:
        """Return the result of `work`, called with an open Host that `reader` returns."""
        return run_with(self.reader(), work)

    def change(self, work: Callable[[Host], Awaitable[_T]]) -> _T:
        """Return the result of `work`, called with an open Host that `writer` returns."""
        return run_with(self.writer(), work)

    def reader(self) -> Host:
        """Return a Host for looking at Jobs, even if the definition is broken."""
        gc.freeze()  # what was imported stays: among thousands of Jobs each collection would go through it again
        try:
            return self.writer()
        except (DefinitionError, NotAgreed) as error:
            if isinstance(error, NotAgreed) and self.storage is None:
                raise  # it is the storage that is not agreed to
            from perstack.core.definitions.project import Project

            project = Project()
            if self.storage is None:
                text = f"warning: perstack.toml cannot be used, so Jobs are searched for in {project.storage}"
                print_err(f"{text}; run `perstack validate` to see why, or name another storage with --storage")
            return self.host_of(project, env=dict(os.environ))

    def writer(self) -> Host:
        """Return a Host for changing Jobs, even without a definition. Raises DefinitionError for an unusable one."""
        from perstack.trust.agreements import environment_of, state_environment

        located = self.located()
        project, place = located.project(required=False), located.find()
        audited = project.audit is not None
        env = environment_of(project, place) if audited else state_environment(project, place, self.storage)
        return located.host_of(project, env=env)

    def open_host(
        self,
        project: Project | None = None,
        *,
        strict: bool = False,
        plugins: Iterable[object] = (),
        agreement: Agreement | None = None,
    ) -> Host:
        """Return the Host for driving. Raises NotAgreed, DefinitionError or UsageError before anything is written.

        The definition is loaded, with `strict`, unless `project` is given.
        """
        from perstack.config.project_place import check_workspace

        located = self.located()
        project = project or located.load(strict=strict).project
        env = located.env(project)
        host = located.host_of(project, env=env, overrides=self.overrides, plugins=plugins, agreement=agreement)
        host.check_agreed()
        check_workspace(host.project, host.workspace)
        return host

    def env(self, project: Project) -> Environment:
        """Return the environment with the `.env` files; reports on stderr which of them are not read."""
        from perstack.trust.agreements import environment_of

        env = environment_of(project, self.find(), self.env_path)
        for note in env.warnings:
            print_err(f"warning: {note.text_for(cli_phrase)}")
        return env

    def host_of(
        self,
        project: Project,
        *,
        env: Mapping[str, str],
        overrides: Overrides | None = None,
        plugins: Iterable[object] = (),
        agreement: Agreement | None = None,
    ) -> Host:
        """Return a Host on the given project and environment."""
        from perstack.host import Host

        return Host(
            project,
            workspace=self.workspace_path,
            storage=self.storage,
            env=env,
            overrides=overrides,
            plugins=plugins,
            place=self.find(),
            dispatcher=self.dispatcher,
            agreement=agreement,
            is_attended=self.is_attended,
        )


def run_with(host: Host, work: Callable[[Host], Awaitable[_T]]) -> _T:
    """Open the Host, return the result of `work`, and close it."""
    import asyncio

    async def main() -> _T:
        async with host:
            return await work(host)

    return asyncio.run(main())


# Options that several commands share.


def stack(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Return a decorator that adds the options to a command, in the order of its help."""

    def decorate(command: _F) -> _F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


WORKSPACE = "The folder that Experts work in; by default `workspace` of perstack.toml, or the current folder."
CONFIG = "The perstack.toml; by default the first one from the current folder, or --workspace, upward."

config_option = click.option("--config", metavar="FILE", help=CONFIG)
workspace_option = click.option("--workspace", metavar="DIR", help=WORKSPACE)
storage_option = click.option(
    "--storage", metavar="SCHEME:PLACE", help="The storage of Jobs, such as sqlite:perstack/state.db."
)
env_path_option = click.option("--env-path", multiple=True, metavar="FILE", help="A .env file to read; repeatable.")
dispatcher_option = click.option(
    "--dispatcher",
    metavar="ADDRESS",
    help=("The dispatcher, which assigns Jobs to workers; by default that of [workers], or the PostgreSQL storage."),
)
drive_options = stack(
    click.option("--drive", "is_driven", is_flag=True, help="Drive the Job in this process, not on a worker."),
    dispatcher_option,
)
_NEW_JOB = stack(
    click.option("--job-id", metavar="ID", help="The id of the new Job: up to 128 characters of A-Z a-z 0-9 _ -"),
    click.option(
        "--attach", multiple=True, metavar="FILE", help="An image, PDF or text file to send with QUERY; repeatable."
    ),
    click.option("--label", multiple=True, metavar="KEY=VALUE", help="A label of the Job; repeatable."),
)


@dataclass(frozen=True, slots=True)
class NewRunOptions:
    """The values of `new_job_options`."""

    job_id: str | None
    attachments: Sequence[Path]
    caller_fields: CallerFields

    def check_unused(self) -> None:
        """Raise UsageError if the new Job or Run has a field or an attachment, which an answer has not."""
        for name, value in self.caller_fields.items():
            if value:
                raise UsageError(f"--{name.removesuffix('s')} is for a new Run: leave it out when answering")
        if self.attachments:
            raise UsageError("--attach is for a new query: leave it out when answering")


def new_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a command that begins a Job, passed to it as one `new_run: NewRunOptions`."""

    @wraps(command)
    def gather(*, job_id: str | None, attach: tuple[str, ...], label: tuple[str, ...], **others: object) -> None:
        from perstack.core.base.ids import check_job_id
        from perstack.core.jobs.job_choice import parse_labels

        if job_id is not None:
            check_job_id(job_id)
        caller_fields: CallerFields = {"labels": parse_labels(label)}
        command(new_run=NewRunOptions(job_id, [Path(name) for name in attach], caller_fields), **others)

    return _NEW_JOB(gather)


def json_option(text: str) -> Callable[[_F], _F]:
    """Return the option `--json`, as `as_json: bool`, with its help."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def take_option(default: int, text: str) -> Callable[[_F], _F]:
    """Return the option `--take N`, as `take: int`, with its help."""
    return click.option(
        "--take", type=click.IntRange(min=1), metavar="N", default=default, show_default=True, help=text
    )


def to_option(metavar: str, text: str) -> Callable[[_F], _F]:
    """Return the option `--to`, as `to: str | None`, with its help; the earlier `--output` is an error that says so."""
    earlier = click.option("--output", hidden=True, expose_value=False, callback=_write_to_instead)
    return stack(click.option("--to", metavar=metavar, help=text), earlier)


def _write_to_instead(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise UsageError(f"{context.command_path}: --output is a format; write --to {quote(value)}")


def pass_options(command: Callable[..., None]) -> Callable[..., None]:
    """Pass the options that locate the project to the command as one `options: HostOptions`."""

    @wraps(command)
    def gather(**values: Any) -> None:
        options = HostOptions.take_from(values)
        command(options=options, **values)

    return gather


def definition_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that locate the definition, passed to the command as one `options: HostOptions`."""
    return stack(config_option, workspace_option)(pass_options(command))


def place_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that locate the definition and the state, passed as one `options: HostOptions`."""
    return stack(config_option, workspace_option, storage_option)(pass_options(command))


def _parse_budget(text: str) -> ReasoningBudget:
    if text in ("none", "minimal", "low", "medium", "high"):
        return text  # type: ignore[return-value]  # one of the words
    if text.isdigit():
        return int(text)
    raise UsageError(f"--reasoning-budget {text}: use none, minimal, low, medium, high, or a number of tokens")


def _parse_compaction(text: str) -> Compaction:
    if text in ("auto", "off"):
        return "auto" if text == "auto" else "off"
    word, _, name = text.partition("=")
    if word != "expert" or not name:
        raise UsageError(f"--compaction {text}: use auto, off, or expert=NAME")
    from perstack.core.definitions.settings import CompactionExpert

    return CompactionExpert(expert=name)


def dispatcher_of(host: Host) -> Dispatcher:
    """Return the Host's dispatcher. Raises UsageError without one."""
    dispatcher = host.dispatcher
    if dispatcher is None:
        raise UsageError(
            "no dispatcher is set: give --dispatcher postgresql://USER@HOST/DATABASE, or keep Jobs in PostgreSQL"
        )
    return dispatcher


class _Dollars(click.FloatRange):
    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from perstack.core.definitions.keys import budget_problem

        dollars: float = super().convert(value, param, ctx)
        problem = budget_problem(dollars)
        if problem is not None:
            self.fail(f"{value} {problem}", param, ctx)
        return dollars


DOLLARS = _Dollars(min=0, min_open=True)  # an amount of money; `nan` and `inf` are refused


def _click_option(name: str, option: Option) -> Callable[[_F], _F]:
    """Return the option for a field of `Overrides`."""
    flag = f"--{name.replace('_', '-')}"
    if not option.metavar:
        return click.option(flag, is_flag=True, help=option.help)
    kind: click.FloatRange | click.IntRange | None = DOLLARS if name == "max_cost" else None
    if option.least is not None:
        kind = click.IntRange(min=option.least)
    callback = _resolve_runtime if name == "runtime" else None
    return click.option(flag, type=kind, metavar=option.metavar, help=option.help, callback=callback)


def _resolve_runtime(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the runtime; with a warning None for one of the original, so that the definition chooses."""
    from perstack.core.definitions.sandbox import EARLIER_LOCAL, IGNORED_RUNTIMES, LOCAL

    if value == EARLIER_LOCAL:
        return LOCAL
    if value not in IGNORED_RUNTIMES:
        return value
    text = f"--runtime {value} has no effect: programs run where perstack.toml says, and locally if it says nothing"
    print_err(f"warning: {text}; `perstack plugins` lists the runtimes")
    return None


_PARSERS: Mapping[str, Callable[[str], Any]] = {"reasoning_budget": _parse_budget, "compaction": _parse_compaction}
_OVERRIDES = {name: _click_option(name, option) for name, option in OPTIONS.items()}
runtime_option = _OVERRIDES["runtime"]
_DRIVING = {
    **_OVERRIDES,
    "env_path": env_path_option,
    "permissions": click.option(
        "--permissions",
        metavar="FILE",
        help="Override the permission rules in force with those of this file; the override is recorded.",
    ),
}
_LEADING_OPTIONS = (  # in the order of the help
    *("provider", "model", "reasoning_budget", *BUDGET_OPTIONS, "max_steps", "max_retries", "timeout"),
    *("env_path", "compaction", "runtime", "recording", "permissions", "open", "strict_skills", "unattended"),
)


def _read_widening(file: str) -> Widening:
    from perstack.core.definitions.permissions import Widening
    from perstack.definition_files import read_permissions

    return Widening.of(read_permissions(Path(file)), f"{Path(file).name} [permissions]")


def driving_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a command that drives a Job, passed to it as one `options: HostOptions`."""

    @wraps(command)
    def gather(*, permissions: str | None, **values: Any) -> None:
        from perstack.core.definitions.settings import Overrides
        from perstack.system.user import this_user

        options = HostOptions.take_from(values)
        given = {name: values.pop(name) for name in _OVERRIDES}
        parsed = {name: parse(given[name]) for name, parse in _PARSERS.items() if given[name] is not None}
        overrides = Overrides(
            widening=None if permissions is None else _read_widening(permissions),
            widened_by=None if permissions is None else this_user("cli"),
            **{**given, **parsed},
        )
        command(options=replace(options, overrides=overrides), **values)

    names = (*_LEADING_OPTIONS, *(name for name in _OVERRIDES if name not in _LEADING_OPTIONS))
    return stack(*(_DRIVING[name] for name in names), config_option, workspace_option, storage_option)(gather)


# limits on the total over all Jobs of a series
total_options = stack(
    click.option(
        "--total-cost", type=DOLLARS, metavar="X", help="For iterations: maximum cost of all their Jobs, in US dollars."
    ),
    click.option(
        "--total-tokens",
        type=click.IntRange(min=1),
        metavar="N",
        help="For iterations: maximum tokens of all their Jobs.",
    ),
)


# Headings under which `--help` lists the options of a command that drives a Job: it has some thirty.

_DEFAULT_GROUP = "Options"
_GROUPS: dict[str, tuple[str, ...]] = {  # the options under each heading, by parameter
    _DEFAULT_GROUP: (),  # every other option, `--help` among them
    "An existing Job": (
        *("go_on", "continue_job", "resume_from", "with_files", "yes", "is_answer"),
        *("answer", "settle", "before_compaction"),
    ),
    "Output": ("output", "stream", "quiet", "compact", "no_input"),
    "Model": ("provider", "model", "reasoning_budget", "max_retries", "timeout", "compaction", "recording"),
    "Limits": (*BUDGET_OPTIONS, "max_steps", "total_cost", "total_tokens"),
    "Tools": ("runtime", "permissions", "open", "strict_skills", "unattended"),
    "Project": ("config", "workspace", "storage", "env_path", "dispatcher", "is_driven"),
}
_GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names}


class GroupedCommand(click.Command):
    """A command whose help lists its options under headings, and whose `--env-path` takes several files."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, with an option before each of several values that the original takes after one."""
        return super().parse_args(ctx, _repeat_option_before_values(args, self.params))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of each group, in the order of the command."""
        records: dict[str, list[tuple[str, str]]] = {group: [] for group in _GROUPS}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                records[_GROUP_OF.get(param.name or "", _DEFAULT_GROUP)].append(record)
        for group, rows in records.items():
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)


# Command lines of the original.

_MULTI_VALUE_OPTIONS = ("--env-path", "--env")  # options that take several values in the original


def _repeat_option_before_values(args: Sequence[str], params: Sequence[click.Parameter]) -> list[str]:
    """Return the arguments with `--env-path A B` as two options, if there are more arguments than the command takes."""
    value_counts = {
        name: 0 if param.is_flag or param.count else param.nargs
        for param in params
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
    }
    argument_count = sum(param.nargs for param in params if isinstance(param, click.Argument))
    argument_indexes: list[int] = []
    repeated_options: dict[int, str] = {}  # options of further values, by the values' positions
    index, option = 0, ""
    while index < len(args):
        name, separator, _ = args[index].partition("=")
        if name == "--":
            argument_indexes.extend(range(index + 1, len(args)))
            break
        if not name.startswith("-") or name == "-":
            argument_indexes.append(index)
            if option in _MULTI_VALUE_OPTIONS:
                repeated_options[index] = option
        else:
            option = name
            index += 0 if separator else value_counts.get(name, 0)
        index += 1
    options = dict(list(repeated_options.items())[: max(0, len(argument_indexes) - argument_count)])
    return [word for index, arg in enumerate(args) for word in ((options[index], arg) if index in options else (arg,))]


def original_options(command: _F) -> _F:
    """Add options of the original that have no effect here, so that its command lines run, with a warning."""
    return stack(
        click.option("--env", hidden=True, multiple=True, expose_value=False, callback=_warn_without_effect),
    )(command)


_INSTEAD = {
    "env": "a skill names its variables in `requiredEnv`",
}


def _warn_without_effect(ctx: click.Context, param: click.Parameter, value: object) -> None:
    if value:
        print_err(f"warning: --{param.name} has no effect: {_INSTEAD[str(param.name)]}")
