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

from perstack.config.expert_tests import WrittenTest, read_tests, select_tests
from perstack.config.load import DefinitionFile
from perstack.core.base.records import JsonObject
from perstack.core.base.usage import cost
from perstack.core.definitions.expert_tests import MAX_REPEATS
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import Overrides
from perstack.core.jobs.expert_test_results import status_word
from perstack.doors.cli.live import RowPrinter
from perstack.doors.cli.log_print import EventFilter, print_events
from perstack.doors.cli.options import HostOptions, config_option, env_path_option, json_option, pass_options, run_with
from perstack.doors.cli.terminal import print_err, print_note, print_out, table, write_json_line
from perstack.doors.shared.log_view import in_order
from perstack.doors.shared.screen import Screen
from perstack.doors.shared.signals import INTERRUPTED, handle_stop_signals
from perstack.doors.shared.text import count, duration
from perstack.errors import DefinitionError, PerstackError, UsageError
from perstack.host import Host
from perstack.testing.experts.run_tests import PARALLEL_JOBS, Attempt, Bench, ExpertTestOutcome, check_models, run_tests

if TYPE_CHECKING:
    from perstack.testing.experts.record_test import AddedTest


# Test results for programs: JSON, and JUnit XML.

_NOT_XML = "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"


def _to_json(outcomes: Sequence[ExpertTestOutcome], path: Path, *, is_whole: bool) -> str:
    """Return one JSON object; `costUsd` is null if nothing was spent, and may be `unknown`."""
    document: JsonObject = {
        "file": str(path),
        "ok": is_whole and all(one.is_good for one in outcomes),
        "interrupted": not is_whole,
        "tests": [_outcome(one) for one in outcomes],
    }
    return json.dumps(document, ensure_ascii=False)


def _junit_xml(outcomes: Sequence[ExpertTestOutcome]) -> bytes:
    suites = Xml.Element("testsuites", _counts(outcomes))
    for expert in dict.fromkeys(one.written.expert for one in outcomes):
        own = [one for one in outcomes if one.written.expert == expert]
        suite = Xml.SubElement(suites, "testsuite", {"name": expert, **_counts(own)})
        for outcome in own:
            _case(suite, outcome)
    written: bytes = Xml.tostring(suites, encoding="utf-8", xml_declaration=True)
    return written


def _outcome(outcome: ExpertTestOutcome) -> JsonObject:
    low, high = outcome.interval
    done = len(outcome.attempts)
    return {
        "expert": outcome.written.expert,
        "name": outcome.written.test.name,
        "place": outcome.written.place,
        "ok": outcome.is_good,
        "passed": outcome.passed,
        "done": done,
        "repeats": outcome.planned,
        "passRate": outcome.written.test.pass_rate,
        "rate": outcome.passed / done if done else None,
        "interval": [round(low, 4), round(high, 4)],
        "tokens": outcome.usage.total_tokens,
        "costUsd": outcome.cost,
        "attempts": [_attempt(one) for one in outcome.attempts],
    }


def _attempt(one: Attempt) -> JsonObject:
    return {
        "number": one.number,
        "passed": one.passed,
        "reasons": [*one.reasons],
        "status": None if one.status is None else status_word(one.status),
        "steps": one.steps,
        "tokens": one.usage.total_tokens,
        "costUsd": one.cost_usd,
        "milliseconds": one.milliseconds,
        "job": one.job or None,
        "storage": one.storage or None,
    }


def _case(suite: Xml.Element, outcome: ExpertTestOutcome) -> None:
    name, seconds = outcome.written.test.name, sum(one.milliseconds for one in outcome.attempts) / 1000
    about = {"classname": outcome.written.expert, "name": _clean(name), "time": f"{seconds:.3f}"}
    case = Xml.SubElement(suite, "testcase", about)
    if not outcome.is_whole:
        Xml.SubElement(case, "skipped", {"message": "interrupted"})
    elif not outcome.is_good:
        words = f"{outcome.passed} of {outcome.planned} passed"
        failure = Xml.SubElement(case, "failure", {"message": words})
        lines = [f"{one.number}: {reason}" for one in outcome.attempts for reason in one.reasons]
        failure.text = _clean("\n".join(lines))


