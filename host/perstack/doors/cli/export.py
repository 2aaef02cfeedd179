"""The commands `perstack export` and `perstack record`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import click

from perstack.core.base.text import REDACTED, count, one_line
from perstack.dataclass import dataclass
from perstack.definition_files import open_definition
from perstack.doors.cli.log_print import print_damage
from perstack.doors.cli.options import HostOptions, place_options, run_with, to_option
from perstack.doors.cli.terminal import print_err, write_bytes
from perstack.doors.shared.export import (
    document_of,
    folders_of,
    lines_of,
    plugin_document_of,
    plugin_documents,
    write_new_file,
    write_new_files,
)
from perstack.errors import DefinitionError, UsageError
from perstack.host import Host
from perstack.recordings.model import FORMAT, Recording
from perstack.system.files import open_for_reading, replace_private_file
from perstack.testing.experts.results import status_word


@click.command("export")
@click.argument("job")
@click.option(
    "--format",
    "form",
    metavar="FORMAT",
    required=True,
    help=(
        "jsonl: the stored events, by time. json: one document with summary, Runs, checkpoints and messages. "
        "html: one page that needs no server. otlp: the trace, for OpenTelemetry; otlp-content: with texts, "
        "arguments and results. Or a format of another program, which `perstack plugins` lists."
    ),
)
@to_option(
    "PATH",
    "The file to write, which must not exist; by default stdout. For a format with folders: the folder to write into.",
)
@place_options
def export_command(job: str, form: str, to: str | None, options: HostOptions) -> None:
    """Export JOB in another format."""
    sys.exit(options.look(lambda host: _export(host, job, form, to)))


async def _export(host: Host, job: str, form: str, to: str | None) -> int:
    job = await host.jobs.complete_id(job)
    if form == "jsonl":
        logs = await host.jobs.logs(job)
        write_output(lines_of(logs), to)
        return int(print_damage(logs))
    if form == "json":
        write_output(await document_of(host, job), to)
        return 0
    document = plugin_documents().get(form)
    if document is not None:
        write_output(await plugin_document_of(host, job, document), to)
        return 0
    files = await folders_of(host, job, form)
    if to is None:
        raise UsageError(f"--format {form} writes folders: name a directory with --to DIR")
    folder = write_new_files(files, Path(to), "--to", f"--to {to}")
    print_err(f"{folder}: {count(len(files), 'file')}")
    return 0


def write_output(content: bytes, to: str | None) -> None:
    """Write the content to a new file, or to stdout without one. Raises UsageError."""
    if to is None:
        write_bytes(content)
    else:
        write_new_file(content, Path(to), f"--to {to}")


_HEAD_BYTES = 200  # bytes at the beginning of a recording that contain its format's name


@click.command("record")
@click.argument("job")
@click.option(
    "--to",
    "file",
    metavar="FILE",
    required=True,
    help="The file to write, which may replace an older recording; `-` for stdout.",
)
@click.option("--test", "adds_test", is_flag=True, help="Also add a test that plays FILE to perstack.toml.")
@place_options
def record_command(job: str, file: str, adds_test: bool, options: HostOptions) -> None:
    """Save JOB as a recording: replies, tool results, answers, approvals and delegates, in a JSON file.

    `perstack run … --recording FILE` plays it, without a key, a server or a person. Secrets are removed. An unfinished
    Job is recorded up to its last event. The lines of a test that plays it are shown, or added with --test.
    """
    path = None if file == "-" else Path(file)
    if path is not None:
        _check_replaceable(path)
    elif adds_test:
        raise UsageError("--test: a test names the file of its recording: give --to a FILE")
    host = _host(options)

    async def record(host: Host) -> Recording:
        return await host.exports.record(await host.jobs.complete_id(job))

    recording = run_with(host, record)
    data = recording.to_bytes()
    test = None if path is None else _make_test(recording, path, options)
    if adds_test and isinstance(test, str):
        raise UsageError(f"--test: {test}")
    if path is None:
        write_bytes(data)
    else:
        _write(path, data)
    _report_recorded(recording, data, file)
    if isinstance(test, _PlayedTest):
        _show_or_add_test(test, adds_test=adds_test)
    sys.exit(0)


# The test that plays a recording.

_Fields = Mapping[str, str | Mapping[str, str | list[str]]]  # keys of a test, as a definition file has them

_MAX_CALLS = 8  # maximum calls that the test expects: more would be tedious to read and edit


@dataclass(frozen=True, slots=True)
class _PlayedTest:
    """A test that plays a recording, with its fields as written to the definition file of its Expert."""

    expert: str
    definition: Path
    name: str
    fields: _Fields
    exists: bool  # True if the Expert has a test of that name, which may play an earlier recording


def _make_test(recording: Recording, path: Path, options: HostOptions) -> _PlayedTest | str:
    """Return the test, or the reason why a recording cannot be tested."""
    first, *other_runs = recording.runs
    word = status_word(recording.status)
    if word in ("running", "interrupted") or any(recorded_run.called_by is None for recorded_run in other_runs):
        return f"Job {recording.job} was continued, or is {word}: a test needs a Job of one query that has ended"
    try:
        definition = open_definition(options.find().require_path(), must_be_whole=False)
    except (UsageError, DefinitionError) as error:
        return str(error)
    draft = definition.drafts.get(first.expert)
    if draft is None:
        return f"{definition.path} has no Expert `{first.expert}`"
    definition_path = draft.report.source.path.absolute()
    model = path.absolute()
    model = model.relative_to(definition_path.parent) if model.is_relative_to(definition_path.parent) else model
    expect: dict[str, str | list[str]] = {"status": word}
    tool_kinds = ("tool", "interactive")
    called_tools = dict.fromkeys(
        recorded_call.tool
        for recorded_run in recording.runs
        for _, recorded_call in recorded_run.calls()
        if recorded_call.kind in tool_kinds
    )
    if called_tools:
        expect["called"] = [*called_tools][:_MAX_CALLS]
    name = path.stem
    fields: _Fields = {"name": name, "query": first.query, "model": model.as_posix(), "expect": expect}
    tests = draft.tests if isinstance(draft.tests, list) else []
    is_existing = any(isinstance(entry, dict) and entry.get("name") == name for entry in tests)
    return _PlayedTest(first.expert, definition_path, name, fields, is_existing)


def _show_or_add_test(test: _PlayedTest, *, adds_test: bool) -> None:
    from perstack.expert_tests.written_tests import add_test, test_lines

    definition_path = os.path.relpath(test.definition)
    if test.exists:
        print_err(f"{definition_path} has a test `{test.name}`; next: perstack test {test.expert}")
    elif adds_test:
        add_test(test.definition, test.expert, test.fields, {})
        print_err(f"{definition_path}: test `{test.name}` was added; next: perstack test {test.expert}")
    else:
        print_err(f"a test that plays it, for {definition_path} (--test adds it):")
        for line in test_lines(test.expert, test.fields):
            print_err(one_line(line))


def _host(options: HostOptions) -> Host:
    """Return a Host that knows the variables of `.env` files, whose secrets must be removed."""
    try:
        project = options.project(required=False)
    except DefinitionError:
        return options.reader()
    return options.host_of(project, env=options.env(project))


def _check_replaceable(path: Path) -> None:
    head = b""
    with suppress(OSError), open_for_reading(path, follow=True) as file:
        head = os.read(file, _HEAD_BYTES)
    if path.is_dir() or (path.exists() and FORMAT.partition("/")[0].encode() not in head):
        raise UsageError(f"--to {path} exists already and is not a recording: choose another name, or remove the file")


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_private_file(path, data)
        path.chmod(0o644)  # the file is meant to be shared, and contains no secret
    except OSError as error:
        raise UsageError(f"--to {path} cannot be written: {error.strerror}") from error


def _report_recorded(recording: Recording, data: bytes, file: str) -> None:
    replies = sum(len(recorded_run.replies) for recorded_run in recording.runs)
    calls = sum(len(recorded_run.calls()) for recorded_run in recording.runs)
    counts = [count(len(recording.runs), "Run"), count(replies, "generation"), count(calls, "call")]
    print_err(f"{'recorded' if file == '-' else file}: {', '.join(counts)}, {len(data):,} bytes")
    if recording.status != "completed":
        print_err(
            f"note: Job {recording.job} is not finished ({recording.status}); it is recorded up to its last event"
        )
    number = data.count(REDACTED.encode())
    if number:
        print_err(f"note: possible secrets in {count(number, 'place')} were replaced by {REDACTED}")
