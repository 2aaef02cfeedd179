"""Checking a Job's logs: against their own chain, against heads kept elsewhere, and against the loop's rules."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from perstack.core.chain import EMPTY_LOG, BrokenSeal, Head, check
from perstack.core.events import FinishToolCall, StartRun, StoredEvent, parse_event
from perstack.core.job import JobSummary
from perstack.core.replay import difference
from perstack.core.run import Run, begin, evolve, inheritable
from perstack.engine.load import event_of, load_run, readable, run_ids
from perstack.errors import Damaged, NotFound
from perstack.ports.storage import RunRef, Storage


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not hold."""

    run_id: str
    seq: int
    """The place in the log, from 1; 0 for the log as a whole."""
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked, and what was found."""

    job_id: str
    runs: int
    events: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


async def verify_job(storage: Storage, job_id: str) -> Report:
    """Check every line's digest and hash, and each log's end against the heads kept in other places."""
    findings: list[Finding] = []
    heads: dict[str, dict[int, str]] = {}
    anchors: list[tuple[str, Head]] = []
    for run_id in await run_ids(storage, job_id):
        lines, damage = await _readable(storage, RunRef(job_id, run_id))
        findings += damage
        chain: dict[int, str] = {}
        head = EMPTY_LOG
        for line in lines:
            try:
                sealed, head = check(head, line)
            except BrokenSeal as error:
                findings.append(Finding(run_id, head.seq + 1, str(error)))
                break
            chain[head.seq] = head.hash
            anchors += _delegate_anchors(sealed.payload)
        heads[run_id] = chain
    anchors += _summary_anchors(await storage.summary(job_id))
    for run_id, anchor in anchors:
        findings += _against_anchor(run_id, anchor, heads.get(run_id, {}))
    events = sum(len(chain) for chain in heads.values())
    return Report(job_id, len(heads), events, tuple(dict.fromkeys(findings)))


async def replay_job(storage: Storage, job_id: str) -> Report:
    """Drive each Run again from its log, without a model, and compare every decision."""
    findings: list[Finding] = []
    count = 0
    ids = await run_ids(storage, job_id)
    for run_id in ids:
        ref = RunRef(job_id, run_id)
        lines, damage = await _readable(storage, ref)
        replayed, wrong = await _replay(storage, ref, lines)
        count += replayed
        findings += damage + wrong
    return Report(job_id, len(ids), count, tuple(findings))


async def _replay(storage: Storage, ref: RunRef, lines: list[bytes]) -> tuple[int, list[Finding]]:
    """How many events of a Run were replayed, and the first that is not what the loop would have done."""
    run: Run | None = None
    head = EMPTY_LOG
    for seq, line in enumerate(lines, 1):
        try:
            sealed, head = check(head, line)
            event = event_of(ref, seq, sealed.payload)
            if run is None:
                run = await _begun(storage, event, head)
                continue
        except (BrokenSeal, Damaged, NotFound) as error:
            return seq, [Finding(ref.run_id, seq, str(error))]
        wrong = difference(run, event)
        if wrong is not None:
            return seq, [Finding(ref.run_id, seq, wrong)]
        run = evolve(run, event, head)
    return len(lines), []


async def _begun(storage: Storage, event: StoredEvent, head: Head) -> Run:
    if not isinstance(event, StartRun):
        raise Damaged(f"the log of {event.run_id} does not begin with startRun", readable=0)
    inherited = None
    if event.continued_from is not None:
        ref = RunRef(event.job_id, event.continued_from.run_id)
        base = await load_run(storage, ref, through=event.continued_from.checkpoint_id)
        inherited = None if base is None else inheritable(base)
    return begin(event, head, inherited)


async def _readable(storage: Storage, ref: RunRef) -> tuple[list[bytes], list[Finding]]:
    lines, damage = await readable(storage, ref)
    return lines, [] if damage is None else [Finding(ref.run_id, damage.readable + 1, str(damage))]


def _delegate_anchors(payload: bytes) -> list[tuple[str, Head]]:
    try:
        event = parse_event(payload)
    except ValueError:
        # redacted, or of a newer version: the chain holds all the same
        return []
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
