"""Options that several commands share, and the Host opened from them."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, TypeVar

import click

from perstack.config.load import LoadedProject, load_usable
from perstack.config.project import ProjectPlace, check_workspace, find_place
from perstack.core.definitions.experts import Compaction, CompactionExpert
from perstack.core.definitions.experts import ReasoningBudget as Budget
from perstack.core.definitions.keys import wrong_budget
from perstack.core.definitions.overrides import Overrides
from perstack.core.definitions.permissions import Widening
from perstack.core.definitions.project import Project
from perstack.dataclass import dataclass
from perstack.doors.cli.terminal import err
from perstack.doors.shared.next_steps import cli_phrase
from perstack.errors import DefinitionError, UsageError
from perstack.ports.environment import Environment
from perstack.system.user import this_user

if TYPE_CHECKING:
    from perstack.config.trust import Agreement
    from perstack.host import Host
    from perstack.ports.dispatcher import Dispatcher


# The dispatcher of a command.

_F = TypeVar("_F", bound=Callable[..., object])

_TEXT = "Who says which worker drives what; by default that of [workers], or a PostgreSQL storage."


def dispatcher_option(command: _F) -> _F:
    """Add `--dispatcher ADDRESS`, as `dispatcher: str | None`."""
    return click.option("--dispatcher", metavar="ADDRESS", help=_TEXT)(command)


def drive_options(command: _F) -> _F:
    """Add `--drive`, as `is_driven: bool`, and `--dispatcher`."""
    text = "Drive the Job here, and do not leave it to a worker."
    return click.option("--drive", "is_driven", is_flag=True, help=text)(dispatcher_option(command))


def dispatcher_of(host: Host) -> Dispatcher:
    """Return the Host's dispatcher. Raises UsageError without one."""
    found = host.dispatcher
    if found is None:
        raise UsageError(
            "there is no dispatcher, which says who drives what: give --dispatcher postgresql://USER@HOST/DATABASE,"
            " or keep Jobs in PostgreSQL"
        )
    return found


WORKSPACE = "The directory Experts work in; by default `workspace` of perstack.toml, or where you are."
CONFIG = "perstack.toml; by default found from where you are, or from --workspace, upward."


