"""`perstack test`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perstack.config.expert_tests import WrittenTest, chosen, read_tests
from perstack.config.load import DefinitionFile
from perstack.config.settings import Overrides
from perstack.core.definitions import Project
from perstack.core.expert_tests import MOST_REPEATS
from perstack.errors import DefinitionError, UsageError
from perstack.frontends.cli.options import CONFIG, PlaceOptions, Setup
from perstack.frontends.cli.terminal import data, err, out, remark
from perstack.frontends.cli.verdict_forms import junit, to_json
from perstack.frontends.cli.verdict_table import print_failures, print_outcomes
from perstack.frontends.shared.stopping import INTERRUPTED, on_stop_signals
from perstack.testing.experts.attempt import Bench
from perstack.testing.experts.models import check_models
from perstack.testing.experts.running import AT_ONCE, Outcome, run_tests

if TYPE_CHECKING:
    from perstack.testing.experts.taking import Taken

_MOST_AT_ONCE = 64


@click.command("test")
@click.argument("expert", required=False)
@click.option("-k", "word", metavar="TEXT", help="Only tests with this in `EXPERT: NAME`.")
@click.option(
    "--repeats",
    type=click.IntRange(1, MOST_REPEATS),
    metavar="N",
    help="How often each is run; by default as it says itself.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, _MOST_AT_ONCE),
    default=AT_ONCE,
    show_default=True,
    metavar="N",
    help="How many Jobs are at work at once.",
)
@click.option("--json", "as_json", is_flag=True, help="All of it as one JSON object.")
@click.option("--junit", metavar="FILE", help="Write JUnit's XML besides; `-` is stdout, and nothing else goes there.")
@click.option("--from", "job", metavar="JOB", help="Run nothing: add a test of what this Job did, with its recording.")
@click.option("--name", metavar="NAME", help="With --from: what the test is called.")
@click.option("--files", metavar="DIR", help="With --from: a folder whose copy the test works in.")
@click.option("--storage", metavar="SCHEME:PLACE", help="With --from: where the Job is kept.")
@click.option("--provider", metavar="NAME", help="The provider of tests that ask the real model.")
@click.option("--model", metavar="NAME", help="Their model.")
@click.option("--env-path", multiple=True, metavar="FILE", help="A .env file to read; may be given again.")
@click.option("--config", metavar="FILE", help=CONFIG)
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
    storage: str | None,
    provider: str | None,
    model: str | None,
    env_path: tuple[str, ...],
    config: str | None,
) -> None:
    """Run the tests that perstack.toml has for its Experts, or for EXPERT, and say which are as expected.

    Each Job has a folder and a storage of its own, so that nothing of yours is touched. What failed is kept, to be
    looked at. Exit status 1 if a test fails, or there is none; 2 if a definition is wrong.
    """
    place = PlaceOptions(config, None, storage)
    if job is not None:
        if name is None or expert is not None or word is not None:
            raise UsageError("--from makes one test: give it a --name, and neither EXPERT nor -k")
        _take(place, job, name, files)
        return
    if name is not None or files is not None or storage is not None:
        raise UsageError("--name, --files and --storage are for --from JOB: name the Job")
    if as_json and junit == "-":
        raise UsageError("--json and --junit - both write to stdout: give one of them a FILE")
    path = place.find().required()
    project, tests = _read(path)
    wanted = chosen(tests, (*project.experts, *project.broken), expert, word)
    _check(project, wanted)
    overrides = Overrides(model=model, provider=provider)
    room = Path(tempfile.mkdtemp(prefix="perstack-test-"))
    bench = Bench(project, Setup(place, overrides, env_path).env(project), room.resolve(), overrides)
    outcomes = [Outcome(one, repeats or one.test.repeats) for one in wanted]
    try:
        is_whole = asyncio.run(_run(outcomes, bench, parallel))
        _show(outcomes, path, as_json=as_json, junit_file=junit, is_whole=is_whole)
    finally:
        with suppress(OSError):
            room.rmdir()
    sys.exit(INTERRUPTED if not is_whole else 0 if all(one.is_good for one in outcomes) else 1)


def _take(place: PlaceOptions, job: str, name: str, files: str | None) -> None:
    """Add a test of a Job, and say what it expects."""
    from perstack.testing.experts.taking import take_test

    if files is not None and not Path(files).is_dir():
        raise UsageError(f"--files {files}: no such directory")
    definition = DefinitionFile(place.find().required())
    project = definition.loaded(strict=False).project
    env = Setup(place, Overrides(), ()).env(project)
    host = place.host(project, env=env)

    async def take() -> Taken:
        async with host:
            found = await host.jobs.find(job)
            return await take_test(host, found, name, definition, env, None if files is None else Path(files))

    taken = asyncio.run(take())
    out(f"{taken.definition}: {name}, with {taken.recording}")
    for key, value in taken.expected.items():
        shown = value if isinstance(value, str) else ", ".join(value)
        out(f"  {key}: ", shown)
    out(f"next: perstack test {taken.expert}")


def _read(path: Path) -> tuple[Project, tuple[WrittenTest, ...]]:
    """The project and its tests; warnings go to stderr. Raises DefinitionError if a test is wrong."""
    definition = DefinitionFile(path)
    loaded = definition.loaded(strict=False)
    before = len(definition.problems)
    tests = read_tests(definition)
    wrong = tuple(definition.problems[before:])
    if any(one.severity == "error" for one in wrong):
        raise DefinitionError(wrong)
    for problem in (*loaded.warnings, *wrong):
        err(f"warning: {problem}")
    return loaded.project, tests


def _check(project: Project, tests: Sequence[WrittenTest]) -> None:
    """Raises DefinitionError for an Expert with errors, and UsageError for a script or a recording that is wrong."""
    for written in tests:
        project.check_broken(written.expert)
    check_models(tests)


async def _run(outcomes: Sequence[Outcome], bench: Bench, at_once: int) -> bool:
    """Whether all was run: the first Ctrl-C ends what is at work, and the second the process."""

    def done(outcome: Outcome) -> None:
        remark(f"{outcome.written.title}: {outcome.passed} of {outcome.planned} passed")

    task = asyncio.ensure_future(run_tests(outcomes, bench, at_once, done))

    def stop() -> None:
        task.cancel()
        remark("stopping after cleaning up; once more to leave at once")

    with on_stop_signals(stop):
        try:
            await task
        except asyncio.CancelledError:
            return False
    return True


def _show(outcomes: Sequence[Outcome], path: Path, *, as_json: bool, junit_file: str | None, is_whole: bool) -> None:
    if junit_file is not None and junit_file != "-":
        Path(junit_file).write_bytes(junit(outcomes))
    if as_json:
        data(to_json(outcomes, path, is_whole=is_whole))
    elif junit_file == "-":
        data(junit(outcomes).decode())
    else:
        asyncio.run(print_failures(outcomes))
        print_outcomes(outcomes, is_whole=is_whole)
