"""Checking a Job's logs: against their chain, heads kept elsewhere, what is derived from them, and the loop's rules."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import ValidationError

from perstack.core.chain import EMPTY_LOG, BrokenSeal, Head
from perstack.core.chain import check as check_line
from perstack.core.events import FinishToolCall, StartRun, StoredEvent
from perstack.core.job import Job, JobSummary
from perstack.core.replay import difference
from perstack.core.run import Run, begin, evolve
from perstack.core.verification import Checked, Finding, Report, Unchecked, UncheckedKind, against_logs
from perstack.engine.load import event_of, load_run, readable, run_ids
from perstack.engine.requests import KeptToolsCheck, RequestCheck
from perstack.errors import Damaged, NotFound
from perstack.ports.storage import ReadsOriginals, RunRef, Storage


@dataclass(slots=True)
class _Check:
    """What is known of a Job so far."""

    job: Job
    """The fold of what was read."""
    tools: KeptToolsCheck
    heads: dict[str, dict[int, str]] = field(default_factory=dict[str, "dict[int, str]"])
    """Of each log the hash at each place."""
    anchors: list[tuple[str, Head]] = field(default_factory=list[tuple[str, Head]])
    """The ends of logs that are kept elsewhere."""
    digests: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])
    unchecked: list[Unchecked] = field(default_factory=list[Unchecked])

    def found(self, run_id: str, seq: int, message: str) -> None:
        self.findings.append(Finding(run_id, seq, message))

    def passed_over(self, kind: UncheckedKind, run_id: str, count: int, message: str) -> None:
        self.unchecked.append(Unchecked(kind, run_id, count, message))


async def verify_job(storage: Storage, job_id: str) -> Report:
    """Check every line's digest and hash, each log's end against the heads kept in other places, and what is derived
    against the logs."""
    check = _Check(Job(job_id), KeptToolsCheck(storage, job_id))
    unsealed = await _unsealed(storage, job_id)
    for run_id in await run_ids(storage, job_id):
        lines, damage = await readable(storage, RunRef(job_id, run_id))
        await _check_log(check, RunRef(job_id, run_id), lines)
        if damage is not None:
            check.found(run_id, damage.readable + 1, str(damage))
        if run_id in unsealed:
            check.passed_over("digests", run_id, len(lines), "the original Perstack wrote it, without digests")
        else:
            check.digests += len(check.heads[run_id])
    summary = await storage.summary(job_id)
    check.anchors += _summary_anchors(summary)
    for run_id, anchor in check.anchors:
        check.findings += _against_anchor(run_id, anchor, check.heads.get(run_id, {}))
    has_compared = summary is not None and _check_summary(check, summary, is_ours=not unsealed)
    return Report(
        job_id,
        len(check.heads),
        sum(len(chain) for chain in check.heads.values()),
        tuple(dict.fromkeys(check.findings)),
        tuple(check.unchecked),
        Checked(check.digests, len(check.anchors), int(has_compared)),
    )


async def _unsealed(storage: Storage, job_id: str) -> frozenset[str]:
    return await storage.unsealed_runs(job_id) if isinstance(storage, ReadsOriginals) else frozenset()


async def _check_log(check: _Check, ref: RunRef, lines: list[bytes]) -> None:
    """One log against its own chain; what it tells of is taken into the Job."""
    chain = check.heads[ref.run_id] = {}
    head = EMPTY_LOG
    unread = 0
    for line in lines:
        try:
            sealed, head = check_line(head, line)
        except BrokenSeal as error:
            check.found(ref.run_id, head.seq + 1, str(error))
            break
        chain[head.seq] = head.hash
        try:
            event = event_of(ref, head.seq, sealed.payload)
        except Damaged:  # taken out, or of a newer version: the chain holds all the same
            unread += 1
            continue
        check.anchors += _delegate_anchors(event)
        check.findings += await _missing_tools(check.tools, event, head.seq)
        _take_in(check, ref, head, event)
    if unread:
        message = f"its content was taken out, or a newer version has written it ({unread} of {len(chain)} events)"
        check.passed_over("content", ref.run_id, unread, message)


def _take_in(check: _Check, ref: RunRef, head: Head, event: StoredEvent) -> None:
    if (event.job_id, event.run_id) != (ref.job_id, ref.run_id):
        check.found(ref.run_id, head.seq, f"an event of another Run, {event.run_id}")
        return
    if event.run_id not in check.job.runs and not isinstance(event, StartRun):
        if head.seq == 1:
            check.found(ref.run_id, 1, "the log does not begin with startRun")
        return
    check.job.apply(event)
    check.job.anchor(ref.run_id, head.seq, head.hash)


def _check_summary(check: _Check, written: bytes, *, is_ours: bool) -> bool:
    """Whether job.json could be compared with what the logs add up to."""
    try:
        summary = JobSummary.model_validate_json(written)
    except ValidationError:
        if is_ours:
            check.found("", 0, "job.json does not read; delete it: what it says is in the logs")
        else:
            check.passed_over("summary", "", 1, "job.json is of another shape; nothing is taken from it")
        return False
    if check.findings or not check.job.coordinators:
        return False  # the logs are wrong themselves
    if summary.status == "running":
        check.passed_over("summary", "", 1, "job.json was written while the Job ran; what is shown is from the logs")
        return False
    if any(one.kind == "content" for one in check.unchecked):
        check.passed_over(
            "summary", "", 1, "what job.json says cannot be derived from logs that do not read as a whole"
        )
        return False
    for words in against_logs(written, check.job):
        check.found("", 0, f"job.json {words}")
    return True


async def replay_job(storage: Storage, job_id: str) -> Report:
    """Drive each Run again from its log, without a model, and compare every decision and every request."""
    findings: list[Finding] = []
    unchecked: list[Unchecked] = []
    count = compared = 0
    tools = KeptToolsCheck(storage, job_id)
    ids = await run_ids(storage, job_id)
    for run_id in ids:
        ref = RunRef(job_id, run_id)
        lines, damage = await readable(storage, ref)
        requests = RequestCheck()
        replayed, wrong = await _replay(storage, ref, lines, requests, tools)
        count += replayed
        compared += requests.compared
        if requests.uncompared:
            words = "the log has no digest of what the model was sent, or one of another version"
            unchecked.append(Unchecked("requests", run_id, requests.uncompared, words))
        if damage is not None:
            findings.append(Finding(run_id, damage.readable + 1, str(damage)))
        findings += wrong
    return Report(job_id, len(ids), count, tuple(findings), tuple(unchecked), Checked(requests=compared))


async def _replay(
    storage: Storage, ref: RunRef, lines: list[bytes], requests: RequestCheck, tools: KeptToolsCheck
) -> tuple[int, list[Finding]]:
    """How many events of a Run were replayed, and the first that is not what the loop would have done.

    Tools that are missing do not end it: that they were those named is known of the digests alone.
    """
    missing: list[Finding] = []
    run: Run | None = None
    head = EMPTY_LOG
    for seq, line in enumerate(lines, 1):
        try:
            sealed, head = check_line(head, line)
            event = event_of(ref, seq, sealed.payload)
            if run is None:
                run = await _begun(storage, event, head)
                continue
        except (BrokenSeal, Damaged, NotFound) as error:
            return seq, [*missing, Finding(ref.run_id, seq, str(error))]
        missing += await _missing_tools(tools, event, seq)
        wrong = difference(run, event) or requests.difference(run, event)
        if wrong is not None:
            return seq, [*missing, Finding(ref.run_id, seq, wrong)]
        run = evolve(run, event, head)
    return len(lines), missing


async def _missing_tools(check: KeptToolsCheck, event: StoredEvent, seq: int) -> list[Finding]:
    problem = await check.problem(event)
    return [] if problem is None else [Finding(event.run_id, seq, problem)]


async def _begun(storage: Storage, event: StoredEvent, head: Head) -> Run:
    if not isinstance(event, StartRun):
        raise Damaged(f"the log of {event.run_id} does not begin with startRun", readable=0)
    base = None
    if event.continued_from is not None:
        ref = RunRef(event.job_id, event.continued_from.run_id)
        base = await load_run(storage, ref, through=event.continued_from.checkpoint_id)
    return begin(event, head, base)


def _delegate_anchors(event: StoredEvent) -> list[tuple[str, Head]]:
    if not isinstance(event, FinishToolCall) or event.delegate is None:
        return []
    return [(event.delegate.run_id, Head(event.delegate.seq, event.delegate.hash))]


def _summary_anchors(summary: bytes | None) -> list[tuple[str, Head]]:
    if summary is None:
        return []
    try:
        runs = JobSummary.model_validate_json(summary).runs
    except ValidationError:
        return []
    return [(run.id, Head(run.head_seq, run.head_hash)) for run in runs if run.head_seq]


def _against_anchor(run_id: str, anchor: Head, chain: dict[int, str]) -> list[Finding]:
    if anchor.seq not in chain:
        text = f"the log ends at {len(chain)}, but a head kept elsewhere says it had {anchor.seq} events"
        return [Finding(run_id, 0, text)]
    if chain[anchor.seq] != anchor.hash:
        return [Finding(run_id, anchor.seq, "the log was rewritten: its hash differs from a head kept elsewhere")]
    return []
