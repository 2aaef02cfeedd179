"""Results of a cluster's Jobs, read from their logs and compared with observations outside the storage."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import NamedTuple

from cluster_machines import Cluster
from cluster_project import INPUT, KINDS, OUTPUT, SCHEDULES

from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.events.generations import FinishGeneration
from perstack.core.runs.events.lifecycle import ErrorRun, FinishRun, QueueRun
from perstack.core.runs.events.tool_calls import CallTools, FinishToolCall
from perstack.ports.storage import RunRef

MINUTE = 60_000
_LOOKED_AFTER = 30_000
"""Milliseconds after which an occurrence has certainly been started, whatever happened to the workers."""


@dataclass
class Counts:
    """Totals and faults. Each list holds faults of one kind."""

    jobs: int = 0
    runs: int = 0
    poisoned: int = 0
    """Delegates that were claimed by three workers in a row that ended."""
    apart: int = 0
    """Delegates that were queued for any worker."""
    events: int = 0
    tokens: int = 0
    occurrences: int = 0
    passed_over: int = 0
    effects: int = 0
    interrupted: int = 0
    told: int = 0
    untold: int = 0
    """Events whose write no process saw confirmed: it ended, or was cut off, before the answer."""
    taken_over: int = 0
    leaving_s: float = 0.0
    """Seconds in which all workers left, one after another. Nobody starts schedules meanwhile."""
    not_once: list[str] = field(default_factory=list[str])
    wrong_totals: list[str] = field(default_factory=list[str])
    doubled: list[str] = field(default_factory=list[str])
    lost: list[str] = field(default_factory=list[str])
    lost_events: list[str] = field(default_factory=list[str])
    other_events: list[str] = field(default_factory=list[str])
    """Events confirmed as written that have other content or another place, or were confirmed twice."""
    wrong_occurrences: list[str] = field(default_factory=list[str])
    findings: list[str] = field(default_factory=list[str])
    noise: list[str] = field(default_factory=list[str])
    """Output of workers that is not a log line."""

    @property
    def faults(self) -> dict[str, list[str]]:
        """The non-empty lists of faults."""
        return {name: found for name, found in vars(self).items() if isinstance(found, list) and found}

    def table(self) -> Iterator[str]:
        """Yield a line for each count."""
        rows = (
            ("Jobs, each completed once", self.jobs, f"{len(self.not_once)} not"),
            ("Runs", self.runs, ""),
            ("delegates driven apart", self.apart, f"{self.poisoned} with three workers that ended"),
            ("tokens, in Runs as in Jobs", self.tokens, f"{len(self.wrong_totals)} Jobs with wrong totals"),
            ("effects", self.effects, f"{len(self.doubled)} doubled, {len(self.lost)} lost"),
            ("calls interrupted", self.interrupted, ""),
            ("events in the logs", self.events, f"{len(self.findings)} findings of verify"),
            ("events seen written", self.told, f"{len(self.lost_events)} lost, {len(self.other_events)} other"),
            ("events seen by nobody", self.untold, ""),
            ("occurrences, each once", self.occurrences, f"{len(self.wrong_occurrences)} wrong"),
            ("occurrences passed over", self.passed_over, ""),
            ("takeovers", self.taken_over, ""),
            ("seconds until all had left", round(self.leaving_s), ""),
        )
        for name, count, wrong in rows:
            yield f"{name:<30}{count:>8}  {wrong}".rstrip()


async def count_outcomes(running: Cluster, leaving_at: int) -> Counts:
    """Examine every log after the workers left. They were told to at `leaving_at`, in milliseconds since 1970."""
    counts, ledger = Counts(), running.ledger()
    counts.leaving_s = round(time.time() - leaving_at / 1000, 1)
    occurred = await _jobs_by_minute(running)
    check_occurrences(counts, occurred, leaving_at)
    jobs = [await running.host.job(job_id) for job_id in running.jobs]
    jobs += [job for each in occurred.values() for job in each.values() if job.status == "completed"]
    calls, digests = set[str](), dict[str, str]()
    for job in jobs:
        await _count_job(running, counts, job, ledger, calls, digests)
    counts.jobs, counts.effects = len(jobs), len(ledger)
    mine = {f"{job.id}-" for job in jobs}
    counts.doubled += [key for key, times in ledger.items() if times > 1]
    counts.doubled += [f"{key}: no log has it" for key in ledger if key not in calls and _job_prefix(key, 3) in mine]
    compare(counts, running.confirmed_events(), digests, mine)
    async for report in running.host.audit.verify_all():
        counts.findings += [f"{report.job_id}: {one}" for one in report.findings]
    for machine in running.machines:
        for line in (machine.folder / "worker.log").read_text().splitlines():
            try:
                counts.taken_over += "takeovers" in json.loads(line)
            except ValueError:
                counts.noise.append(line)
    return counts


def _job_prefix(id: str, parts: int) -> str:
    """Return the Job's prefix of an id that ends with `parts` more parts."""
    return f"{id.rsplit('-', parts)[0]}-"


