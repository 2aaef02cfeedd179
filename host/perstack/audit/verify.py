"""Verify a Job: read each log once into facts, then judge the facts by a numbered list of checks.

A check takes `JobEvidence` and gives results: faults (`Finding`), what it could not check (`Unchecked`), and numbers
of successful comparisons (`Checked`). It changes nothing, so no check depends on an earlier one, except for the last:

1. `_check_logs`: each log agrees with its chain and its own earlier events; redactions were carried out.
2. `_check_heads`: each log has the hashes that results of delegates, job.json and checkpoints say.
3. `_check_runs`: each Run that a log names has a log, and says the same about who started it.
4. `_check_delegates`: the start and the result of each delegate agree in its log and its caller's.
5. `_check_emptied_values`: contradictions that a redaction would explain, if nothing was redacted.
6. `_report_uncovered`: the ends of logs that nothing outside them covers.
7. `_check_blobs`: blobs that logs name are there and intact; those that a redaction removed are gone.
8. `_check_summary_format`: job.json is there and can be parsed.
9. `_check_caches`: job.json, settings and checkpoints say what the logs give. Only if 1 to 8 found nothing, as a wrong
   log would show again as a wrong cache, with advice to delete the one that is right.

A new check needs a kind of `Fact` that `job_evidence.py` collects, a function here and in `verify_job`, and what
`verification_report.py` says about counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import field, fields
from hashlib import sha256
from typing import TypeAlias

from pydantic import ValidationError

from perstack.audit.cache_comparison import cache_differences
from perstack.audit.contradictions import result_contradictions, start_contradictions
from perstack.audit.job_evidence import (
    Contradiction,
    DelegateAnswer,
    DelegateCall,
    JobEvidence,
    NamedBlob,
    Place,
    ToolOffer,
    first_by_name,
    read_evidence,
)
from perstack.audit.verification_report import Checked, Finding, Report, Unchecked, compare_with_head
from perstack.core.base.ids import BLOCK_SIZE, OWN_NUMBERS, block_of, number_of_run, run_id_of
from perstack.core.base.records import Record
from perstack.core.jobs.checkpoints import run_setting
from perstack.core.jobs.job import Job, job_of
from perstack.core.jobs.resuming import may_have_own_driver
from perstack.core.jobs.summary import JobSummary, as_running, summarize
from perstack.core.messages.messages import text_of
from perstack.core.runs.events import StoredEvent
from perstack.core.runs.events.generations import StartGeneration
from perstack.core.runs.request_digest import tools_blob
from perstack.dataclass import dataclass
from perstack.engine.log.event_log import InvalidTransition
from perstack.errors import NotFound, StorageError, UsageError
from perstack.ports.storage import RunRef, Storage

Result: TypeAlias = Finding | Unchecked | Checked


async def verify_job(storage: Storage, job_id: str) -> Report:
    """Check each log, blob and derived file of a Job, and their relations. Writes nothing. Raises NotFound."""
    evidence = await read_evidence(storage, job_id)
    results: list[Result] = []
    results += _check_logs(evidence)  # 1
    results += _check_heads(evidence)  # 2
    results += _check_runs(evidence)  # 3
    results += _check_delegates(evidence)  # 4
    results += _check_emptied_values(evidence)  # 5
    results += _report_uncovered(evidence)  # 6
    results += await _check_blobs(evidence, storage)  # 7
    results += _check_summary_format(evidence)  # 8
    if not any(isinstance(result, Finding) for result in results):
        results += await _check_caches(evidence, storage)  # 9
    checked = [result for result in results if isinstance(result, Checked)]
    return Report(
        job_id,
        len(evidence.logs),
        sum(len(log.chain) for log in evidence.logs.values()),
        tuple(dict.fromkeys(result for result in results if isinstance(result, Finding))),
        tuple(result for result in results if isinstance(result, Unchecked)),
        Checked(**{count.name: sum(getattr(part, count.name) for part in checked) for count in fields(Checked)}),
        redactions=evidence.redactions,
    )


# 1 to 6: the logs.


def _check_logs(evidence: JobEvidence) -> Iterator[Result]:
    for log in evidence.logs.values():
        yield from log.findings
        if log.unknown_count:
            events = f"{log.unknown_count} of {log.line_count} events"
            message = f"a newer version wrote what this one cannot read ({events})"
            yield Unchecked("content", log.run_id, log.unknown_count, message)
        if log.writer is not None:
            yield Unchecked("digests", log.run_id, log.line_count, f"{log.writer} wrote it, without digests")
        else:
            yield Checked(digests=len(log.chain))


def _check_heads(evidence: JobEvidence) -> Iterator[Result]:
    yield Checked(heads=len(evidence.heads))
    for run_id, head in evidence.heads:
        log = evidence.logs.get(run_id)
        yield from compare_with_head(run_id, head, {} if log is None else log.chain)


def _check_runs(evidence: JobEvidence) -> Iterator[Result]:
    calls = {call.delegation.run_id: call for call in evidence.of(DelegateCall)}
    starts = {run_id: log.start for run_id, log in evidence.logs.items() if log.start is not None}
    for run_id, start in starts.items():
        caller, base = start.delegated_by, start.continued_from
        if caller is not None and evidence.logs[run_id].is_sealed:
            call = calls.get(run_id)
            by_log = None if call is None else (call.place.run_id, call.delegation.tool_call_id)
            if by_log != (caller.run_id, caller.tool_call_id):
                message = f"it says that {caller.run_id} started it, but the log of that Run does not"
                yield Finding(run_id, 1, message)
        if base is not None and base.run_id not in starts:
            yield Finding(run_id, 1, f"it continues from {base.run_id}, which has no log")
    runs_with_head = {run_id for run_id, _ in evidence.heads}
    for run_id, call in calls.items():
        # A delegate that could not be set up has a result that names no head, and no log.
        is_over = call.delegation.tool_call_id in evidence.logs[call.place.run_id].answered_calls
        if run_id not in evidence.logs and run_id not in runs_with_head and not is_over:
            decision = f"{call.place.run_id}, event {call.place.seq}, decided on it"
            message = f"{decision}, but it has no log: it never began, or the log was removed"
            yield Unchecked("runs", run_id, 0, message)
    named_runs = evidence.logs.keys() | calls.keys() | runs_with_head
    for number in _missing_numbers(number_of_run(run_id) for run_id in evidence.logs):
        run_id = run_id_of(evidence.id, number)
        if run_id not in named_runs:
            message = "no log names it, and it has no log: it never began, or the log was removed"
            yield Unchecked("runs", run_id, 0, message)


def _missing_numbers(numbers: Iterable[int]) -> Iterator[int]:
    """Yield the numbers below the highest of each block (of the Job, or of a delegate's driver): Runs that began."""
    last: dict[int, int] = {}
    for number in numbers:
        block = 0 if number in OWN_NUMBERS else number // BLOCK_SIZE
        last[block] = max(last.get(block, 0), number)
    for block, highest in sorted(last.items()):
        yield from range(block_of(block).start, highest)


def _check_delegates(evidence: JobEvidence) -> Iterator[Result]:
    return (found.finding for found in _delegate_contradictions(evidence) if not found.repetition.is_emptied)


def _check_emptied_values(evidence: JobEvidence) -> Iterator[Result]:
    if not evidence.redactions:
        yield from (found.finding for found in evidence.of(Contradiction))
        yield from (found.finding for found in _delegate_contradictions(evidence) if found.repetition.is_emptied)


def _delegate_contradictions(evidence: JobEvidence) -> Iterator[Contradiction]:
    called_at = {call.delegation.run_id: call.place.seq for call in evidence.of(DelegateCall)}
    callers = {
        call.delegation.run_id: (call.delegation, call.run)
        for call in evidence.of(DelegateCall)
        if call.run is not None
    }
    for run_id, (delegation, caller) in callers.items():
        log = evidence.logs.get(run_id)
        if log is not None and log.run is not None and log.is_sealed:
            rules = evidence.logs[caller.id].rules
            rules_seq = max((seq for seq, _ in rules if seq <= called_at[run_id]), default=0)
            possible_chains = [chain for seq, chain in rules if seq >= rules_seq]
            for repetition in start_contradictions(log.run, delegation, caller, possible_chains):
                yield Contradiction(Place(run_id, 1), log.run.start.type, repetition)
    for place, event, end in evidence.of(DelegateAnswer):
        delegate = evidence.state_at(end.run_id, end.seq)
        if delegate is not None and evidence.logs[place.run_id].is_sealed:
            text = text_of(event.contents)
            for repetition in result_contradictions(
                event.tool_name, text, event.report, delegate, is_error=event.is_error
            ):
                yield Contradiction(place, event.type, repetition)


def _report_uncovered(evidence: JobEvidence) -> Iterator[Result]:
    """Report the ends of logs without a head in another place: a chain alone does not show a cut or a rewrite."""
    for run_id, log in evidence.logs.items():
        covered_seq = max((head.seq for covered_id, head in evidence.heads if covered_id == run_id), default=0)
        if log.is_sealed and len(log.chain) > covered_seq:
            message = "no head kept elsewhere covers these: nobody would notice if they were cut off or rewritten"
            yield Unchecked("heads", run_id, len(log.chain) - covered_seq, message)


# 7: blobs.


@dataclass(slots=True)
class StoredToolsCheck:
    """A check of the tool blobs that a Job's logs name, each read once."""

    storage: Storage
    job_id: str
    _seen: set[str] = field(default_factory=set[str])

    async def problem(self, event: StoredEvent) -> str | None:
        """Return what is wrong with the tools that this event names; None if nothing is, or if already reported."""
        digest = event.tools_digest if isinstance(event, StartGeneration) else None
        name = tools_blob(digest or "")
        if name is None or name in self._seen:
            return None
        self._seen.add(name)
        try:
            blob = await self.storage.blob(self.job_id, name)
        except NotFound:
            return f"the tools that the model was offered, blob {name}, are not there; put the blob back from a copy"
        except StorageError as error:
            return str(error)
        if sha256(blob).hexdigest() != name:
            return f"the tools that the model was offered, blob {name}, were changed; put the blob back from a copy"
        return None


async def _check_blobs(evidence: JobEvidence, storage: Storage) -> list[Result]:
    # By name, the place of the latest redaction that removed it: a blob named after it is kept.
    removed_blobs = {blob.name: blob.place for blob in evidence.of(NamedBlob) if blob.role == "removed"}
    results = await _check_offered_tools(evidence, storage)
    named_blobs = [blob for blob in evidence.of(NamedBlob) if blob.role == "content"]
    for part in await _snapshot_blobs(evidence, storage, removed_blobs):
        if isinstance(part, NamedBlob):
            named_blobs.append(part)
        else:
            results.append(part)
    named_blobs += await _skill_blobs(evidence, storage)
    return [
        *results,
        *await _check_named_blobs(evidence, storage, named_blobs, removed_blobs),
        *await _check_mentioned_blobs(evidence, storage, {blob.name for blob in named_blobs} | removed_blobs.keys()),
        *await _check_removed_blobs(evidence, storage, named_blobs, removed_blobs),
    ]


async def _check_offered_tools(evidence: JobEvidence, storage: Storage) -> list[Result]:
    results: list[Result] = []
    tools = StoredToolsCheck(storage, evidence.id)
    intact_digests = {offer.event.tools_digest for offer in evidence.of(ToolOffer)}
    for offer in evidence.of(ToolOffer):
        problem = await tools.problem(offer.event)
        if problem is not None:
            results.append(Finding(*offer.place, problem))
            intact_digests.discard(offer.event.tools_digest)
    return [*results, Checked(blobs=len(intact_digests))]


async def _snapshot_blobs(
    evidence: JobEvidence, storage: Storage, removed_blobs: Mapping[str, Place]
) -> list[NamedBlob | Result]:
    """Return the blobs of all snapshots, and a finding for each folder that cannot be read."""
    trees = evidence.blobs("snapshot")
    if not trees:
        return []
    from perstack.snapshots.stored_trees import Trees, blobs_of_trees  # few Jobs have snapshots

    parts: list[NamedBlob | Result] = []
    async for part in blobs_of_trees(Trees(storage, evidence.id), trees):
        place = trees[part.tree].place
        if not part.problem:
            parts.append(NamedBlob(place, part.digest, part.size))
        elif not (part.is_missing and part.digest in removed_blobs):
            parts.append(Finding(*place, f"its snapshot: {part.problem}"))
    return parts


async def _skill_blobs(evidence: JobEvidence, storage: Storage) -> list[NamedBlob]:
    """Return the blobs of Agent Skills that queued definitions name."""
    definitions = evidence.blobs("definition")
    if not definitions:
        return []
    from perstack.workers.queued_definition import load_definition  # few Jobs are queued

    blobs: list[NamedBlob] = []
    for digest, named in definitions.items():
        with suppress(StorageError, UsageError, NotFound):  # the definition's blob is checked with the named ones
            definition = await load_definition(storage, evidence.id, digest)
            files = (file for skill in definition.agent_skills for file in skill.files)
            blobs += [NamedBlob(named.place, file.sha256, file.size) for file in files]
    return blobs


async def _check_named_blobs(
    evidence: JobEvidence, storage: Storage, named_blobs: Iterable[NamedBlob], removed_blobs: Mapping[str, Place]
) -> list[Result]:
    results: list[Result] = []
    for name, (place, _, size, _) in first_by_name(named_blobs).items():
        try:
            actual_size = len(await storage.blob(evidence.id, name))
        except NotFound:
            if name not in removed_blobs:
                results.append(Finding(*place, f"the blob {name}, which it names, is missing"))
        except (StorageError, UsageError) as error:
            results.append(Finding(*place, str(error)))
        else:
            if size is None or actual_size == size:
                results.append(Checked(blobs=1))
            else:
                results.append(Finding(*place, f"the blob {name} has {actual_size:,} bytes, and it says {size:,}"))
    return results


async def _check_mentioned_blobs(evidence: JobEvidence, storage: Storage, known_blobs: Set[str]) -> list[Result]:
    """Read the blobs that results mention. Any tool may write a name, so a missing blob may never have existed."""
    results: list[Result] = []
    for name, (place, *_) in evidence.blobs("mention").items():
        if name in known_blobs:
            continue
        try:
            await storage.blob(evidence.id, name)
        except NotFound:
            message = f"event {place.seq} refers to the blob {name}, which is not there: it was lost, or never kept"
            results.append(Unchecked("blobs", place.run_id, 1, message))
        except (StorageError, UsageError) as error:
            results.append(Finding(*place, str(error)))
        else:
            results.append(Checked(blobs=1))
    return results


async def _check_removed_blobs(
    evidence: JobEvidence, storage: Storage, named_blobs: Iterable[NamedBlob], removed_blobs: Mapping[str, Place]
) -> list[Result]:
    """Check that blobs removed by a redaction are gone; blobs that were named again later are skipped."""
    results: list[Result] = []
    kept_blobs = {
        blob.name
        for blob in named_blobs
        if (redacted_at := removed_blobs.get(blob.name))
        and (blob.place.run_id != redacted_at.run_id or blob.place.seq > redacted_at.seq)
    }
    for name, place in removed_blobs.items():
        if name not in kept_blobs:
            with suppress(UsageError, StorageError):
                await storage.blob(evidence.id, name)
                message = f"the redaction was not completed: the blob {name} is still there; redact it again"
                results.append(Finding(*place, message))
    return results


# 8 and 9: data derived from the logs.


def _check_summary_format(evidence: JobEvidence) -> Iterator[Result]:
    if evidence.summary is None:
        yield Unchecked("summary", "", 1, "there is no job.json; what is shown is from the logs")
    elif _parse_summary(evidence.summary) is None:
        if not all(log.is_sealed for log in evidence.logs.values()):
            yield Unchecked("summary", "", 1, "job.json has another format; it is not compared")
        else:
            yield Finding("", 0, "job.json cannot be parsed; delete it: its content is in the logs")


def _parse_summary(data: bytes) -> JobSummary | None:
    try:
        return JobSummary.model_validate_json(data)
    except ValidationError:
        return None


async def _check_caches(evidence: JobEvidence, storage: Storage) -> list[Result]:
    error = next((log.fold_error for log in evidence.logs.values() if log.fold_error is not None), None)
    if isinstance(error, InvalidTransition):
        return [Finding(error.ref.run_id, error.seq, error.reason)]
    if error is not None:
        message = "not compared, because parts of the logs cannot be read"
        count = len(evidence.checkpoints) + len(evidence.logs)
        return [
            Unchecked("summary", "", 1, f"job.json: {message}"),
            Unchecked("caches", "", count, f"checkpoints and settings: {message}"),
        ]
    results: list[Result] = []
    if evidence.summary is not None and any(run.is_coordinator for run in evidence.states.values()):
        results += await _compare_summary(evidence, storage, evidence.summary)
    if storage.keeps_copies:
        results += await _compare_settings(evidence, storage)
        results += _compare_checkpoints(evidence)
    return results


async def _compare_summary(evidence: JobEvidence, storage: Storage, data: bytes) -> list[Result]:
    """Compare job.json with the logs at the ends that it names: while a Job runs, its logs are ahead of job.json."""
    summary = _parse_summary(data)
    if summary is None:
        return []
    is_running = summary.status == "running"
    job_as_written = _job_as_written(evidence, summary)
    if job_as_written is None:
        return [Finding("", 0, "job.json lists Runs without the Runs that started them; delete it")]
    expected = [other.to_json() for other in _possible_summaries(job_as_written, is_running=is_running)]
    differences = min((cache_differences(data, other) for other in expected), key=len)
    newer_event_count = sum(run.head.seq for run in evidence.states.values()) - sum(
        head.seq for head in job_as_written.heads.values()
    )
    if not differences and newer_event_count and not is_running and not await _may_be_driven(evidence, storage):
        current_job = job_of(evidence.id, evidence.states.values())
        (current_summary,) = _possible_summaries(current_job, is_running=False)
        differences = cache_differences(data, current_summary.to_json())
    results: list[Result] = [Checked(summaries=1)]
    results += [Finding("", 0, f"job.json {message}") for message in differences]
    if not differences and (is_running or newer_event_count):
        message = (
            f"job.json was written while the Job ran, {newer_event_count} events ago; what is shown is from the logs"
        )
        results.append(Unchecked("summary", "", 1, message))
    return results


def _job_as_written(evidence: JobEvidence, summary: JobSummary) -> Job | None:
    """Return the Job at the ends of logs in its summary; None if these Runs are no Job."""
    runs = [
        run
        for run_id, seq in dict.fromkeys((run_summary.id, run_summary.head_seq) for run_summary in summary.runs)
        if (run := evidence.state_at(run_id, seq) or evidence.states.get(run_id)) is not None
    ]
    listed_ids = {run.id for run in runs}
    parents = {run.start.delegated_by.run_id for run in runs if run.start.delegated_by is not None}
    is_whole = parents <= listed_ids and any(run.is_coordinator for run in runs)
    return job_of(evidence.id, runs) if is_whole else None


def _possible_summaries(job: Job, *, is_running: bool) -> tuple[JobSummary, ...]:
    """Return every summary that may be stored for these logs in job.json; `is_running`: job.json says «running»."""
    stopped = summarize(job, is_driven=False)
    return (summarize(job, is_driven=True), as_running(stopped)) if is_running else (stopped,)


async def _may_be_driven(evidence: JobEvidence, storage: Storage) -> bool:
    """Return True if a driver, perhaps of a delegate, may have appended to the logs since it wrote the summary."""
    if any(may_have_own_driver(run, evidence.states) for run in evidence.states.values()):
        return True
    # A worker may have driven the Job to its end since the summary was read.
    return await storage.lease_info(evidence.id) is not None or await storage.summary(evidence.id) != evidence.summary


async def _compare_settings(evidence: JobEvidence, storage: Storage) -> list[Result]:
    results: list[Result] = []
    for run_id, run in evidence.states.items():
        data = await storage.run_setting(RunRef(evidence.id, run_id))
        if data is None:
            message = "there is no run-setting.json; what it says is in the log"
            results.append(Unchecked("caches", run_id, 0, message))
        elif evidence.logs[run_id].is_sealed:
            results += _compare_cache("run-setting.json", run_id, data, run_setting(run.start))
    return results


def _compare_checkpoints(evidence: JobEvidence) -> Iterator[Result]:
    expected = {name: file for log in evidence.logs.values() for name, file in log.checkpoints.items()}
    for checkpoint_id, data in evidence.checkpoints.items():
        file = expected.get(checkpoint_id)
        if file is None:
            yield Finding("", 0, f"checkpoint {checkpoint_id} belongs to no event in these logs")
        else:
            yield from _compare_cache(f"checkpoint {checkpoint_id}", file.run_id, data, file)


def _compare_cache(name: str, run_id: str, data: bytes, expected: Record) -> Iterator[Result]:
    yield Checked(caches=1)
    try:
        type(expected).model_validate_json(data)
        for difference in cache_differences(data, expected.to_json()):
            yield Finding(run_id, 0, f"{name} {difference}")
    except ValueError:
        yield Finding(run_id, 0, f"{name} cannot be parsed; delete it: its content is in the log")
