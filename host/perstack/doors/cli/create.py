"""The command `perstack create`."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import click

from perstack.config.project_place import ProjectPlace
from perstack.core.base.text import one_line
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import Overrides
from perstack.core.jobs.summary import JobSummary
from perstack.core.messages.messages import ToolCallPart
from perstack.core.runs.events import Event
from perstack.core.runs.events.changed_calls import ChangeCall
from perstack.core.runs.events.generations import FinishGeneration
from perstack.core.runs.events.questions import DecideApproval
from perstack.core.runs.events.tool_calls import FinishToolCall
from perstack.definition_files import load_project, load_usable, open_definition
from perstack.doors.cli.driving import can_ask, drive_interruptible, report_outcome
from perstack.doors.cli.first_run.templates import model_lines
from perstack.doors.cli.options import GroupedCommand, HostOptions, driving_options
from perstack.doors.cli.output import JobOutput, OutputOptions, output_options
from perstack.doors.cli.param_types import read_query
from perstack.doors.cli.terminal import confirm, print_err
from perstack.doors.create import (
    COORDINATOR,
    DEFINITION,
    WRITES,
    TrialBudget,
    Trials,
    experts_for,
    tools_for,
)
from perstack.doors.shared.agreement_items import items_of
from perstack.doors.shared.next_step_phrases import command
from perstack.doors.shared.signals import INTERRUPTED
from perstack.doors.shared.status_phrases import next_step_of_job
from perstack.engine.log.run_session import OnEvent
from perstack.engine.plugins.registry import load_plugins
from perstack.errors import DefinitionError, UsageError
from perstack.expert_tests.written_tests import read_tests
from perstack.host import Host
from perstack.next_steps import Resume
from perstack.toml_reader.source import NotRead, read_bounded
from perstack.trust.agreements import Agreement, TrustStore, describe_items

_RESUME = "perstack create --resume"


@click.command("create", cls=GroupedCommand)
@click.argument("query", required=False)
@click.option("--resume", "job", metavar="JOB", help=("Resume this Job of `perstack create` instead of starting one."))
@click.option("--yes", is_flag=True, help="Change existing files without confirmation.")
@output_options
@driving_options
def create_command(
    query: str | None, job: str | None, yes: bool, output_options: OutputOptions, options: HostOptions
) -> None:
    """Let Experts write the perstack.toml that QUERY describes, or improve an existing one.

    They check it as `perstack validate` does, and try it on a sample query in a copy of the folder, where no program is
    started. Before an existing file is changed, the difference is shown for confirmation. QUERY `-`, or no QUERY, reads
    from stdin.
    """
    if job is not None and query is not None:
        raise UsageError("--resume continues what was asked before: leave QUERY out")
    options = _in_definition_folder(options)
    folder, before = Path(options.workspace_path), _current_project(options)
    lines = _CreateOutput(output_options, folder)
    if job is None and (folder / DEFINITION).exists() and not yes and not can_ask(asks=lines.may_ask):
        raise UsageError(
            f"{folder / DEFINITION} exists, and without a terminal nobody can confirm a change: give --yes, or run this"
            " at a terminal"
        )
    text = "" if job is not None else _fact_lines(read_query(query), folder, before, options.overrides)
    tried: list[tuple[str, str]] = []
    host = _open_host(options, folder, before, tried, says_yes=yes)

    async def run_or_resume(on_event: OnEvent) -> JobSummary:
        if job is None:
            return await host.run(COORDINATOR, text, on_event=on_event)
        job_id = await host.jobs.complete_id(job)
        summary = await host.job(job_id)
        if summary.expert_key != COORDINATOR:
            raise UsageError(f"Job {summary.id} was not begun by `perstack create`: use `perstack resume {summary.id}`")
        await lines.begin(host, job_id)
        return summary if summary.asking is not None else await host.resume(job_id, on_event=on_event)

    final = drive_interruptible(host, run_or_resume, lines)
    if final is None:
        sys.exit(INTERRUPTED)
    status = report_outcome(final, lines, _how_to_continue(final))
    sys.exit(_report_written(lines, before, tried, says_yes=yes) if final.status == "completed" else status)


class _CreateOutput(JobOutput):
    def __init__(self, output_options: OutputOptions, folder: Path) -> None:
        super().__init__(output_options)
        self.folder = folder
        self.written: list[str] = []
        self._definition = _read_or_none(folder / DEFINITION)
        self._paths: dict[str, str] = {}  # paths by the id of calls without a result

    def __call__(self, event: Event, line: bytes) -> None:
        super().__call__(event, line)
        if isinstance(event, FinishGeneration):
            for part in event.reply:
                if isinstance(part, ToolCallPart) and part.tool_name in WRITES:
                    self._paths[part.tool_call_id] = str(part.args.get("path"))
        elif isinstance(event, ChangeCall) and event.tool_call_id in self._paths:
            self._paths[event.tool_call_id] = str(event.args.get("path"))
        elif isinstance(event, DecideApproval) and event.decision == "no":
            self._paths.pop(event.tool_call_id, None)
        elif isinstance(event, FinishToolCall):
            path = self._paths.pop(event.tool_call_id, None)
            if path is not None and path not in self.written and not event.is_error:
                self.written.append(path)

    def changed_files(self) -> list[str]:
        """Return the written files, including perstack.toml if an earlier process of this Job changed it."""
        is_new = DEFINITION not in self.written and _read_or_none(self.folder / DEFINITION) != self._definition
        return [*self.written, DEFINITION] if is_new else self.written


def _read_or_none(path: Path) -> bytes | None:
    try:
        return read_bounded(path)
    except (NotRead, OSError):
        return None


def _in_definition_folder(options: HostOptions) -> HostOptions:
    """Return the options with the folder of the written perstack.toml as the workspace. Raises UsageError."""
    place = options.find()
    if options.config is not None and Path(options.config).name != DEFINITION:
        raise UsageError(f"--config {options.config}: only a file named {DEFINITION} can be improved")
    if options.config is not None and options.workspace is not None:
        raise UsageError("--config and --workspace both name the folder here: leave one of them out")
    config = None if options.workspace is not None else place.config
    folder = place.folder if config is None else config.parent
    if folder != Path.cwd():
        print_err(f"note: the definition is {one_line(str(folder / DEFINITION))}")
    return replace(options, workspace=str(folder))


def _current_project(options: HostOptions) -> Project:
    """Return the current definition, for its settings; an empty one if it cannot be used."""
    config = options.find().config
    if config is None:
        return Project()
    try:
        return load_usable(config).project
    except DefinitionError:
        print_err(f"warning: {config} has errors, so its settings are not used; `perstack validate` lists them")
        return Project()


def _fact_lines(query: str, folder: Path, previous_project: Project, overrides: Overrides) -> str:
    if (folder / DEFINITION).exists():
        names = ", ".join(previous_project.experts)
        facts = f"There is a {DEFINITION} already{f', with the Experts {names}' if names else ''}: improve that."
    else:
        facts = f"There is no {DEFINITION} in the folder yet."
    if overrides.provider is not None and isinstance(overrides.model, str):
        facts += f"\nAt its top it names this model:\n{model_lines(overrides.provider, overrides.model)}"
    return f"{query}\n\n{facts}"


def _open_host(
    options: HostOptions, folder: Path, previous_project: Project, tried: list[tuple[str, str]], *, says_yes: bool
) -> Host:
    agreement = Agreement(previous_project, is_vendor=load_plugins((), os.environ).is_vendor)
    agreement.adopt(previous_project)
    agreement.check_definition()  # the Experts that write work under its settings
    project = experts_for(previous_project, folder, says_yes=says_yes)
    env, overrides = options.env(project), options.overrides
    # the given limits cover this Job and its trials, which are separate Jobs: each gets half
    tokens = None if overrides.max_tokens is None else max(1, overrides.max_tokens // 2)
    cost = None if overrides.max_cost is None else overrides.max_cost / 2
    trials = Trials(folder, env, overrides, (), previous_project, TrialBudget(tokens=tokens, cost=cost))
    kit = tools_for(folder, env, (), trials, lambda key, query: tried.append((key, query)))
    halved_overrides = replace(overrides, max_tokens=tokens, max_cost=cost)
    return options.host_of(project, env=env, overrides=halved_overrides, plugins=[kit], agreement=Agreement(Project()))


def _how_to_continue(summary: JobSummary) -> str:
    """Return how the Job continues: not by the usual commands, which lack the tools that check a definition."""
    step = next_step_of_job(summary)
    if isinstance(step, Resume):
        return f"continue with: {command(step).replace('perstack resume', _RESUME)}"
    return f"continue with: {_RESUME} {summary.id}"


def _report_written(
    lines: _CreateOutput, previous_project: Project, tried: list[tuple[str, str]], *, says_yes: bool
) -> int:
    """Report the written files and next commands, and return the exit status: 1 if there is no usable definition."""
    changed_files = lines.changed_files()
    for name in changed_files:
        lines.remark(f"wrote {name}")
    path = lines.folder / DEFINITION
    if not path.is_file():
        print_err(f"no {DEFINITION} was written: describe in more detail what the Expert should do")
        return 1
    try:
        project = load_project(path).project
    except DefinitionError as error:
        print_err(f"{path} has errors: {one_line(str(error.problems[0]))}; `perstack validate` lists all")
        return 1
    if not changed_files:
        lines.remark("nothing was changed")
        return 0
    _ask_agreement(path, says_yes=says_yes)
    for line in _next_commands(lines.folder, previous_project, project, tried):
        lines.remark(f"next: {line}")
    return 0


def _ask_agreement(path: Path, *, says_yes: bool) -> None:
    """Show what the written definition needs agreement for, and ask for it, since a model wrote the definition."""
    place, store = ProjectPlace(path.parent, path), TrustStore.of_user()
    missing_items = Agreement(Project(path=str(path))).missing(items_of(place, with_env=False).items)
    if not missing_items:
        return
    print_err(f"{DEFINITION} does none of this before you agree:")
    for line in describe_items(missing_items, store.read(path.parent)):
        print_err(one_line(line))
    if says_yes or (can_ask(asks=True) and confirm("Agree to all of this?")):
        store.agree(path.parent, missing_items)
    else:
        print_err("not agreed; to see it again: perstack trust")


def _next_commands(
    folder: Path, previous_project: Project, project: Project, tried: list[tuple[str, str]]
) -> list[str]:
    changed_keys = [key for key, expert in project.experts.items() if previous_project.experts.get(key) != expert]
    delegate_keys = {name for expert in project.experts.values() for name in expert.delegates}
    main_keys = [key for key in changed_keys if key not in delegate_keys] or changed_keys or list(project.experts)
    key, query = next(((key, query) for key, query in reversed(tried) if key in main_keys), (main_keys[0], "QUERY"))
    prefix = "" if folder == Path.cwd() else f"cd {shlex.quote(os.path.relpath(folder))} && "
    commands = [f"perstack run {shlex.quote(key)} {shlex.quote(one_line(query))}"]
    if any(test.expert == key for test in read_tests(open_definition(folder / DEFINITION, must_be_whole=False))):
        commands.append(f"perstack test {shlex.quote(key)}")
    return [prefix + command for command in commands]