async def _count_job(
    running: Cluster, counts: Counts, job: JobSummary, ledger: Counter[str], calls: set[str], digests: dict[str, str]
) -> None:
    host, ends, appends = running.host, 0, 0
    steps = used = 0
    errors, poisoned = list[str](), 0
    open_calls = set[str]()
    for run in job.runs:
        counts.runs += 1
        for place, line in enumerate(await host.storage.read(RunRef(job.id, run.id)), 1):
            digests[f"{run.id}-{place}"] = sha256(line).hexdigest()
        events = [line.event for line in await host.events(run.id)]
        open_calls.clear()
        counts.apart += run.delegated_by is not None and any(isinstance(event, QueueRun) for event in events)
        for event in events:
            counts.events += 1
            if isinstance(event, ErrorRun):
                errors.append(f"{run.id}: {event.error.name}, {event.error.message}")
                if run.delegated_by is not None and event.error.name == "PoisonJob":
                    poisoned += 1
                    calls |= open_calls  # made, perhaps, by the worker that ended; nobody continues the delegate
            if isinstance(event, CallTools):
                open_calls = {f"{run.id}-{event.step_number}-{call.id}" for call in event.calls}
            if isinstance(event, FinishToolCall) and event.is_error:
                errors.append(f"{run.id}, {event.tool_name}: {event.contents}")
            ends += isinstance(event, FinishRun) and run.id == job.coordinator_run_id
            if isinstance(event, FinishGeneration):
                steps, used = steps + 1, used + event.usage.input_tokens + event.usage.output_tokens
            if isinstance(event, FinishToolCall) and event.tool_name == "append":
                appends += 1
                key = f"{run.id}-{event.step_number}-{event.tool_call_id}"
                calls.add(key)
                text = "".join(getattr(part, "text", "") for part in event.contents)
                if text != f"kept {key}":
                    counts.interrupted += 1
                elif not ledger[key]:
                    counts.lost.append(key)
    if ends != 1 or job.status != "completed":
        counts.not_once.append(f"{job.id}: {job.status}, ended {ends} times")
    counts.tokens += used
    counts.poisoned += poisoned
    check_totals(counts, job, Totals(steps, used, appends), poisoned=poisoned, errors=errors)


class Totals(NamedTuple):
    """Steps, tokens and calls of the ledger that the events of a Job's Runs add up to."""

    steps: int
    tokens: int
    appends: int


