"""Experts that write and improve definitions, for `perstack create`.

The Experts ship with perstack (`experts/create-expert`) and work under the settings and permissions of the user's
project. They get two tools: `validateDefinition`, and `tryExpert`, which runs an Expert of the new definition in a
bounded copy of the project. A model wrote that definition, so a trial must neither start programs nor reach anything
that the user's own definition does not already reach: `new_items` decides, `Trials` enforces.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from stat import S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, S_ISDIR

from perstack.core.base.text import count
from perstack.core.definitions.permissions import Permissions, Widening
from perstack.core.definitions.project import Project, with_delegates
from perstack.core.definitions.settings import Overrides
from perstack.core.files.file_names import STATE_FOLDER, is_variables
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.events import Event
from perstack.core.runs.events.tool_calls import CallTools
from perstack.dataclass import dataclass
from perstack.definition_files import load_project, load_usable, read_definition
from perstack.doors.shared.status_phrases import spending_line
from perstack.doors.shared.text import describe_problems
from perstack.engine.plugins.registry import load_plugins
from perstack.errors import DefinitionError, PerstackError, PluginError, Problem, SkillError, UsageError
from perstack.host import Host
from perstack.ports.environment import Environment
from perstack.toml_reader.definition_with_includes import DefinitionFile
from perstack.toolkit import ToolContext, Toolkit
from perstack.trust.agreements import Agreement
from perstack.trust.items import TrustItem, digests_of, inert_project, items_to_trust

# Additional reach of a changed definition.

_TRIED_WITH = (
    "skills",
    "provider",
    "providerTools",
)  # keys of a definition that decide how an Expert behaves in a trial


def new_items(previous_project: Project, next_project: Project) -> list[TrustItem]:
    """Return the items of `next_project` that need an agreement and are not in `previous_project`."""
    agreement = Agreement(previous_project, is_vendor=load_plugins((), os.environ).is_vendor)
    known_digests = digests_of(items_to_trust(previous_project, agreement.own))
    return [item for item in items_to_trust(next_project, agreement.own) if item.digest not in known_digests]


COORDINATOR = "create-expert"
DEFINITION = "perstack.toml"
_FILE = Path(__file__).parents[1] / "experts" / "create-expert" / "perstack.toml"
_NO_WORK_OF_ANYBODY = frozenset({".git", ".env", ".env.local", ".venv", "perstack"})
WRITES = ("writeTextFile", "editTextFile")


@cache
def team() -> Project:
    """Return the Experts of `perstack create`, unchanged."""
    return load_project(_FILE).project


def experts_for(project: Project, folder: Path, *, says_yes: bool) -> Project:
    """Return the Experts of `perstack create` with the project's settings; unless `says_yes`, a file change asks."""
    shipped = team()
    shipped_rules = Permissions() if shipped.permissions is None else shipped.permissions
    unasked: list[str] = []
    if says_yes or _is_empty(folder):
        unasked += WRITES
    if says_yes or not (folder / DEFINITION).exists():
        unasked += (f"{name}({DEFINITION})" for name in WRITES)
    project_rules = Permissions() if project.permissions is None else project.permissions
    rules = shipped_rules.model_copy(
        update={
            "deny": (*shipped_rules.deny, *project_rules.deny),
            "ask": (*(rule for rule in shipped_rules.ask if rule not in unasked), *project_rules.ask),
            "allow": (*shipped_rules.allow, *unasked),
        }
    )
    cleared: dict[str, object] = {
        "broken": {},
        "includes": (),
        "workspace": None,
        "compaction": None,
        "agents_md": None,
    }
    return project.model_copy(
        update={**cleared, "experts": shipped.experts, "max_steps": shipped.max_steps, "permissions": rules}
    )


def _is_empty(folder: Path) -> bool:
    """Return whether the folder holds nothing that the user would miss."""
    return all(path.name in _NO_WORK_OF_ANYBODY for path in folder.iterdir())


# Validation of a definition, with the checks of the installed plugins.


