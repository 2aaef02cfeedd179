"""One step of a Run: the request, the reply, why each call was allowed or not, and forms to branch from here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perstack.core.base.chain import BrokenSeal, open_line
from perstack.core.definitions.permissions import RuleSet
from perstack.core.jobs.summary import RunSummary
from perstack.core.runs import events
from perstack.core.runs.log_rows import EventContext, LogRow, run_label
from perstack.dataclass import dataclass
from perstack.doors.shared.job_tasks import DriveJob
from perstack.doors.shared.log_view import CHECKPOINT_TYPES, calls_of_last_reply, rows_of
from perstack.doors.shared.text import minute
from perstack.engine.log.run_log import checkpoint_at
from perstack.errors import PerstackError, UsageError
from perstack_studio.call_reasons import CallReason, reasons_of, rules_after
from perstack_studio.conversation import Conversation, ConversationEntry
from perstack_studio.run_lines import RunLines, StepLines, StoredEntry, find_run
from perstack_studio.sent_requests import SentRequest, sent_request
from perstack_studio.studio import Studio, read_form, render_page, see_other, studio_of
from perstack_studio.views.conversation import MAX_CHARS

MAX_FOLDED = 3_000  # maximum events that are folded for the page of a step; with more, only at a person's request
_STEP = "/jobs/{job}/runs/{run}/steps/{step:place}"
_REDUCTIONS = (events.CompactHistory, events.ShrinkResults, events.DropText)


def pages() -> Iterable[BaseRoute]:
    """Return the routes: the step, a branch from its end, and the same step with another model."""
    yield Route(_STEP, _show_step, methods=["GET"])
    yield Route(f"{_STEP}/branch", _branch, methods=["POST"])
    yield Route(f"{_STEP}/rerun", _rerun, methods=["POST"])


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event of the step, with its digest and hash in the chain."""

    stored: StoredEntry
    rows: tuple[LogRow, ...]
    digest: str
    hash: str


@dataclass(frozen=True, slots=True)
class StepView:
    """A step as its page shows it, without the request."""

    lines: StepLines
    start: events.StartRun | None  # None if the first event cannot be read
    entries: tuple[ConversationEntry, ...]
    reasons: tuple[CallReason, ...]
    event_rows: tuple[EventRow, ...]
    generations: tuple[tuple[int, events.StartGeneration], ...]
    reductions: tuple[tuple[int, events.StoredEvent], ...]
    checkpoint_id: str  # checkpoint after the step; empty without one
    checkpoint_before: str  # checkpoint before the step; empty without one


def rows_at(stored: StoredEntry) -> tuple[LogRow, ...]:
    calls = calls_of_last_reply(stored.entry) if stored.entry.type == "callTools" else {}
    return tuple(rows_of(stored.entry, EventContext(calls, minute, full=True)))


def _event_row(stored: StoredEntry) -> EventRow:
    try:
        sealed = open_line(stored.entry.line)
    except BrokenSeal:  # a log of another program has no chain
        return EventRow(stored, rows_at(stored), "", "")
    return EventRow(stored, rows_at(stored), sealed.digest, sealed.hash)


async def read_step(run_lines: RunLines, number: int) -> StepView:
    """Return a step. Raises NotFound, and Damaged if the log is damaged before it."""
    lines = await run_lines.step(number)
    first = await run_lines.read(0, 1)
    start = first[0].event if first else None
    parsed = [(item.seq, event) for item in lines.entries if (event := item.event) is not None]
    conversation = Conversation()
    for seq, event in parsed:
        conversation.apply(seq, event)
    checkpoints = [event for _, event in parsed if event.type in CHECKPOINT_TYPES and checkpoint_at(event)]
    return StepView(
        lines,
        start if isinstance(start, events.StartRun) else None,
        tuple(conversation.entries),
        tuple(
            reasons_of(
                parsed,
                start.exec_grant if isinstance(start, events.StartRun) else None,
                await _rules_before(run_lines, lines.entries[0].seq),
            )
        ),
        tuple(map(_event_row, lines.entries)),
        tuple((seq, event) for seq, event in parsed if isinstance(event, events.StartGeneration)),
        tuple((seq, event) for seq, event in parsed if isinstance(event, _REDUCTIONS)),
        checkpoint_at(checkpoints[-1]) or "" if checkpoints else "",
        await _checkpoint_before(run_lines, lines, start),
    )


async def _rules_before(run_lines: RunLines, seq: int) -> tuple[RuleSet, ...] | None:
    """Return the rule sets in force before a place; None in a long log, or if an event before cannot be read."""
    if seq > MAX_FOLDED:
        return None
    earlier = await run_lines.read(0, seq - 1) if seq > 1 else ()
    if len(earlier) < seq - 1:  # the log is damaged there: a later event may have changed the rules
        return None
    rule_sets: tuple[RuleSet, ...] = ()
    for stored in earlier:
        if (event := stored.event) is None:
            return None
        rule_sets = rules_after(rule_sets, event)
    return rule_sets


async def _checkpoint_before(run_lines: RunLines, lines: StepLines, start: events.StoredEvent | None) -> str:
    """Return the checkpoint of the previous step or of the continued Run; empty without one."""
    seq = lines.entries[0].seq - 1
    if seq == 0 and isinstance(start, events.StartRun) and start.continued_from is not None:
        return start.continued_from.checkpoint_id
    lines_before = await run_lines.read(seq - 1, 1) if seq > 0 else ()
    event = lines_before[0].event if lines_before else None
    return "" if event is None else checkpoint_at(event) or ""