def check_totals(counts: Counts, job: JobSummary, totals: Totals, *, poisoned: int, errors: list[str]) -> None:
    """Check that the summary of a Job, those of its Runs, and its events agree, and are what its Expert does.

    After `poisoned` of its delegates were stopped as poison, the Job continues with their errors: it has fewer
    steps than its Expert's script, and each of these delegates may have begun a step without a reply. The totals still
    agree.
    """
    kind = KINDS[job.expert_key]
    in_summary = (job.total_steps, job.usage.input_tokens, job.usage.output_tokens)
    in_runs = (
        sum(run.steps for run in job.runs),
        sum(run.usage.input_tokens for run in job.runs),
        sum(run.usage.output_tokens for run in job.runs),
    )
    expected = (kind.steps, kind.steps * INPUT, kind.steps * OUTPUT)
    unanswered_steps = in_summary[0] - totals.steps
    agree = (
        in_summary == in_runs and 0 <= unanswered_steps <= poisoned and totals.tokens == in_summary[1] + in_summary[2]
    )
    are_due = in_summary == expected and totals.appends == kind.appends
    are_fewer = all(
        one <= most for one, most in zip((*in_summary, totals.appends), (*expected, kind.appends), strict=True)
    )
    if agree and (are_due or (are_fewer and poisoned)):
        return
    text = f"{in_summary}, in its Runs {in_runs}, in its events {totals}"
    stand = ", ".join(f"{run.id} {run.status} after {run.steps} steps" for run in job.runs)
    expectation = f"{expected} are due, {kind.appends} calls"
    counts.wrong_totals.append(f"{job.id} ({job.expert_key}) has {text}; {expectation}: {stand}; {errors}")


def compare(counts: Counts, confirmed: list[tuple[str, str]], digests: dict[str, str], job_prefixes: set[str]) -> None:
    """Compare confirmed writes with the stored events: none may be missing, different or doubled."""
    confirmed = [(event_id, digest) for event_id, digest in confirmed if _job_prefix(event_id, 2) in job_prefixes]
    counts.told = len(confirmed)
    for event_id, digest in confirmed:
        if event_id not in digests:
            counts.lost_events.append(event_id)
        elif digests[event_id] != digest:
            counts.other_events.append(event_id)
    times = Counter(event_id for event_id, _ in confirmed)
    counts.other_events += [f"{event_id}: told {count} times" for event_id, count in times.items() if count > 1]
    counts.untold = len(digests.keys() - times.keys())


# --- schedules ----------------------------------------------------------------------------------------------------


async def _jobs_by_minute(running: Cluster) -> dict[str, dict[int, JobSummary]]:
    """Return the Jobs of each schedule by minute."""
    found: dict[str, dict[int, JobSummary]] = {name: {} for name in SCHEDULES}
    for name, occurred in found.items():
        after: str | None = None
        while True:
            page = await running.host.jobs.list(labels={"schedule": name}, limit=500, after=after)
            for job in page.jobs:
                minute = datetime.strptime(job.id.rpartition("-")[2], "%Y%m%dT%H%MZ").replace(tzinfo=UTC)
                occurred[int(minute.timestamp() * 1000)] = await running.host.job(job.id)
            if (after := page.next) is None:
                break
    return found


def check_occurrences(counts: Counts, occurred: dict[str, dict[int, JobSummary]], leaving_at: int) -> None:
    """Check that of the missed minutes only the latest occurred, then every minute without a running Job."""
    for name, jobs in occurred.items():
        counts.occurrences += sum(job.status == "completed" for job in jobs.values())
        if not jobs:
            counts.wrong_occurrences.append(f"{name} never occurred")
            continue
        first = jobs[min(jobs)]
        if first.started_at - min(jobs) > MINUTE + _LOOKED_AFTER:
            counts.wrong_occurrences.append(f"{first.id} is not the latest of those that were missed")
        for minute in range(min(jobs), leaving_at - _LOOKED_AFTER, MINUTE):
            if minute not in jobs:
                at_work = [job for at, job in jobs.items() if at < minute <= (job.finished_at or leaving_at)]
                counts.passed_over += bool(at_work)
                if not at_work:
                    counts.wrong_occurrences.append(f"{name} did not occur at {minute}")
            elif jobs[minute].status != "completed":
                counts.wrong_occurrences.append(f"{jobs[minute].id} is {jobs[minute].status}")