async def validate_definition(
    definition: DefinitionFile, env: Environment, plugins: Iterable[object] = ()
) -> tuple[Project | None, tuple[Problem, ...]]:
    """Return the project, None if it has errors, and every problem including warnings. Starts nothing."""
    if not definition.drafts and not definition.problems and definition.report is not None:
        problem, report = "declares no Expert", definition.report.warn
        if not definition.project.model_fields_set:
            problem, report = "is empty", definition.report.error
        report((), f"{problem}: write [experts.NAME] and its `instruction`")
    await _ask_plugins(definition, env, plugins)
    if any(draft.tests is not None for draft in definition.drafts.values()):
        from perstack.expert_tests.written_tests import read_tests  # imported late: few definitions have tests

        read_tests(definition)
    try:
        return definition.to_project(strict=True).project, definition.in_order()
    except DefinitionError as error:
        return None, error.problems


async def _ask_plugins(definition: DefinitionFile, env: Environment, plugins: Iterable[object]) -> None:
    from perstack.diagnostics.definition_checks import check_with_plugins
    from perstack.engine.plugins.registry import load_plugins
    from perstack.system.plugin_modules import EXTRA_MODULES

    try:
        loaded = load_plugins(plugins, env)
    except (UsageError, PluginError) as error:
        # the sections that its plugins define cannot be checked without them
        definition.problems.append(Problem(str(error).removeprefix(f"{EXTRA_MODULES}: "), EXTRA_MODULES))
        return
    await check_with_plugins(definition, loaded, env)


# A copy of the project for a trial.

_EXCLUDED = (".git", ".venv", "node_modules", "__pycache__")
_FILE_TYPES = (S_IFREG, S_IFDIR, S_IFLNK)  # file types: a socket has no content, and reading a pipe would block
_MAX_COPY_BYTES = 64 * 1024 * 1024


def copy_project(folder: Path, target: Path, leaves_out: Callable[[str], bool] = lambda name: False) -> None:
    """Copy a project without its state and the names in `leaves_out`. Raises UsageError if it is too large."""
    remaining_bytes = _MAX_COPY_BYTES

    def leave_out(base: str, names: list[str]) -> set[str]:
        nonlocal remaining_bytes
        excluded = set[str]()
        for name in names:
            status = Path(base, name).lstat()
            is_state = name == STATE_FOLDER and Path(base) == folder
            if name in _EXCLUDED or is_state or leaves_out(name) or S_IFMT(status.st_mode) not in _FILE_TYPES:
                excluded.add(name)
            elif not S_ISDIR(status.st_mode):
                remaining_bytes -= status.st_size
        if remaining_bytes < 0:
            raise UsageError(
                f"{folder} is larger than {_MAX_COPY_BYTES >> 20} MB, too large for a trial: copy perstack.toml and"
                " what it needs into a folder of their own, and name it with --config"
            )
        return excluded

    shutil.copytree(folder, target, symlinks=True, ignore=leave_out)


MAX_TRIALS = 4
_MAX_STEPS = 12
_MAX_TIME_MS = 180_000
_MAX_TOKENS = 200_000
_MAX_REPORT_CHARS = 4_000  # maximum characters of a result, and of all written files together, in a trial's report


@dataclass(frozen=True, slots=True)
class TrialBudget:
    """The remaining allowance for trials."""

    trials: int = MAX_TRIALS
    tokens: int | None = None
    cost: float | None = None

    def remaining_after(self, summary: JobSummary) -> TrialBudget:
        tokens = None if self.tokens is None else self.tokens - summary.usage.total_tokens
        cost = None if self.cost is None else self.cost - (summary.usage.cost_usd or 0)
        return TrialBudget(self.trials - 1, tokens, cost)

    @property
    def is_nothing(self) -> bool:
        return self.trials < 1 or any(amount is not None and amount <= 0 for amount in (self.tokens, self.cost))


