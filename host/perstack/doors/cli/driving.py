"""Driving a Job from a terminal: events to stdout, messages to stderr, questions, Ctrl-C, and the exit status."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.facts import WITHOUT_EFFECT
from perstack.doors.cli.asking.person import ask_person
from perstack.doors.cli.exit_statuses import exit_status_of
from perstack.doors.cli.options import HostOptions
from perstack.doors.cli.output import JobOutput, OutputOptions
from perstack.doors.cli.terminal import is_attended, print_err
from perstack.doors.shared.next_step_phrases import cli_phrase
from perstack.doors.shared.signals import INTERRUPTED, exit_now, handle_stop_signals, on_continued
from perstack.doors.shared.status_phrases import next_step_of_job, spending_line
from perstack.doors.shared.text import local_time
from perstack.engine.log.run_session import OnEvent
from perstack.errors import Conflict, UsageError
from perstack.host import Host
from perstack.system.files import system_reason
from perstack.system.user import this_user

if TYPE_CHECKING:
    from perstack.iterations.state import SeriesState  # imported for types only: a Job alone does not need it


# Questions and approvals of a Job, answered at the terminal.


def open_attended_host(options: HostOptions, output_options: OutputOptions, *, strict: bool = False) -> Host:
    """Return the Host of a command whose Job may ask the user at the terminal.

    Notes on stderr if programs run without a question. With `strict`, raises DefinitionError for warnings about the
    definition.
    """
    attended_options = replace(options, is_attended=lambda: can_ask(asks=not output_options.no_input))
    host = attended_options.open_host(strict=strict)
    if not output_options.quiet and (note := host.programs_note):
        print_err(f"note: {note}")
    return host


async def drive_and_ask(host: Host, drive: Callable[[OnEvent], Awaitable[JobSummary]], output: JobOutput) -> JobSummary:
    """Drive a Job and ask its questions at the terminal.

    Without an answer, or after Ctrl-C, the question stays open.
    """
    summary = await drive(output)
    while (asking := summary.asking) is not None and can_ask(asks=output.may_ask):
        output.pause()
        output.is_asking = True
        answer = await ask_person(asking, host, spending_line(summary))
        output.is_asking = False
        if not answer:
            break
        try:
            summary = await host.answer(answer, question_id=asking.id, by=this_user("cli"), drive=True, on_event=output)
        except UsageError as error:
            print_err(error.text_for(cli_phrase))
        except Conflict as error:
            print_err(error.text_for(cli_phrase))
            summary = await host.job(summary.id)
    return summary


async def drive_series_and_ask(
    host: Host, series: SeriesState, output: JobOutput, resume: Callable[[str], Awaitable[SeriesState]]
) -> SeriesState:
    """Ask the questions of an iteration's Job, and continue the iterations with `resume`."""
    while series.status == "paused" and series.job_id is not None and can_ask(asks=output.may_ask):
        paused_summary = await host.job(series.job_id)
        if paused_summary.asking is None:
            break

        async def waiting_summary(_: OnEvent, summary: JobSummary = paused_summary) -> JobSummary:
            return summary

        summary = await drive_and_ask(host, waiting_summary, output)
        if summary.asking is not None:
            break
        series = await resume(series.id)
    return series


def can_ask(*, asks: bool) -> bool:
    """Return whether a user at the terminal can read and answer questions; `asks` is false with `--no-input`."""
    is_typed = sys.stdin is not None and sys.stdin.isatty()  # pyright: ignore[reportUnnecessaryComparison]  # `<&-`
    return asks and is_typed and is_attended()


_T = TypeVar("_T")


def drive_and_report(host: Host, drive: Callable[[OnEvent], Awaitable[JobSummary]], output: JobOutput) -> int:
    """Drive a Job to its end or stop, report the outcome, and return the exit status."""
    summary = drive_interruptible(host, drive, output)
    return INTERRUPTED if summary is None else report_outcome(summary, output)


def drive_interruptible(
    host: Host, drive: Callable[[OnEvent], Awaitable[JobSummary]], output: JobOutput
) -> JobSummary | None:
    """Drive a Job to its end or stop with the Host open. Return None if it was interrupted before it began."""
    return run_interruptible(host, lambda: drive_and_ask(host, drive, output), lambda: job_of(host, output), output)


async def job_of(host: Host, output: JobOutput) -> JobSummary | None:
    """Return the Job whose events were shown; None if none were."""
    return await host.job(output.job_id) if output.job_id is not None else None