def place_options(command: _F) -> _F:
    """Add the options that locate the definition and the state."""
    for option in (
        click.option("--storage", metavar="SCHEME:PLACE", help="Where Jobs are kept, e.g. sqlite:perstack/state.db."),
        click.option("--workspace", metavar="DIR", help=WORKSPACE),
        click.option("--config", metavar="FILE", help=CONFIG),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class PlaceOptions:
    """The values of `place_options`."""

    config: str | None
    workspace: str | None
    storage: str | None
    folder: str = "."
    """The current folder, used if no workspace is named."""
    into: Path | None = None
    """A folder to work in that does not change where the project is found."""
    dispatcher: str | None = None
    """The address of the dispatcher; None for that of the definition or storage."""

    @property
    def named(self) -> str | Path:
        """The named workspace; the default if none is named."""
        if self.into is not None:
            return self.into.resolve()
        return "." if self.workspace is None else Path(self.workspace).resolve()

    @property
    def given(self) -> str:
        """The given options in shell form, each with a leading space."""
        options = {"--config": self.config, "--workspace": self.workspace, "--storage": self.storage}
        return "".join(f" {name} {quote(value)}" for name, value in options.items() if value is not None)

    def load(self) -> LoadedProject:
        """Return the project and its files. Warnings go to stderr. Raises UsageError if there is no file."""
        loaded = load_usable(self.find().required())
        for problem in loaded.warnings:
            err(f"warning: {problem}")
        if loaded.project.broken:
            names = ", ".join(loaded.project.broken)
            err(f"warning: {loaded.files[0]}: cannot be run: {names}; `perstack validate` says why")
        return loaded

    def project(self, *, required: bool) -> Project:
        """Return the project; an empty one if there is no file and it is not required."""
        if required:
            return self.load().project
        found = self.find().config
        return Project() if found is None else load_usable(found).project

    def find(self) -> ProjectPlace:
        """Return where the project is. Raises UsageError for a named file or folder that does not exist."""
        if self.workspace is not None and not Path(self.workspace).is_dir():
            raise UsageError(f"--workspace {self.workspace}: no such directory")
        if self.config is not None and not Path(self.config).is_file():
            raise UsageError(f"--config {self.config}: no such file")
        return find_place(self.workspace or self.folder, self.config)

    def reader(self) -> Host:
        """Return a Host for looking at Jobs, also if the definition is broken."""
        gc.freeze()  # what was imported stays: among thousands of Jobs each collection would go through it again
        try:
            return self.writer()
        except DefinitionError:
            project = Project()
            if self.storage is None:
                text = f"warning: perstack.toml cannot be used, so Jobs are looked for in {project.storage}"
                err(f"{text}; `perstack validate` says why, --storage names another place")
            return self.host(project, env=dict(os.environ))

    def writer(self) -> Host:
        """Return a Host for changing stored Jobs, without Experts, also if there is no definition.

        An existing definition must be usable, since it names the anchor that receives changes. Raises DefinitionError.
        """
        # imported late: an editor gets its first answer without this
        from perstack.config.trust import environment_of
        from perstack.engine.context.connections import state_environment

        project = self.project(required=False)
        place = self.find()
        audited = project.audit is not None
        env = environment_of(project, place) if audited else state_environment(project, place, self.storage)
        return self.host(project, env=env)

    def host(
        self,
        project: Project,
        *,
        env: Mapping[str, str],
        overrides: Overrides | None = None,
        plugins: Iterable[object] = (),
        agreement: Agreement | None = None,
    ) -> Host:
        """Return a Host on a project of this place."""
        from perstack.host import Host

        return Host(
            project,
            workspace=self.named,
            storage=self.storage,
            env=env,
            overrides=overrides,
            plugins=plugins,
            place=self.find(),
            dispatcher=self.dispatcher,
            agreement=agreement,
        )


def new_job_options(command: _F) -> _F:
    """Add the options of a new Job: `job_id`, and tuples `attach` and `label`."""
    attach = "An image, a PDF or a text that the model sees with QUERY; may be given again."
    label = "A label of the Job, to find it by; may be given again."
    for option in (
        click.option("--label", multiple=True, metavar="KEY=VALUE", help=label),
        click.option("--attach", multiple=True, metavar="FILE", help=attach),
        click.option("--job-id", metavar="ID", help="The new Job's id: up to 128 of A-Z a-z 0-9 _ -"),
    ):
        command = option(command)
    return command


def parse_budget(text: str | None) -> Budget | None:
    """Return a typed reasoning budget. Raises UsageError."""
    if text is None or text in ("none", "minimal", "low", "medium", "high"):
        return text  # type: ignore[return-value]  # one of the words
    if text.isdigit():
        return int(text)
    raise UsageError(f"--reasoning-budget {text}: use none, minimal, low, medium, high, or a number of tokens")


def parse_compaction(text: str | None) -> Compaction | None:
    """Return a typed `auto`, `off` or `expert=NAME`. Raises UsageError."""
    if text is None:
        return None
    if text in ("auto", "off"):
        return "auto" if text == "auto" else "off"
    word, _, name = text.partition("=")
    if word != "expert" or not name:
        raise UsageError(f"--compaction {text}: use auto, off, or expert=NAME")
    return CompactionExpert(expert=name)


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings that a Job is driven with: the values of `driving_options`."""

    place: PlaceOptions
    overrides: Overrides
    env_paths: tuple[str, ...]
    permissions: str | None = None
    """The file that `overrides.widening` was read from."""

    def env(self, project: Project, *, confirm: bool = True) -> Environment:
        """Return the environment with the `.env` files, by default only with addresses that the user agreed to.

        Reports on stderr what is left out of them.
        """
        from perstack.config.trust import environment_of

        env = environment_of(project, self.place.find(), self.env_paths, confirm=confirm)
        for note in env.warnings:
            err(f"warning: {note.said(cli_phrase)}")
        return env

    def dispatched(self, dispatcher: str | None) -> Setup:
        """Return the setup with this dispatcher; None for the default one."""
        return replace(self, place=replace(self.place, dispatcher=dispatcher))

    def host(
        self,
        project: Project | None = None,
        *,
        plugins: Iterable[object] = (),
        agreement: Agreement | None = None,
    ) -> Host:
        """Return the Host for driving, for the given project or the one read now, with additional plugins.

        Raises DefinitionError or UsageError before anything is written.
        """
        project = project or self.place.project(required=True)
        check_workspace(project, self.place.find().workspace(project, self.place.named))
        return self.place.host(
            project, env=self.env(project), overrides=self.overrides, plugins=plugins, agreement=agreement
        )


def _widening(file: str) -> Widening:
    """Return the permissions of a file. Raises UsageError and DefinitionError."""
    from perstack.config.load import read_permissions

    return Widening.of(read_permissions(Path(file)), f"{Path(file).name} [permissions]")


def driving_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a command that drives a Job, passed to it as one `setup: Setup`."""

    @wraps(command)
    def gather(
        *,
        provider: str | None,
        model: str | None,
        reasoning_budget: str | None,
        max_steps: int | None,
        max_retries: int | None,
        timeout: int | None,
        unattended: bool,
        strict_skills: bool,
        max_cost: float | None,
        max_tokens: int | None,
        max_time: int | None,
        max_tool_calls: int | None,
        compaction: str | None,
        permissions: str | None,
        runtime: str | None,
        recording: str | None,
        env_path: tuple[str, ...],
        config: str | None,
        workspace: str | None,
        storage: str | None,
        **others: object,
    ) -> None:
        budget = parse_budget(reasoning_budget)
        overrides = Overrides(model, provider, budget, max_steps, max_retries, timeout, unattended, strict_skills)
        overrides = replace(overrides, runtime=runtime, recording=recording)
        overrides = replace(
            overrides, max_cost=max_cost, max_tokens=max_tokens, max_time=max_time, max_tool_calls=max_tool_calls
        )
        overrides = replace(overrides, compaction=parse_compaction(compaction))
        if permissions is not None:
            overrides = replace(overrides, widening=_widening(permissions), widened_by=this_user("cli"))
        command(setup=Setup(PlaceOptions(config, workspace, storage), overrides, env_path, permissions), **others)

    return _model_options(place_options(gather))


class _Dollars(click.FloatRange):
    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        dollars: float = super().convert(value, param, ctx)
        problem = wrong_budget(dollars)
        if problem is not None:
            self.fail(f"{value} {problem}", param, ctx)
        return dollars


DOLLARS = _Dollars(min=0, min_open=True)
"""An amount of money; `nan` and `inf` are refused."""


def total_options(command: _F) -> _F:
    """Add the limits for all Jobs of iterations together, as `total_cost` and `total_tokens`."""
    for option in (
        click.option(
            "--total-tokens",
            type=click.IntRange(min=1),
            metavar="N",
            help="For iterations: tokens that all their Jobs may use together.",
        ),
        click.option(
            "--total-cost",
            type=DOLLARS,
            metavar="X",
            help="For iterations: US dollars that all their Jobs may cost together.",
        ),
    ):
        command = option(command)
    return command


def _model_options(command: _F) -> _F:
    for option in (
        click.option(
            "--unattended",
            is_flag=True,
            help="Nobody answers: what a tool at work asks is declined, and what needs approval denied.",
        ),
        click.option(
            "--strict-skills",
            is_flag=True,
            help="End a Run before its model is called if any of its skills is missing.",
        ),
        click.option(
            "--permissions", metavar="FILE", help="Lay the rules of this file over those in force; it is recorded."
        ),
        click.option(
            "--recording",
            metavar="FILE",
            help="Play this recording in place of the model and the tools; no key is needed.",
        ),
        click.option("--runtime", metavar="NAME", help="Where programs of tools run; `perstack plugins` lists them."),
        click.option(
            "--compaction", metavar="HOW", help="What becomes of a nearly full context: auto, off, or expert=NAME."
        ),
        click.option("--env-path", multiple=True, metavar="FILE", help="A .env file to read; may be given again."),
        click.option("--timeout", type=click.IntRange(min=1), metavar="MS", help="Milliseconds for one generation."),
        click.option(
            "--max-retries", type=click.IntRange(min=0), metavar="N", help="How often a generation is retried."
        ),
        click.option(
            "--max-steps", type=click.IntRange(min=0), metavar="N", help="Steps of the whole Job, over all Runs."
        ),
        click.option(
            "--max-tool-calls", type=click.IntRange(min=1), metavar="N", help="Calls of tools that the Job may make."
        ),
        click.option(
            "--max-time", type=click.IntRange(min=1), metavar="MS", help="Milliseconds that the Job may work."
        ),
        click.option("--max-tokens", type=click.IntRange(min=1), metavar="N", help="Tokens that the Job may use."),
        click.option(
            "--max-cost",
            type=DOLLARS,
            metavar="X",
            help="US dollars that the Job may cost.",
        ),
        click.option("--reasoning-budget", metavar="LEVEL", help="none, minimal, low, medium, high, or tokens."),
        click.option("--model", metavar="NAME", help="The model to use."),
        click.option("--provider", metavar="NAME", help="The provider to use; `perstack plugins` lists them."),
    ):
        command = option(command)
    return command