def _counts(outcomes: Sequence[ExpertTestOutcome]) -> dict[str, str]:
    seconds = sum(one.milliseconds for outcome in outcomes for one in outcome.attempts) / 1000
    return {
        "tests": str(len(outcomes)),
        "failures": str(sum(one.is_whole and not one.is_good for one in outcomes)),
        "skipped": str(sum(not one.is_whole for one in outcomes)),
        "errors": "0",
        "time": f"{seconds:.3f}",
    }


def _clean(text: str) -> str:
    return re.sub(_NOT_XML, "\ufffd", text)


# Test results for people: failures with reasons, then a table of all tests.

_SHOWN_REASONS = 6
_LAST_EVENTS = 6


async def _print_failures(outcomes: Sequence[ExpertTestOutcome]) -> None:
    screen = Screen.of_stdout()
    for outcome in outcomes:
        failed = [one for one in outcome.attempts if not one.passed]
        if not failed or outcome.is_good:
            continue
        of = f" ({len(failed)} of {len(outcome.attempts)})" if len(outcome.attempts) > 1 else ""
        print_out(screen.styled(f"FAILED {outcome.written.title}{of}", fg="red", bold=True))
        print_out("  ", screen.styled(outcome.written.place, dim=True))
        _print_reasons(outcome, failed)
        kept = next((one for one in failed if one.job), None)
        if kept is not None:
            await _print_end(screen, kept)
        print_out()


def _print_reasons(outcome: ExpertTestOutcome, failed: Sequence[Attempt]) -> None:
    times = Counter(reason for one in failed for reason in one.reasons).most_common()
    for reason, number in times[:_SHOWN_REASONS]:
        print_out("  ", f"{number} of {outcome.planned}: " if number < outcome.planned else "", reason)
    if len(times) > _SHOWN_REASONS:
        print_out(f"  … and {count(len(times) - _SHOWN_REASONS, 'other reason')}, which --json shows")


async def _print_end(screen: Screen, one: Attempt) -> None:
    try:
        async with Host(Project(), storage=one.storage, env={}) as host:
            entries = in_order(await host.jobs.logs(one.job))
    except PerstackError:
        return  # the reasons already tell what is wrong
    print_events(RowPrinter(screen), entries[-_LAST_EVENTS:], entries, EventFilter(), full=False)
    print_out("  ", screen.styled(f"perstack log {one.job} --storage {one.storage}", dim=True))


def _print_outcomes(outcomes: Sequence[ExpertTestOutcome], *, is_whole: bool) -> None:
    rows = [_row(one) for one in outcomes]
    headings = ("test", "", "passed", "rate", "steps", "tokens", "cost", "time")
    table(Screen.of_stdout(), headings, rows, right=(2, 4, 5, 6, 7), whole=(), texts=(0,), drops=(7, 4, 5, 6, 3))
    good = sum(one.is_good for one in outcomes)
    done = sum(len(one.attempts) for one in outcomes)
    usage = sum((one.usage for one in outcomes[1:]), outcomes[0].usage)
    spent = cost(usage, sum(one.unpriced_tokens for one in outcomes))
    words = [f"{good} of {count(len(outcomes), 'test')} passed", count(done, "Job"), spent]
    planned = sum(one.planned for one in outcomes)
    if not is_whole:
        words.append(f"interrupted: {planned - done:,} not run")
    print_out(", ".join(word for word in words if word))