class Trials:
    """The trials of one Job that writes a definition."""

    def __init__(
        self,
        folder: Path,
        env: Environment,
        overrides: Overrides,
        plugins: Sequence[object],
        project: Project,
        remaining: TrialBudget,
    ) -> None:
        """Start without trials. `project` is the project before the Job: the user chose its programs and endpoints."""
        self._folder = folder
        self._env = env
        self._overrides = overrides
        self._plugins = plugins
        self._user_project = project
        self._remaining = remaining
        self._one_at_a_time = asyncio.Lock()

    async def try_expert(self, key: str, query: str, on_progress: Callable[[str], None]) -> str:
        """Run the Expert on the query and return a report for the model. Raises SkillError if no trial is possible."""
        async with self._one_at_a_time:
            if self._remaining.is_nothing:
                raise SkillError("the budget for trials is used up: judge by the earlier results, and say so")
            room = Path(tempfile.mkdtemp(prefix="perstack-create-"))
            try:
                return await self._try_in(room, key, query, on_progress)
            except DefinitionError as error:
                raise SkillError("\n".join(describe_problems(error.problems))) from None
            except PerstackError as error:
                raise SkillError(str(error)) from None
            except OSError as error:
                raise SkillError(f"the folder cannot be copied: {error.strerror or error}") from None
            finally:
                await asyncio.to_thread(shutil.rmtree, room, ignore_errors=True)

    async def _try_in(self, room: Path, key: str, query: str, on_progress: Callable[[str], None]) -> str:
        copy = room / "work"
        await asyncio.to_thread(copy_project, self._folder, copy, is_variables)
        if not (copy / DEFINITION).is_file():
            raise SkillError(f"there is no {DEFINITION} yet: write it first")
        # Load the copy, not the folder: the folder may have changed since.
        project = self._confined(load_usable(copy / DEFINITION).project, key)
        files_before = _file_stamps(copy)
        calls: Counter[str] = Counter()

        def note(event: Event, _: bytes) -> None:
            if isinstance(event, CallTools):
                calls.update(f"{event.expert_key}: {decided.tool_name}" for decided in event.calls)

        host = Host(
            project,
            workspace=copy,
            storage=f"file:{room / 'state'}",
            env=self._env,
            overrides=self._bounded_overrides(),
            plugins=self._plugins,
            agreement=Agreement(self._user_project),
        )
        async with host:
            on_progress(f"trying {key}")
            summary = await host.run(key, query, on_event=note)
        self._remaining = self._remaining.remaining_after(summary)
        return _report(summary, calls, copy, files_before)

    def _confined(self, project: Project, key: str) -> Project:
        """Return the project with this Expert and its delegates. Raises SkillError if it reaches something new."""
        if key not in project.experts:
            project.check_broken(key)
            raise SkillError(f"there is no Expert {key!r} in {DEFINITION}; there are: {', '.join(project.experts)}")
        experts = {expert.key: expert for expert in with_delegates(project, (key,))}
        update: dict[str, object] = {
            "audit": None,
            "sandbox": None,
            "retention": None,
            "workspace": None,
            "env_path": (),
            "includes": (),
        }
        project = project.model_copy(update={**update, "experts": experts, "prices": self._user_project.prices})
        untrusted_items = new_items(self._user_project, project)
        additions = [item.shown for item in untrusted_items if not {*_TRIED_WITH}.isdisjoint(item.place.split("."))]
        if additions:
            text = "; ".join(additions)
            raise SkillError(f"{key} cannot be tried before a person agrees to what it starts or reaches: {text}")
        untrusted_digests = digests_of(untrusted_items)
        own = Agreement(self._user_project, is_vendor=load_plugins((), os.environ).is_vendor).own
        return inert_project(project, own, lambda digest: digest not in untrusted_digests)

    def _bounded_overrides(self) -> Overrides:
        remaining, overrides = self._remaining, self._overrides
        widening = overrides.widening or Widening(source="")
        return replace(
            overrides,
            max_steps=min(_MAX_STEPS, overrides.max_steps or _MAX_STEPS),
            max_time=min(_MAX_TIME_MS, overrides.max_time or _MAX_TIME_MS),
            max_tokens=min(_MAX_TOKENS, remaining.tokens or _MAX_TOKENS),
            max_cost=remaining.cost,
            unattended=True,
            widening=Widening(source="perstack create", deny=("exec", *widening.deny, *widening.ask)),
            output=None,
        )


