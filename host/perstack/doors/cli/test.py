"""The command `perstack test`, and its reports for people and programs."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as Xml

import click

from perstack.core.base.records import JsonObject
from perstack.core.base.text import count, duration
from perstack.core.base.usage import cost_text
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import Overrides
from perstack.definition_files import open_definition
from perstack.doors.cli.live import RowPrinter
from perstack.doors.cli.log_print import print_events
from perstack.doors.cli.log_selection import EventFilter
from perstack.doors.cli.options import HostOptions, config_option, env_path_option, json_option, pass_options, run_with
from perstack.doors.cli.terminal import print_err, print_note, print_out, table, write_json_line
from perstack.doors.shared.agreement_items import check_tests
from perstack.doors.shared.log_view import in_order
from perstack.doors.shared.screen import Screen
from perstack.doors.shared.signals import INTERRUPTED, handle_stop_signals
from perstack.errors import DefinitionError, PerstackError, UsageError
from perstack.expert_tests.models import MAX_REPEATS
from perstack.expert_tests.written_tests import WrittenTest, read_tests, select_tests
from perstack.host import Host
from perstack.testing.experts.results import status_word
from perstack.testing.experts.run_tests import PARALLEL_JOBS, Attempt, Bench, ExpertTestOutcome, check_models, run_tests

if TYPE_CHECKING:
    from perstack.testing.experts.record_test import AddedTest


# Test results for programs: JSON, and JUnit XML.

_NOT_XML = "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"


def _to_json(outcomes: Sequence[ExpertTestOutcome], path: Path, *, is_whole: bool) -> str:
    """Return one JSON object; `costUsd` is null if nothing was spent, and may be `unknown`."""
    document: JsonObject = {
        "file": str(path),
        "ok": is_whole and all(outcome.is_good for outcome in outcomes),
        "interrupted": not is_whole,
        "tests": [_outcome(outcome) for outcome in outcomes],
    }
    return json.dumps(document, ensure_ascii=False)


def _junit_xml(outcomes: Sequence[ExpertTestOutcome]) -> bytes:
    suites = Xml.Element("testsuites", _counts(outcomes))
    for expert in dict.fromkeys(outcome.written.expert for outcome in outcomes):
        expert_outcomes = [outcome for outcome in outcomes if outcome.written.expert == expert]
        suite = Xml.SubElement(suites, "testsuite", {"name": expert, **_counts(expert_outcomes)})
        for outcome in expert_outcomes:
            _case(suite, outcome)
    document: bytes = Xml.tostring(suites, encoding="utf-8", xml_declaration=True)
    return document


def _outcome(outcome: ExpertTestOutcome) -> JsonObject:
    low, high = outcome.interval
    attempt_count = len(outcome.attempts)
    return {
        "expert": outcome.written.expert,
        "name": outcome.written.test.name,
        "place": outcome.written.place,
        "ok": outcome.is_good,
        "passed": outcome.passed,
        "done": attempt_count,
        "repeats": outcome.planned,
        "passRate": outcome.written.test.pass_rate,
        "rate": outcome.passed / attempt_count if attempt_count else None,
        "interval": [round(low, 4), round(high, 4)],
        "tokens": outcome.usage.total_tokens,
        "costUsd": outcome.cost,
        "attempts": [_attempt(attempt) for attempt in outcome.attempts],
    }


def _attempt(attempt: Attempt) -> JsonObject:
    return {
        "number": attempt.number,
        "passed": attempt.passed,
        "reasons": [*attempt.reasons],
        "status": None if attempt.status is None else status_word(attempt.status),
        "steps": attempt.steps,
        "tokens": attempt.usage.total_tokens,
        "costUsd": attempt.cost_usd,
        "milliseconds": attempt.milliseconds,
        "job": attempt.job or None,
        "storage": attempt.storage or None,
    }


def _case(suite: Xml.Element, outcome: ExpertTestOutcome) -> None:
    name, seconds = outcome.written.test.name, sum(attempt.milliseconds for attempt in outcome.attempts) / 1000
    attributes = {"classname": outcome.written.expert, "name": _clean(name), "time": f"{seconds:.3f}"}
    case = Xml.SubElement(suite, "testcase", attributes)
    if not outcome.is_whole:
        Xml.SubElement(case, "skipped", {"message": "interrupted"})
    elif not outcome.is_good:
        message = f"{outcome.passed} of {outcome.planned} passed"
        failure = Xml.SubElement(case, "failure", {"message": message})
        lines = [f"{attempt.number}: {reason}" for attempt in outcome.attempts for reason in attempt.reasons]
        failure.text = _clean("\n".join(lines))


def _counts(outcomes: Sequence[ExpertTestOutcome]) -> dict[str, str]:
    seconds = sum(attempt.milliseconds for outcome in outcomes for attempt in outcome.attempts) / 1000
    return {
        "tests": str(len(outcomes)),
        "failures": str(sum(outcome.is_whole and not outcome.is_good for outcome in outcomes)),
        "skipped": str(sum(not outcome.is_whole for outcome in outcomes)),
        "errors": "0",
        "time": f"{seconds:.3f}",
    }


def _clean(text: str) -> str:
    return re.sub(_NOT_XML, "\ufffd", text)


# Test results for people: failures with reasons, then a table of all tests.

_MAX_REASONS = 6
_MAX_EVENTS = 6


async def _print_failures(outcomes: Sequence[ExpertTestOutcome]) -> None:
    screen = Screen.of_stdout()
    for outcome in outcomes:
        failures = [attempt for attempt in outcome.attempts if not attempt.passed]
        if not failures or outcome.is_good:
            continue
        fraction = f" ({len(failures)} of {len(outcome.attempts)})" if len(outcome.attempts) > 1 else ""
        print_out(screen.styled(f"FAILED {outcome.written.title}{fraction}", fg="red", bold=True))
        print_out("  ", screen.styled(outcome.written.place, dim=True))
        _print_reasons(outcome, failures)
        kept_attempt = next((attempt for attempt in failures if attempt.job), None)
        if kept_attempt is not None:
            await _print_end(screen, kept_attempt)
        print_out()


def _print_reasons(outcome: ExpertTestOutcome, failures: Sequence[Attempt]) -> None:
    reason_counts = Counter(reason for attempt in failures for reason in attempt.reasons).most_common()
    for reason, number in reason_counts[:_MAX_REASONS]:
        print_out("  ", f"{number} of {outcome.planned}: " if number < outcome.planned else "", reason)
    if len(reason_counts) > _MAX_REASONS:
        print_out(f"  … and {count(len(reason_counts) - _MAX_REASONS, 'other reason')}, which --json shows")


async def _print_end(screen: Screen, attempt: Attempt) -> None:
    try:
        async with Host(Project(), storage=attempt.storage, env={}) as host:
            entries = in_order(await host.jobs.logs(attempt.job))
    except PerstackError:
        return  # the reasons already say what failed
    print_events(RowPrinter(screen), entries[-_MAX_EVENTS:], entries, EventFilter(), full=False)
    print_out("  ", screen.styled(f"perstack log {attempt.job} --storage {attempt.storage}", dim=True))


def _print_outcomes(outcomes: Sequence[ExpertTestOutcome], *, is_whole: bool) -> None:
    rows = [_row(outcome) for outcome in outcomes]
    headings = ("test", "", "passed", "rate", "steps", "tokens", "cost", "time")
    table(Screen.of_stdout(), headings, rows, right=(2, 4, 5, 6, 7), whole=(), texts=(0,), drops=(7, 4, 5, 6, 3))
    good = sum(outcome.is_good for outcome in outcomes)
    attempt_count = sum(len(outcome.attempts) for outcome in outcomes)
    usage = sum((outcome.usage for outcome in outcomes[1:]), outcomes[0].usage)
    cost_words = cost_text(usage, sum(outcome.unpriced_tokens for outcome in outcomes))
    parts = [f"{good} of {count(len(outcomes), 'test')} passed", count(attempt_count, "Job"), cost_words]
    planned_count = sum(outcome.planned for outcome in outcomes)
    if not is_whole:
        parts.append(f"interrupted: {planned_count - attempt_count:,} not run")
    print_out(", ".join(part for part in parts if part))


def _row(outcome: ExpertTestOutcome) -> tuple[str, ...]:
    attempts = outcome.attempts
    mark = "ok" if outcome.is_good else "FAILED" if outcome.is_whole else "cut short"
    if not attempts:
        return (outcome.written.title, mark, f"0/{outcome.planned}", "-", "-", "-", "-", "-")
    return (
        outcome.written.title,
        mark,
        f"{outcome.passed}/{outcome.planned}",
        _rate(outcome),
        f"{sum(attempt.steps for attempt in attempts) / len(attempts):.3g}",
        f"{outcome.usage.total_tokens // len(attempts):,}",
        _mean_cost(outcome),
        duration(sum(attempt.milliseconds for attempt in attempts) // len(attempts)),
    )


def _rate(outcome: ExpertTestOutcome) -> str:
    """Return `67 % (30–90)`: the rate with its 95 % confidence interval."""
    number = len(outcome.attempts)
    low, high = outcome.interval
    return f"{100 * outcome.passed / number:.0f} % ({100 * low:.0f}–{100 * high:.0f})"


def _mean_cost(outcome: ExpertTestOutcome) -> str:
    number = len(outcome.attempts)
    total = outcome.cost
    return "-" if total is None else "unknown" if total == "unknown" else f"${total / number:,.4f}"


_MAX_PARALLEL = 64


@click.command("test")
@click.argument("expert", required=False)
@click.option("-k", "word", metavar="TEXT", help="Only tests whose `EXPERT: NAME` contains this text.")
@click.option(
    "--repeats",
    type=click.IntRange(1, MAX_REPEATS),
    metavar="N",
    help="How often to run each test; overrides the test's own number.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, _MAX_PARALLEL),
    default=PARALLEL_JOBS,
    show_default=True,
    metavar="N",
    help="Maximum Jobs at a time.",
)
@json_option("Print a JSON object.")
@click.option("--junit", metavar="FILE", help=("Also write JUnit XML to this file; `-` writes only that to stdout."))
@click.option(
    "--from", "job", metavar="JOB", help=("Run nothing; add a test that expects what this Job did, with its recording.")
)
@click.option("--name", metavar="NAME", help="With --from: the name of the test.")
@click.option("--files", metavar="DIR", help="With --from: a folder that the test gets a copy of.")
@click.option("--storage", metavar="SCHEME:PLACE", help="With --from: the storage of the Job.")
@click.option("--provider", metavar="NAME", help="The provider for tests with a real model.")
@click.option("--model", metavar="NAME", help="The model for tests with a real model.")
@env_path_option
@config_option
@pass_options
def test_command(
    expert: str | None,
    word: str | None,
    repeats: int | None,
    parallel: int,
    as_json: bool,
    junit: str | None,
    job: str | None,
    name: str | None,
    files: str | None,
    provider: str | None,
    model: str | None,
    options: HostOptions,
) -> None:
    """Run the tests of all Experts in perstack.toml, or of EXPERT, and report the results.

    Each Job has its own folder and storage, so your files stay unchanged. The folders of failed tests are kept. Exit
    status 1 if a test fails or there is none, 2 for an invalid definition.
    """
    if job is not None:
        if name is None or expert is not None or word is not None:
            raise UsageError("--from makes one test: give it a --name, and neither EXPERT nor -k")
        _record_test(options, job, name, files)
        return
    if name is not None or files is not None or options.storage is not None:
        raise UsageError("--name, --files and --storage are for --from JOB: name the Job")
    if as_json and junit == "-":
        raise UsageError("--json and --junit - both write to stdout: give one of them a FILE")
    path = options.find().require_path()
    project, tests = _read(path)
    selected = select_tests(tests, (*project.experts, *project.broken), expert, word)
    _check(project, selected)
    overrides = Overrides(model=model, provider=provider)
    room = Path(tempfile.mkdtemp(prefix="perstack-test-"))
    bench = Bench(project, options.env(project), room.resolve(), overrides)
    outcomes = [ExpertTestOutcome(written, repeats or written.test.repeats) for written in selected]
    try:
        is_whole = asyncio.run(_run(outcomes, bench, parallel))
        _show(outcomes, path, as_json=as_json, junit_file=junit, is_whole=is_whole)
    finally:
        with suppress(OSError):
            room.rmdir()
    sys.exit(INTERRUPTED if not is_whole else 0 if all(outcome.is_good for outcome in outcomes) else 1)


def _record_test(options: HostOptions, job: str, name: str, files: str | None) -> None:
    from perstack.testing.experts.record_test import take_test

    if files is not None and not Path(files).is_dir():
        raise UsageError(f"--files {files}: no such directory")
    definition = open_definition(options.find().require_path(), must_be_whole=False)
    project = definition.to_project(strict=False).project
    env = options.env(project)

    async def take(host: Host) -> AddedTest:
        job_id = await host.jobs.complete_id(job)
        return await take_test(host, job_id, name, definition, env, None if files is None else Path(files))

    added = run_with(options.host_of(project, env=env), take)
    print_out(f"{added.definition}: {name}, with {added.recording}")
    for key, value in added.expected.items():
        text = value if isinstance(value, str) else ", ".join(value)
        print_out(f"  {key}: ", text)
    print_out(f"next: perstack test {added.expert}")


def _read(path: Path) -> tuple[Project, tuple[WrittenTest, ...]]:
    """Return the project and its tests; warnings go to stderr. Raises DefinitionError if a test is invalid."""
    definition = open_definition(path, must_be_whole=False)
    loaded = definition.to_project(strict=False)
    problem_count = len(definition.problems)
    tests = read_tests(definition)
    test_problems = tuple(definition.problems[problem_count:])
    if any(problem.severity == "error" for problem in test_problems):
        raise DefinitionError(test_problems)
    for problem in (*loaded.warnings, *test_problems):
        print_err(f"warning: {problem}")
    return loaded.project, tests


def _check(project: Project, tests: Sequence[WrittenTest]) -> None:
    """Raise DefinitionError for an Expert with errors, NotAgreed, and UsageError for an invalid script or recording."""
    check_tests(project, tests)
    for written in tests:
        project.check_broken(written.expert)
    check_models(tests)


async def _run(outcomes: Sequence[ExpertTestOutcome], bench: Bench, at_once: int) -> bool:
    """Run the tests, and return whether all were run.

    The first Ctrl-C stops the running tests, the second the process.
    """

    def print_finished(outcome: ExpertTestOutcome) -> None:
        print_note(f"{outcome.written.title}: {outcome.passed} of {outcome.planned} passed")

    task = asyncio.ensure_future(run_tests(outcomes, bench, at_once, print_finished))

    def stop() -> None:
        task.cancel()
        print_note("stopping after cleanup; press again to stop at once")

    with handle_stop_signals(stop):
        try:
            await task
        except asyncio.CancelledError:
            return False
    return True


def _show(
    outcomes: Sequence[ExpertTestOutcome], path: Path, *, as_json: bool, junit_file: str | None, is_whole: bool
) -> None:
    if junit_file is not None and junit_file != "-":
        Path(junit_file).write_bytes(_junit_xml(outcomes))
    if as_json:
        write_json_line(_to_json(outcomes, path, is_whole=is_whole))
    elif junit_file == "-":
        write_json_line(_junit_xml(outcomes).decode())
    else:
        asyncio.run(_print_failures(outcomes))
        _print_outcomes(outcomes, is_whole=is_whole)