def _row(outcome: ExpertTestOutcome) -> tuple[str, ...]:
    done = outcome.attempts
    mark = "ok" if outcome.is_good else "FAILED" if outcome.is_whole else "cut short"
    if not done:
        return (outcome.written.title, mark, f"0/{outcome.planned}", "-", "-", "-", "-", "-")
    return (
        outcome.written.title,
        mark,
        f"{outcome.passed}/{outcome.planned}",
        _rate(outcome),
        f"{sum(one.steps for one in done) / len(done):.3g}",
        f"{outcome.usage.total_tokens // len(done):,}",
        _mean_cost(outcome),
        duration(sum(one.milliseconds for one in done) // len(done)),
    )


def _rate(outcome: ExpertTestOutcome) -> str:
    """Return `67 % (30–90)`: the rate with its 95 % confidence interval."""
    number = len(outcome.attempts)
    low, high = outcome.interval
    return f"{100 * outcome.passed / number:.0f} % ({100 * low:.0f}–{100 * high:.0f})"


def _mean_cost(outcome: ExpertTestOutcome) -> str:
    number = len(outcome.attempts)
    spent = outcome.cost
    return "-" if spent is None else "unknown" if spent == "unknown" else f"${spent / number:,.4f}"


_MOST_AT_ONCE = 64


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
    type=click.IntRange(1, _MOST_AT_ONCE),
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
        _take(options, job, name, files)
        return
    if name is not None or files is not None or options.storage is not None:
        raise UsageError("--name, --files and --storage are for --from JOB: name the Job")
    if as_json and junit == "-":
        raise UsageError("--json and --junit - both write to stdout: give one of them a FILE")
    path = options.find().require_path()
    project, tests = _read(path)
    wanted = select_tests(tests, (*project.experts, *project.broken), expert, word)
    _check(project, wanted)
    overrides = Overrides(model=model, provider=provider)
    room = Path(tempfile.mkdtemp(prefix="perstack-test-"))
    bench = Bench(project, options.env(project), room.resolve(), overrides)
    outcomes = [ExpertTestOutcome(one, repeats or one.test.repeats) for one in wanted]
    try:
        is_whole = asyncio.run(_run(outcomes, bench, parallel))
        _show(outcomes, path, as_json=as_json, junit_file=junit, is_whole=is_whole)
    finally:
        with suppress(OSError):
            room.rmdir()
    sys.exit(INTERRUPTED if not is_whole else 0 if all(one.is_good for one in outcomes) else 1)


def _take(options: HostOptions, job: str, name: str, files: str | None) -> None:
    from perstack.testing.experts.record_test import take_test

    if files is not None and not Path(files).is_dir():
        raise UsageError(f"--files {files}: no such directory")
    definition = DefinitionFile(options.find().require_path())
    project = definition.to_project(strict=False).project
    env = options.env(project)

    async def take(host: Host) -> AddedTest:
        found = await host.jobs.find(job)
        return await take_test(host, found, name, definition, env, None if files is None else Path(files))

    taken = run_with(options.host_of(project, env=env), take)
    print_out(f"{taken.definition}: {name}, with {taken.recording}")
    for key, value in taken.expected.items():
        shown = value if isinstance(value, str) else ", ".join(value)
        print_out(f"  {key}: ", shown)
    print_out(f"next: perstack test {taken.expert}")


def _read(path: Path) -> tuple[Project, tuple[WrittenTest, ...]]:
    """Return the project and its tests; warnings go to stderr. Raises DefinitionError if a test is invalid."""
    definition = DefinitionFile(path)
    loaded = definition.to_project(strict=False)
    before = len(definition.problems)
    tests = read_tests(definition)
    wrong = tuple(definition.problems[before:])
    if any(one.severity == "error" for one in wrong):
        raise DefinitionError(wrong)
    for problem in (*loaded.warnings, *wrong):
        print_err(f"warning: {problem}")
    return loaded.project, tests


def _check(project: Project, tests: Sequence[WrittenTest]) -> None:
    """Raise DefinitionError for an Expert with errors, and UsageError for an invalid script or recording."""
    for written in tests:
        project.check_broken(written.expert)
    check_models(tests)


async def _run(outcomes: Sequence[ExpertTestOutcome], bench: Bench, at_once: int) -> bool:
    """Return whether all tests were run. The first Ctrl-C stops the running ones, the second the process."""

    def done(outcome: ExpertTestOutcome) -> None:
        print_note(f"{outcome.written.title}: {outcome.passed} of {outcome.planned} passed")

    task = asyncio.ensure_future(run_tests(outcomes, bench, at_once, done))

    def stop() -> None:
        task.cancel()
        print_note("stopping after cleaning up; once more to leave at once")

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
