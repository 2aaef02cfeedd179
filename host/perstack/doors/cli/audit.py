"""The commands `perstack verify`, `replay`, `receipt` and `redact`."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import click

from perstack.audit.event_redaction import Redaction
from perstack.audit.receipt_statements import MAX_RECEIPT_BYTES
from perstack.audit.verification_report import Kind, Report
from perstack.core.base.ids import place_of
from perstack.core.base.text import count, one_line
from perstack.doors.cli.export import write_output
from perstack.doors.cli.options import HostOptions, json_option, place_options, run_with, to_option
from perstack.doors.cli.terminal import print_err, print_out, write_json
from perstack.doors.shared.text import local_time
from perstack.errors import PerstackError, UsageError
from perstack.host import Host
from perstack.system.user import this_user


@click.command("receipt")
@click.argument("job")
@to_option("FILE", "The file to write, which must not exist; by default stdout.")
@place_options
def receipt_command(job: str, to: str | None, options: HostOptions) -> None:
    """Write a receipt of JOB: a statement over the heads of its logs.

    Keep it out of reach of anyone who can write the logs. It is an in-toto Statement in JSON, in a DSSE envelope that
    is signed with the key of `[audit] signingKey`. Without a key it is unsigned, with a note on stderr. `perstack
    verify --receipt` compares the logs with it.
    """
    project = options.project(required=False)
    host = options.host_of(project, env=options.env(project))

    async def make_receipt(host: Host) -> bytes:
        return await host.audit.receipt(await host.jobs.complete_id(job))

    write_output(run_with(host, make_receipt) + b"\n", to)
    if not host.audit.is_signing:
        print_err("note: the receipt is not signed; [audit] signingKey in perstack.toml names a key")
    sys.exit(0)


# perstack redact

_MAX_LISTED_COPIES = 20
_EVENT_ID = re.compile(r".+-[1-9][0-9]*-[1-9][0-9]*")


@click.command("redact")
@click.argument("event")
@click.argument("fields", metavar="FIELD...", nargs=-1, required=True)
@click.option(
    "--reason", metavar="TEXT", required=True, help=("The reason. It is recorded, so it must not contain a secret.")
)
@click.option("--copies", is_flag=True, help="Also redact all other events that contain the same text.")
@json_option("Print what was removed, and where the text remains, as lines of JSON.")
@place_options
def redact_command(
    event: str, fields: tuple[str, ...], reason: str, copies: bool, as_json: bool, options: HostOptions
) -> None:
    """Remove the text of FIELDs of EVENT from the log, caches, checkpoints and blobs, permanently.

    Who did it, when and why is recorded, and shown by `perstack verify` and `log`. If the command is killed, repeating
    it completes the redaction.
    """
    redactions, copy_ids, errors = options.change(lambda host: _redact(host, event, fields, reason, copies=copies))
    for event_id, redaction in redactions.items():
        if as_json:
            write_json({"event": event_id, **redaction.to_json()})
        else:
            blobs = f", and {count(len(redaction.blobs), 'blob')}" if redaction.blobs else ""
            print_out(f"redacted {event_id} ({redaction.type}): {', '.join(redaction.fields)}{blobs}")
    for event_id, error in errors.items():
        print_err(one_line(f"error: {event_id}: {error}"))
    if copy_ids and not as_json:
        suffix = f", and {len(copy_ids) - _MAX_LISTED_COPIES} more" if len(copy_ids) > _MAX_LISTED_COPIES else ""
        print_err(one_line(f"the same text is also in: {', '.join(copy_ids[:_MAX_LISTED_COPIES])}{suffix}"))
    raise SystemExit(1 if errors else 0)


async def _redact(
    host: Host, event: str, fields: tuple[str, ...], reason: str, *, copies: bool
) -> tuple[dict[str, Redaction], list[str], dict[str, str]]:
    """Return the redactions by event id, the ids of events that still contain the text, and errors by id."""
    by, redactions, errors = this_user("cli"), dict[str, Redaction](), dict[str, str]()
    event = await host.jobs.complete_id(event)
    place_of(event, "event")
    redactions[event] = await host.audit.redact(event, fields, reason=reason, by=by)
    copy_ids = [copy_id for copy_id in redactions[event].copies if copy_id != event]
    for copy_id in [copy_id for copy_id in copy_ids if copies and _EVENT_ID.fullmatch(copy_id)]:
        try:
            redactions[copy_id] = await host.audit.redact(copy_id, reason=reason, by=by)
        except PerstackError as error:
            errors[copy_id] = str(error)
    redacted = {event_id for event_id in copy_ids if event_id in redactions or await _is_redacted(host, event_id)}
    return redactions, [copy_id for copy_id in copy_ids if copy_id not in redacted], errors


async def _is_redacted(host: Host, event_id: str) -> bool:
    """Return whether an event that contained the text earlier has been redacted since."""
    if not _EVENT_ID.fullmatch(event_id):
        return False
    job_id, run_id, seq = place_of(event_id)
    try:
        (log,) = await host.jobs.logs(job_id, run_id=run_id)
    except PerstackError:
        return True
    return len(log.lines) < seq or b'"redacted":true' in log.lines[seq - 1][:400]


_ALL_VERIFIED = "every digest, hash and kept head matches"
_JSON_HELP = "Print the report as a JSON object."


@click.command("verify")
@click.argument("job", required=False)
@click.option("--all", "every", is_flag=True, help=("Verify every Job, task and series of iterations in the storage."))
@click.option(
    "--receipt", metavar="FILE", help=("Compare with this receipt; without JOB, verify the Job that it names.")
)
@click.option(
    "--key",
    metavar="FILE",
    help=("The public key, in PEM, that verifies the signatures of the receipt and the anchor."),
)
@click.option("--anchor", metavar="file:PATH", help="Compare with this anchor instead of that of perstack.toml.")
@json_option("Print each report as a line of JSON.")
@place_options
def verify_command(
    job: str | None,
    every: bool,
    receipt: str | None,
    key: str | None,
    anchor: str | None,
    as_json: bool,
    options: HostOptions,
) -> None:
    """Verify the logs of JOB, by default the latest: find edits, insertions, reordering and loss.

    JOB may also be a task or a series of iterations. Every digest and hash is computed again. Each log is compared with
    the heads that other places have: a delegate's in its parent's log, every Run's in the Job's summary, in the anchor
    of perstack.toml and in a receipt. The summary, checkpoints and blobs are compared with the logs. What cannot be
    checked is reported. Writes nothing. Exit status 0 if every check passes, 1 if not.
    """
    if every and (job is not None or receipt is not None):
        raise UsageError(f"{job or '--receipt'} and --all: give one of them")
    if every:
        sys.exit(_report_all(options, as_json, key, anchor))
    receipt_bytes = None if receipt is None else _read_receipt(Path(receipt))

    async def check(host: Host) -> Report:
        owner = await host.jobs.complete_id(job, ("job", "task", "iterations"))
        if receipt_bytes is None:
            return await host.audit.verify(owner, key=key, anchor=anchor)
        return await host.audit.verify_receipt(receipt_bytes, owner, key=key, anchor=anchor)

    sys.exit(_report(options, check, as_json, _ALL_VERIFIED))


@click.command("replay")
@click.argument("job", required=False)
@json_option(_JSON_HELP)
@place_options
def replay_command(job: str | None, as_json: bool, options: HostOptions) -> None:
    """Repeat all decisions of JOB, by default the latest, from its logs, without a model or a tool.

    The answers of models, tools and people are taken from the log. Every decision of the loop and every request to a
    model is computed again and compared with the record. Exit status 0 if all are equal, 1 if not.
    """

    async def check(host: Host) -> Report:
        return await host.audit.replay(await host.jobs.complete_id(job))

    sys.exit(_report(options, check, as_json, "every decision and request matches the log"))


_OWNER_WORDS: dict[Kind, str] = {
    "job": "Job",
    "task": "Task",
    "iterations": "Iterations",
    "schedule": "Schedule",
    "store": "Store",
}


def _read_receipt(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_RECEIPT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--receipt {path} cannot be read: {error.strerror}") from error


def _report(options: HostOptions, check: Callable[[Host], Awaitable[Report]], as_json: bool, success_text: str) -> int:
    report = options.look(check)
    if as_json:
        write_json(report.to_json())
    else:
        _print(report, success_text)
    return 0 if report.ok else 1


def _report_all(options: HostOptions, as_json: bool, key: str | None, anchor: str | None) -> int:
    host = options.reader()
    totals: Counter[str] = Counter()

    async def check(host: Host) -> None:
        async for report in host.audit.verify_all(key=key, anchor=anchor):
            totals[report.kind] += 1
            totals["findings"] += len(report.findings)
            if as_json:
                write_json(report.to_json())
            else:
                _print(report, _ALL_VERIFIED)

    run_with(host, check)
    if not as_json:
        counts = f"{count(totals['job'], 'Job')}, {count(totals['task'], 'task')}, {totals['iterations']} series"
        print_out(f"{host.storage.location}: {counts}, {count(totals['findings'], 'finding')}")
    return 1 if totals["findings"] else 0


def _print(report: Report, success_text: str) -> None:
    name = f"{_OWNER_WORDS[report.kind]} {report.job_id}"
    for finding in report.findings:
        run_id = finding.run_id or name
        source = f"{run_id}, event {finding.seq}" if finding.seq else run_id
        print_out(finding.message if finding.message.startswith(f"{source}:") else f"{source}: {finding.message}")
    for gap in report.unchecked:
        source = f"{gap.run_id}, {count(gap.count, 'event')}" if gap.run_id and gap.count else gap.run_id or name
        print_out(f"not checked: {source}: {gap.message}")
    for redaction in report.redactions:
        day = local_time(redaction.at)
        source = f"{redaction.run_id}, event {redaction.seq} ({redaction.type})"
        print_out(f"redacted: {source}, by {redaction.by}, {day:%Y-%m-%d %H:%M}: {redaction.reason}")
    runs = f" of {count(report.runs, 'Run')}" if report.kind == "job" else ""
    counted_events = f"{name}: {count(report.events, 'event')}{runs}"
    print_out(f"{counted_events} {_outcome(report, success_text)}")


def _outcome(report: Report, success_text: str) -> str:
    if not report.ok:
        return f"checked, {count(len(report.findings), 'finding')}"
    if report.is_complete:
        return f"checked, {success_text}"
    unchecked_count = sum(gap.count for gap in report.unchecked if gap.kind == "digests")
    if unchecked_count == report.events:
        return "read, but there is nothing to check them against"
    return f"read, {report.events - unchecked_count:,} of them checked; among these, {success_text}"