async def _show_step(request: Request) -> Response:
    studio, job_id, run_id = studio_of(request), request.path_params["job"], request.path_params["run"]
    summary, run_summary = await find_run(studio, job_id, run_id)
    step = await read_step(RunLines.of(studio, job_id, run_id, run_summary), request.path_params["step"])
    chosen = _chosen_generation(request, step)
    sent, problem = await _read_request(request, studio, job_id, step, chosen)
    shown = first_entries(step.entries)
    return await render_page(
        request,
        "step.html",
        summary=summary,
        run=run_summary,
        label=run_label(run_summary.expert_key, run_id),
        step=step,
        entries=shown,
        first_left_out=step.entries[len(shown)] if len(shown) < len(step.entries) else None,
        chosen=chosen,
        sent=sent,
        sent_problem=problem,
        may_branch=_is_coordinator(run_summary),
        model=f"{step.start.provider}/{step.start.model}" if step.start else "",
        tab="conversation",
        job_id=job_id,
        run_id=run_id,
    )


def first_entries(entries: Sequence[ConversationEntry]) -> Sequence[ConversationEntry]:
    """Return the first entries with at most `MAX_CHARS` in total, at least one."""
    chars = 0
    for number, entry in enumerate(entries):
        chars += entry.size
        if chars > MAX_CHARS and number > 0:
            return entries[:number]
    return entries


def _is_coordinator(run_summary: RunSummary) -> bool:
    return run_summary.delegated_by is None


def _chosen_generation(request: Request, step: StepView) -> int:
    """Return the place of the generation to show: by default that of the last one of the step; 0 without any."""
    places = [seq for seq, _ in step.generations]
    text = request.query_params.get("generation", "")
    return int(text) if text.isascii() and text.isdigit() and text in map(str, places) else max(places, default=0)


async def _read_request(
    request: Request, studio: Studio, job_id: str, step: StepView, chosen: int
) -> tuple[SentRequest | None, str]:
    """Return the request, or None and the reason; empty if the page offers to rebuild it."""
    event = dict(step.generations).get(chosen)
    if event is None:
        return None, "the log has no generation of this step: it began in the Run that this one continues"
    if chosen > MAX_FOLDED and "sent" not in request.query_params:
        return None, ""
    until = request.query_params.get("until", "")
    is_number = until.isascii() and until.isdigit() and len(until) < 10
    reduction_seqs = [seq for seq, _ in step.reductions if seq < chosen]
    previous = _event_before(step, reduction_seqs[0]) if reduction_seqs else None
    try:
        return await sent_request(studio, job_id, event, previous, int(until) if is_number else None), ""
    except (PerstackError, ValueError) as error:
        return None, f"it cannot be rebuilt from the log: {error}"


def _event_before(step: StepView, seq: int) -> str | None:
    """Return the id of the last event before a place at which the state of the Run can be read; None without one."""
    earlier = [item.event for item in step.lines.entries if item.seq < seq]
    last = next((event for event in reversed(earlier) if event is not None and event.type != "resumeRun"), None)
    return step.start.run_id + f"-{seq - 1}" if last is None and step.start else None if last is None else last.id


# Forms that start work from this step.


async def _read_post(request: Request) -> tuple[Studio, dict[str, str], RunSummary, StepView]:
    """Return studio, fields, Run and step of a posted form. Raises UsageError, NotFound and Damaged."""
    studio, fields = studio_of(request), await read_form(request)
    job_id, run_id = request.path_params["job"], request.path_params["run"]
    await studio.served_project.refresh()
    await studio.served_project.job_to_drive(job_id)
    _, run_summary = await find_run(studio, job_id, run_id)
    step = await read_step(RunLines.of(studio, job_id, run_id, run_summary), request.path_params["step"])
    return studio, fields, run_summary, step


async def _branch(request: Request) -> Response:
    """Start a Run with the messages up to the end of this step, and another query."""
    studio, fields, run_summary, step = await _read_post(request)
    query = fields.get("query", "").strip()
    if not query:
        raise UsageError("write what the Expert should do from here")
    if not step.checkpoint_id or not _is_coordinator(run_summary):
        raise UsageError("only a checkpoint of the Coordinator can be branched from")
    work = _continue_from(studio, run_summary, query, step.checkpoint_id, None, request)
    return await _start_work(request, studio, work)


async def _rerun(request: Request) -> Response:
    """Start the Run again as a new Job with another model, or continue before this step with that model."""
    studio, fields, run_summary, step = await _read_post(request)
    model, query = fields.get("model", "").strip(), fields.get("query", "").strip()
    if not model:
        raise UsageError("name a model")
    if step.start is None:
        raise UsageError("the first event of the Run cannot be read, so it cannot be started again")
    if step.checkpoint_before and _is_coordinator(run_summary) and fields.get("from") == "here":
        if not query:
            raise UsageError("write what the model should do from here")
        work = _continue_from(studio, run_summary, query, step.checkpoint_before, model, request)
        return await _start_work(request, studio, work)
    studio.served_project.definitions.check_offered(run_summary.expert_key)
    jobs, query = studio.host.jobs.on_model(model), step.start.query
    if studio.host.leaves_to_workers:
        return see_other(f"/jobs/{(await jobs.submit(run_summary.expert_key, query, by=studio.by)).id}")
    return await _start_work(request, studio, partial(jobs.run, run_summary.expert_key, query))


def _continue_from(
    studio: Studio, run_summary: RunSummary, query: str, checkpoint_id: str, model: str | None, request: Request
) -> DriveJob:
    return partial(
        studio.host.jobs.on_model(model).continue_job,
        run_summary.expert_key,
        query,
        job_id=request.path_params["job"],
        resume_from=checkpoint_id,
    )


async def _start_work(request: Request, studio: Studio, work: DriveJob) -> Response:
    job_id = await studio.served_project.job_tasks.start(work, None).wait_until_begun()
    return see_other(f"/jobs/{job_id}")
