"""pytest integration: the benches of fixture `perstack_host`, and tests of definition files as pytest items."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from pydantic import ValidationError

from perstack.config.project_place import find_place
from perstack.core.base.records import first_problem
from perstack.core.base.usage import Cost
from perstack.core.definitions.keys import FROM_FILE
from perstack.core.definitions.settings import Overrides
from perstack.core.jobs.summary import JobSummary
from perstack.core.permissions.policy_calls import PolicyCall
from perstack.dataclass import dataclass
from perstack.definition_files import load_usable, open_definition
from perstack.errors import DefinitionError, UsageError
from perstack.expert_tests.models import Expected, ExpectedStatus
from perstack.expert_tests.written_tests import WrittenTest, read_tests
from perstack.host import Host
from perstack.system.user import this_user
from perstack.testing.experts.results import judge, matches_call, shown_call
from perstack.testing.experts.run_tests import (
    Bench,
    ExpertTestOutcome,
    TestModel,
    contents,
    copy_folder,
    facts_of,
    play_file,
    play_script,
    run_tests,
    without_effects,
    without_signing_key,
)
from perstack.testing.scripted import ScriptedProvider, ScriptLike
from perstack.trust.agreements import environment_of


@dataclass(frozen=True, slots=True)
class Ran:
    """A Job that has ended or stopped, for assertions."""

    summary: JobSummary
    workspace: Path  # working directory of its tools
    storage: str  # storage address: `perstack log JOB --storage …` shows the Job
    calls: tuple[PolicyCall, ...]  # calls of all its Runs, with `tool`, `skill` and `args`

    @property
    def text(self) -> str:
        """The result; empty if there is none."""
        return self.summary.text or ""

    @property
    def cost(self) -> Cost | None:
        """US dollars; `unknown` if a price is unknown, None if nothing was spent."""
        return "unknown" if self.summary.unpriced_tokens else self.summary.usage.cost_usd

    def called(self, rule: str) -> tuple[PolicyCall, ...]:
        """Return the calls that a permission rule matches under `deny`. Raises ValueError for an invalid rule."""
        return tuple(policy_call for policy_call in self.calls if matches_call(rule, policy_call))

    def read(self, path: str) -> str:
        """Return the text of a file in the workspace. Raises AssertionError if it cannot be read."""
        content = contents(self.workspace, (path,))[path]
        if not isinstance(content, str):
            raise AssertionError(f"{path} {content.why}")
        return content

    def expect(
        self,
        *,
        status: ExpectedStatus = "completed",
        called: Sequence[str] = (),
        not_called: Sequence[str] = (),
        result_contains: Sequence[str] = (),
        result_matches: str | None = None,
        files: dict[str, str] | None = None,
        max_steps: int | None = None,
        max_cost: float | None = None,
    ) -> None:
        """Raise AssertionError with all deviations; arguments as in perstack.toml. Raises UsageError."""
        fields = {
            "status": status,
            "called": tuple(called),
            "notCalled": tuple(not_called),
            "resultContains": tuple(result_contains),
            "resultMatches": result_matches,
            "files": files or {},
            "maxSteps": max_steps,
            "maxCost": max_cost,
        }
        try:
            expected = Expected.model_validate(fields, context=FROM_FILE)
        except ValidationError as error:
            raise UsageError(" ".join(first_problem(error))) from None
        texts = contents(self.workspace, expected.files)
        reasons = judge(expected, replace(facts_of(self.summary, self.calls), files=texts))
        if reasons:
            command = f"perstack log {self.summary.id} --storage {self.storage}"
            raise AssertionError("\n".join((*reasons, f"{self}", command)))

    def __str__(self) -> str:
        """Return one line with the Job's status and calls."""
        calls = ", ".join(map(shown_call, self.calls)) or "none"
        return f"Job {self.summary.id} of {self.summary.expert_key}: {self.summary.status}; calls: {calls}"


