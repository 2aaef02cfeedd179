"""The commands `perstack resume`, `cancel` and `tell`, and what `perstack log --standing` prints."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import get_args

import click

from perstack.core.base.ids import job_of_run
from perstack.core.base.text import approvable_line
from perstack.core.jobs.resuming import UnsettledCall
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.facts import Settlement
from perstack.doors.cli.driving import drive_and_ask, job_of, open_attended_host, report_outcome, run_interruptible
from perstack.doors.cli.inbox import check_no_tool
from perstack.doors.cli.iterations import SeriesOutput, check_target, report_series
from perstack.doors.cli.options import (
    GroupedCommand,
    HostOptions,
    driving_options,
    json_option,
    place_options,
    total_options,
)
from perstack.doors.cli.output import JobOutput, OutputOptions, output_options
from perstack.doors.cli.param_types import read_text
from perstack.doors.cli.terminal import print_err, print_out, write_json_line
from perstack.doors.shared.next_step_phrases import cli_phrase
from perstack.doors.shared.screen import Screen
from perstack.doors.shared.signals import INTERRUPTED
from perstack.doors.shared.status_phrases import job_line, next_step_of_job
from perstack.engine.log.run_session import OnEvent
from perstack.errors import UsageError
from perstack.host import Host
from perstack.iterations.state import SeriesState
from perstack.next_steps import Resume
from perstack.posted_texts.model import Delivery, StandingText
from perstack.system.user import this_user

# perstack tell, and perstack log --standing


@click.command("tell")
@click.argument("job")
@click.argument("text", required=False)
@click.option("--run", "run_id", metavar="RUN", help="The Run to tell, such as JOB-2; by default the Coordinator.")
@click.option("--drop", "dropped", metavar="ID", help="Remove a text that `perstack log --standing` lists.")
@json_option("Print the text's id, and how it reaches its Run, as a JSON object.")
@place_options
def tell_command(
    job: str, text: str | None, run_id: str | None, dropped: str | None, as_json: bool, options: HostOptions
) -> None:
    """Tell JOB something: its model sees TEXT before its next generation, whichever process drives it.

    The text is kept word for word, even when the history is summarised. A Job that is stopped, queued or waiting for an
    answer sees it when it continues. TEXT `-` reads from stdin.
    """
    if (text is None) == (dropped is None):
        raise UsageError("give TEXT, or --drop ID to remove an earlier text")
    if dropped is not None and run_id is not None:
        raise UsageError("--drop needs no Run, since the ID names it: leave --run out")
    check_no_tool("tell a Job what a person says")
    saying_text = None if text is None else read_text(text)

    async def tell(host: Host) -> tuple[Delivery, JobSummary]:
        job_id, by = await host.jobs.complete_id(job), this_user("cli")
        if saying_text is None:
            delivery = await host.texts.drop(job_id, dropped or "", by=by)
        else:
            run = await host.jobs.complete_id(run_id)
            delivery = await host.tell(job_id, saying_text, run_id=run, by=by)
        return delivery, await host.job(job_id)

    delivery, summary = options.change(tell)
    if as_json:
        write_json_line(delivery.to_json())
    else:
        print_out(_delivery_line(delivery, summary, "told" if dropped is None else "removed"))


def _delivery_line(delivery: Delivery, summary: JobSummary, word: str) -> str:
    step = (
        None if delivery.is_driven or delivery.status == "queued" else next_step_of_job(summary) or Resume(summary.id)
    )
    way_on = "" if step is None else f"; {cli_phrase(step)}"
    return f"Job {summary.id}: {word}; {delivery.words}{way_on}"


async def show_standing(host: Host, job_id: str | None, run_id: str | None, *, as_json: bool) -> int:
    """Print the texts that are never summarised away for the Coordinator of a Job, or a Run. Return the exit status."""
    run_id = await host.jobs.complete_id(run_id)
    job_id = await host.jobs.complete_id(job_id) if run_id is None or job_id is not None else job_of_run(run_id)
    texts = await host.texts.standing_texts(await host.jobs.id_or_latest(job_id), run_id=run_id)
    if as_json:
        for text in texts:
            write_json_line(text.to_json())
        return 0
    screen = Screen.of_stdout()
    for text in texts:
        print_out(screen.styled(_author_line(text), dim=True))
        print_out("\n".join(f"  {line}" for line in text.text.splitlines()))
    if not texts:
        print_out(screen.styled("no person has told this Job anything", dim=True))
    return 0


def _author_line(text: StandingText) -> str:
    if text.is_of_definition:
        return "`standing` of the definition"
    author = "" if text.by is None else f"  {text.by}"
    return f"{text.id}{author}{'  waits' if text.is_waiting else ''}"


# perstack cancel


@click.command("cancel")
@click.argument("job")
@click.option("--final", is_flag=True, help="Close the Job permanently, even if it is waiting or paused.")
@click.option("--reason", metavar="TEXT", default="", help="With --final: the reason to record.")
@json_option("Print the Job's summary as a JSON object.")
@place_options
def cancel_command(job: str, final: bool, reason: str, as_json: bool, options: HostOptions) -> None:
    """Stop JOB in any process, as Ctrl-C there would. The Job is recorded as interrupted, and can be resumed.

    Exit status 2 if no process drives it, 1 if that process has not stopped within half a minute.
    """
    if reason and not final:
        raise UsageError("--reason is recorded only with --final")

    async def stop(host: Host) -> JobSummary:
        job_id = await host.jobs.complete_id(job)
        await host.cancel(job_id, final=final, by=this_user("cli"), reason=reason)
        return await host.job(job_id)

    summary = options.change(stop)
    if as_json:
        write_json_line(summary.to_json())
        return
    print_out(job_line(summary, cli_phrase))


_SETTLEMENTS: dict[str, Settlement] = {how: how for how in get_args(Settlement)}


@click.command("resume", cls=GroupedCommand)
@click.argument("typed", metavar="[JOB]", required=False)
@click.option(
    "--settle",
    multiple=True,
    metavar="CALL=done|retry|ask|tell",
    help=(
        "How an interrupted call without a result ended, or `ask`; by default the model sees that it was interrupted."
    ),
)
@click.option(
    "--max-iterations", type=click.IntRange(min=1), metavar="N", help=("For iterations: maximum further iterations.")
)
@click.option("--target", type=float, metavar="X", help="For iterations: a new target.")
@total_options
@click.option(
    "--definition",
    type=click.Choice(("started", "current")),
    default="started",
    show_default=True,
    help="For iterations: use the recorded definition, or the current perstack.toml.",
)
@click.option("--resume-from", metavar="CHECKPOINT", help="With -i: the checkpoint of the question.")
@click.option(
    "-i",
    "--interactive-tool-call-result",
    "answer",
    metavar="TEXT",
    help="With --resume-from: answer that question again, in a branch.",
)
@click.option(
    "--before-compaction", is_flag=True, help="Start a branch before the latest compaction, with the full history."
)
@output_options
@driving_options
def resume_command(
    typed: str | None,
    settle: tuple[str, ...],
    max_iterations: int | None,
    target: float | None,
    total_cost: float | None,
    total_tokens: int | None,
    definition: str,
    resume_from: str | None,
    answer: str | None,
    before_compaction: bool,
    output_options: OutputOptions,
    options: HostOptions,
) -> None:
    """Resume JOB, by default the latest: the same Runs continue with their recorded settings.

    If JOB is the id of iterations, these continue, with their recorded settings and definition.
    """
    settled = _settlements(settle)
    check_target(target)
    is_more = bool(settled) or max_iterations is not None or target is not None
    _check_options(resume_from, answer, before_compaction, is_more=is_more)
    host = open_attended_host(options, output_options)
    lines = SeriesOutput(output_options)

    async def resume_target() -> JobSummary | SeriesState:
        job = await host.jobs.complete_id(typed, ("job", "iterations"))
        if answer is not None:
            await lines.on_event.begin(host, job)
            by, start = this_user("cli"), await host.jobs.complete_id(resume_from)
            return await host.answer(answer, job_id=job, resume_from=start, by=by, drive=True, on_event=lines.on_event)
        if job is not None and await host.iterations.has(job):
            if settled:
                raise UsageError(f"--settle is for Jobs, but {job} is the id of iterations: resume their Job first")
            more = max_iterations or 0
            series = await host.iterations.resume(
                job,
                more=more,
                target=target,
                max_cost=total_cost,
                max_tokens=total_tokens,
                current=definition == "current",
                on_event=lines.on_event,
                on_fact=lines.on_fact,
            )
            return await lines.ask_open_questions(host, series)
        of_series = (max_iterations, target, total_cost, total_tokens)
        if any(value is not None for value in of_series) or definition != "started":
            raise UsageError(
                "--max-iterations, --target, --total-cost, --total-tokens and --definition are for iterations:"
                " give an id that `perstack iterations` lists"
            )
        go_on = _make_resume(host, job, settled, lines.on_event, before_compaction)
        return await drive_and_ask(host, go_on, lines.on_event)

    async def state_after_interrupt() -> JobSummary | SeriesState | None:
        return await lines.state(host) or await job_of(host, lines.on_event)

    result = run_interruptible(host, resume_target, state_after_interrupt, lines.on_event)
    if result is None:
        sys.exit(INTERRUPTED)
    sys.exit(
        report_series(result, lines.on_event)
        if isinstance(result, SeriesState)
        else report_outcome(result, lines.on_event)
    )


def _check_options(resume_from: str | None, answer: str | None, before_compaction: bool, *, is_more: bool) -> None:
    """Raise UsageError for options that do not go together."""
    if (resume_from is None) != (answer is None):
        raise UsageError("--resume-from and -i go together; answer an open question with: perstack answer ID TEXT")
    if answer is not None and is_more:
        raise UsageError("-i answers a Job's question: leave out --settle, --max-iterations and --target")
    if before_compaction and (answer is not None or is_more):
        raise UsageError("--before-compaction begins a branch: leave out -i, --settle, --max-iterations and --target")


def _make_resume(
    host: Host, job: str | None, settled: dict[str, Settlement], output: JobOutput, before_compaction: bool
) -> Callable[[OnEvent], Awaitable[JobSummary]]:
    def show(calls: tuple[UnsettledCall, ...]) -> None:
        _show_unsettled(calls, settled)

    async def resume_job(on_event: OnEvent) -> JobSummary:
        await output.begin(host, job)
        if before_compaction:
            return await host.jobs.resume_before_compaction(job, on_event=on_event)
        return await host.resume(job, settle=settled, on_unsettled=show, on_event=on_event)

    return resume_job


def _settlements(texts: tuple[str, ...]) -> dict[str, Settlement]:
    settled: dict[str, Settlement] = {}
    for text in texts:
        call, _, word = text.rpartition("=")
        if not call or word not in _SETTLEMENTS:
            raise UsageError(f"--settle {text}: write it as CALL=done, CALL=retry, CALL=ask or CALL=tell")
        settled[call] = _SETTLEMENTS[word]
    return settled


def _show_unsettled(calls: tuple[UnsettledCall, ...], settled: dict[str, Settlement]) -> None:
    print_err("calls that began but have no result:")
    for unsettled_call in calls:
        word = settled.get(unsettled_call.key) or settled.get(unsettled_call.call_id) or "tell"
        print_err(
            f"  {unsettled_call.key}  {unsettled_call.expert_key}: {unsettled_call.tool_name}"
            f" {approvable_line(unsettled_call.args)}  -> {word}"
        )