def run_interruptible(
    host: Host,
    work: Callable[[], Awaitable[_T]],
    interrupted: Callable[[], Awaitable[_T | None]],
    output: JobOutput,
    *,
    drives: bool = True,
) -> _T | None:
    """Run the work with the Host open, and return its result; after an interruption the result of `interrupted`.

    The first Ctrl-C (SIGTERM, SIGHUP) abandons the current step and records the interruption; the second ends the
    process. A closed stdout interrupts as well, without a message. `drives` is False if another process drives the
    steps.
    """

    async def main() -> _T | None:
        task = asyncio.ensure_future(work())
        output.on_lost = task.cancel
        on_continued(output.forget)
        with handle_stop_signals(lambda: _stop_task(task, output, drives=drives), lambda: _exit_at_once(output)):
            async with host:
                try:
                    return await task
                except asyncio.CancelledError:
                    return await interrupted()
                finally:
                    output.pause()

    result = asyncio.run(main())
    _report_lost(output, "so this was interrupted")
    return result


def _report_lost(output: JobOutput, consequence: str) -> None:
    """Report why stdout could not be written, unless its reader just stopped early."""
    if output.lost is not None and not isinstance(output.lost, BrokenPipeError):
        reason = system_reason(output.lost)
        with suppress(OSError):
            print_err(f"error: stdout cannot be written ({reason}), {consequence}")


def _stop_task(task: asyncio.Future[_T], output: JobOutput, *, drives: bool) -> None:
    task.cancel()
    if output.is_asking or not drives:  # nothing is running here
        return
    with suppress(OSError):  # the terminal itself may be gone
        output.remark("stopping after cleanup; press again to stop at once")


def _exit_at_once(output: JobOutput) -> None:
    output.pause()
    exit_now()


def report_outcome(summary: JobSummary, output: JobOutput, next_step: str | None = None) -> int:
    """Show the outcome and next step and return the exit status; a failure is reported on every stderr.

    The status is 1 too if the result of a completed Job could not be written.
    """
    was_lost = output.lost is not None
    if summary.status == "completed":
        output.result(summary.id, summary.text or "")
    text = outcome_line(summary, next_step)
    if summary.without_effect and not output.has_shown(summary.id):  # the view has shown the warning with the result
        print_err(f"warning: {summary.expert_key}: {WITHOUT_EFFECT}")
    if summary.status == "stoppedByError" or (output.form == "text" and summary.status != "completed"):
        print_err(text)
    else:
        output.remark(text)
    return status_of_output(output, exit_status_of(summary), f"perstack log --job {summary.id}", was_lost=was_lost)


def status_of_output(output: JobOutput, status: int, command: str, *, was_lost: bool) -> int:
    """Return the exit status, 1 if the result of a success could not be written; `command` shows it again."""
    if output.lost is None or was_lost or status != 0:
        return status
    _report_lost(output, f"so the result was not written; it is stored: {command}")
    return 1


def outcome_line(summary: JobSummary, next_step: str | None = None) -> str:
    """Return a line with the Job's status and next step. `next_step` replaces the usual step of a Job."""
    spending = spending_line(summary)
    text = {
        "completed": f"completed: {spending}; perstack log --job {summary.id}",
        "stoppedByError": f"failed after {spending}: {summary.error}",
        "stoppedByInteractiveTool": f"is waiting for an answer: {summary.asks}",
        "stoppedByMaxSteps": f"step limit reached ({spending})",
        "stoppedByBudget": f"stopped by its budget ({spending}): {summary.exceeded}",
        "stoppedByInterrupt": f"{_stop_reason(summary)} after {spending}",
        "running": f"is still running: {spending}",
        "queued": f"waits for a worker{_waiting_time(summary)}",
    }[summary.status]
    step = next_step_of_job(summary)
    text = f"{summary.expert_key} {text}"
    if step is None or summary.status == "completed":
        return text
    connective = "then " if summary.status == "stoppedByError" else ""  # a resume alone may fail in the same way
    return f"{text}; {connective}{next_step or cli_phrase(step)}"


def _waiting_time(summary: JobSummary) -> str:
    if summary.queued is None:
        return ""
    if summary.queued.due:
        return f", not before {local_time(summary.queued.due):%Y-%m-%d %H:%M}"
    return f" since {local_time(summary.queued.since):%Y-%m-%d %H:%M}"


def _stop_reason(summary: JobSummary) -> str:
    if summary.pause_reason != "rate_limit" or summary.resume_at is None:
        return "interrupted"
    time = local_time(summary.resume_at)
    return f"paused until {time:%Y-%m-%d %H:%M}, because of the provider's rate limit,"