class HostBench:
    """A definition, a model and a workspace on which Experts are run, each Job on its own Host."""

    def __init__(self, config: Path, test_model: TestModel, folder: Path) -> None:
        """Keep the settings. Hosts are created when needed."""
        self.config = config
        self.workspace = folder / "workspace"
        self.storage = f"file:{folder / 'state'}"
        self._test_model = test_model
        self._numbers = count(1)

    @property
    def script(self) -> ScriptedProvider:
        """The provider that plays the script; its `requests` are those that the host sent.

        Raises UsageError without a script.
        """
        for plugin in self._test_model.plugins:
            if isinstance(plugin, ScriptedProvider):
                return plugin
        raise UsageError("no script plays the model of these tests")

    def host(self) -> Host:
        """Return a Host with these settings, for uses beyond `run`. Enter it with `async with`."""
        project = load_usable(self.config).project
        env = environment_of(project, find_place(self.config.parent, self.config))
        return Host(
            without_effects(project),
            workspace=self.workspace,
            storage=self.storage,
            env=without_signing_key(project, self._test_model.env(env)),
            overrides=self._test_model.overrides,
            plugins=self._test_model.plugins,
        )

    def run(self, expert: str, query: str, *, answers: Sequence[str] = ()) -> Ran:
        """Drive a new Job until it ends or stops, giving `answers` in order.

        Raises the errors of `Host.run` and `answer`.
        """
        return asyncio.run(self.arun(expert, query, answers=answers))

    async def arun(self, expert: str, query: str, *, answers: Sequence[str] = ()) -> Ran:
        """Drive a new Job as `run` does, in the running event loop."""
        async with self.host() as host:
            summary = await host.run(expert, query, job_id=f"test-{next(self._numbers)}")
            for text in answers:
                if summary.asking is None or summary.status != "stoppedByInteractiveTool":
                    break
                summary = await host.answer(text, question_id=summary.asking.id, by=this_user("test"), drive=True)
            return Ran(summary, self.workspace, self.storage, await host.audit.calls(summary.id))


class MakeBench:
    """The function of the fixture `perstack_host`, which creates benches in the folder of one test."""

    def __init__(self, start: Path, folder: Path) -> None:
        """Search definitions from `start` upwards, and create benches in `folder`."""
        self._start = start
        self._folder = folder
        self._numbers = count(1)

    def __call__(
        self,
        model: ScriptLike | Path | None = None,
        *,
        config: str | Path | None = None,
        workspace: str | Path | None = None,
        live: Iterable[str] = (),
    ) -> HostBench:
        """Return a bench whose model plays a script (an object or a file's path) or a recording; None: the real model.

        Paths are relative to the definition's folder. `config` is a perstack.toml; by default the one in the test's
        folder or above it. `workspace` is a folder that is copied for the Experts. `live` are tools that really run
        although a recording is played. Raises UsageError for unusable arguments.
        """
        config_path = find_place(self._start, config).require_path()
        folder = self._folder / f"perstack-{next(self._numbers)}"
        folder.mkdir()
        if workspace is None:
            (folder / "workspace").mkdir()
        else:
            copy_folder(Path(workspace), folder / "workspace")
        if model is None:
            test_model = TestModel(Overrides())
        elif isinstance(model, str | Path):
            test_model = play_file(config_path.parent / model, live)
        else:
            test_model = play_script(model)
        return HostBench(config_path, test_model, folder)


class DefinitionItems(pytest.File):
    """A definition file that was named on the command line."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield each of its tests as a pytest item."""
        definition = open_definition(self.path, must_be_whole=False)
        try:
            project = definition.to_project(strict=False).project
            tests = read_tests(definition)
            if any(problem.severity == "error" for problem in definition.problems):
                raise DefinitionError(definition.in_order())
        except DefinitionError as error:
            raise self.CollectError(str(error)) from None
        env = environment_of(project, find_place(self.path.parent, self.path))
        for written in tests:
            bench = Bench(project, env, self.path.parent)
            yield DefinitionItem.from_parent(  # pyright: ignore[reportUnknownMemberType] - untyped in pytest
                self, name=written.title, written=written, bench=bench
            )


class ExpertFailed(Exception):
    """Raised if a test of a definition file fails; the message has the reasons."""


class DefinitionItem(pytest.Item):
    """One test of a definition file, with all its repeats."""

    def __init__(self, *, written: WrittenTest, bench: Bench, **others: object) -> None:
        """Keep the test and its settings."""
        super().__init__(**others)  # type: ignore[arg-type]  # pytest's own arguments, in any version
        self._written = written
        self._bench = bench

    def runtest(self) -> None:
        """Run all repeats. Raises ExpertFailed."""
        folder = Path(tempfile.mkdtemp(prefix="perstack-test-")).resolve()
        outcome = ExpertTestOutcome(self._written, self._written.test.repeats)
        bench = Bench(self._bench.project, self._bench.env, folder)
        try:
            asyncio.run(run_tests([outcome], bench))
        finally:
            with suppress(OSError):
                folder.rmdir()
        if not outcome.is_good:
            lines = [f"{attempt.number}: {reason}" for attempt in outcome.attempts for reason in attempt.reasons]
            kept_attempts = (attempt for attempt in outcome.attempts if attempt.job)
            commands = [f"perstack log {attempt.job} --storage {attempt.storage}" for attempt in kept_attempts]
            passed = f"{outcome.passed} of {outcome.planned} passed"
            raise ExpertFailed("\n".join((passed, *lines, *commands[:1])))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        """Return the reasons without a traceback; for any other error the traceback."""
        if isinstance(excinfo.value, ExpertFailed):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return the test's location for reports."""
        _, _, line = self._written.place.rpartition(":")
        return self.path, int(line) - 1, self.name