def _file_stamps(folder: Path) -> dict[str, tuple[int, int]]:
    statuses: dict[str, tuple[int, int]] = {}
    for base, _, names in os.walk(folder):
        for name in names:
            path = Path(base, name)
            status = path.lstat()
            statuses[str(path.relative_to(folder))] = (status.st_mtime_ns, status.st_size)
    return statuses


def _report(summary: JobSummary, calls: Counter[str], copy: Path, files_before: dict[str, tuple[int, int]]) -> str:
    return "\n".join(_report_lines(summary, calls, copy, files_before))


def _report_lines(
    summary: JobSummary, calls: Counter[str], copy: Path, files_before: dict[str, tuple[int, int]]
) -> Iterator[str]:
    reason = summary.error or summary.exceeded or summary.asks
    yield f"{summary.status}, {spending_line(summary)}{f': {reason}' if reason else ''}"
    if calls:
        yield "called: " + ", ".join(f"{name} ({count(times, 'time')})" for name, times in calls.items())
    if summary.text:
        yield f"answered:\n{_shorten(summary.text, _MAX_REPORT_CHARS)}"
    changed_names = [name for name, status in sorted(_file_stamps(copy).items()) if files_before.get(name) != status]
    chars_left = _MAX_REPORT_CHARS
    for name in changed_names:
        path = copy / name
        text = path.read_bytes()[:chars_left].decode("utf-8", "replace") if chars_left > 0 and _is_plain(path) else ""
        chars_left -= len(text)
        yield f"wrote {name}:\n{_shorten(text, chars_left)}" if text else f"wrote {name}"


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _shorten(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"


# Tools of the Experts that write definitions.

NAME = "@perstack/create"
_MAX_DEFINITION_CHARS = 1 << 20  # maximum characters of a definition


def tools_for(
    folder: Path, env: Environment, plugins: Sequence[object], trials: Trials, on_tried: Callable[[str, str], None]
) -> Toolkit:
    """Return the skill `@perstack/create` for one folder. `on_tried` receives each Expert and query that is tried."""
    kit = Toolkit(NAME)

    @kit.tool(name="validateDefinition", effect="readOnly")
    async def validate(text: str = "") -> str:
        """Check perstack.toml as `perstack validate` does: every problem with its line. Writes and starts nothing.

        Args:
            text: the whole text that perstack.toml would have; empty to check the file as it is
        """
        if len(text) > _MAX_DEFINITION_CHARS:
            raise SkillError(f"a definition has at most {_MAX_DEFINITION_CHARS:,} characters")
        path = folder / DEFINITION
        if not text and not path.is_file():
            raise SkillError(f"there is no {DEFINITION} yet: give its text")
        definition = await asyncio.to_thread(read_definition, path, text or None)
        project, problems = await validate_definition(definition, env, plugins)
        return "\n".join(
            _definition_lines(project, [line.replace(f"{folder}/", "") for line in describe_problems(problems)])
        )

    @kit.tool(name="tryExpert")
    async def attempt(expert: str, query: str, context: ToolContext) -> str:  # noqa: D417 - shown to a model, which gives no context
        """Run an Expert of perstack.toml on a query in a copy of the folder, with few steps. Programs are not started.

        Args:
            expert: its name
            query: what it is asked
        """
        on_tried(expert, query)
        return await trials.try_expert(expert, query, context.tool_call.on_progress)

    return kit


def _definition_lines(project: Project | None, problems: Sequence[str]) -> Sequence[str]:
    lines = problems if len(problems) > 1 else ()
    if project is None:
        return lines
    return (*lines, f"ok: {count(len(project.experts), 'Expert')}: {', '.join(project.experts)}")
