"""Verify a Job: logs against their chains, other heads and each other; blobs; and data derived from the logs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from hashlib import sha256

from pydantic import ValidationError

from perstack.audit.cache_comparison import cache_differences
from perstack.audit.contradictions import contradictions, result_contradictions, start_contradictions
from perstack.audit.event_redaction import Redaction, redaction_of
from perstack.audit.verification_report import Checked, Finding, Report, Unchecked, UncheckedKind, compare_with_head
from perstack.core.base.chain import Head, SealedLine, read_remains
from perstack.core.base.ids import BLOCK_SIZE, OWN_NUMBERS, block_of, is_place, number_of_run, place_of, run_id_of
from perstack.core.base.records import Record
from perstack.core.definitions.permissions import RuleSet
from perstack.core.definitions.skills import BASE_SKILL
from perstack.core.jobs.checkpoints import CheckpointFile, checkpoint_file, run_setting
from perstack.core.jobs.job import Job, job_of
from perstack.core.jobs.resuming import may_have_own_driver
from perstack.core.jobs.summary import JobSummary, as_running, summarize
from perstack.core.messages.messages import BlobPart, ResultContent, TextPart, text_of
from perstack.core.runs.events import StartRun, StoredEvent
from perstack.core.runs.events.base import Repetition
from perstack.core.runs.events.context import ShrinkResults
from perstack.core.runs.events.generations import StartGeneration
from perstack.core.runs.events.lifecycle import QueueRun, RedactEvent
from perstack.core.runs.events.tool_calls import CallDelegate, CallTools, FinishToolCall
from perstack.core.runs.facts import Delegation
from perstack.core.runs.redacted_events import parse_remains
from perstack.core.runs.request_digest import tools_blob
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.log.event_log import CheckedLog, InvalidTransition, StoredLine, run_ids
from perstack.engine.log.run_log import checkpoint_at, checkpoint_ids, redactions_in, run_logs
from perstack.engine.log.storage_access import heads_in_summary
from perstack.errors import Damaged, NotFound, StorageError, UsageError
from perstack.ports.storage import RunRef, Storage

# Tools that models were offered.


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


# Results of a check.


@dataclass(slots=True)
class JobCheck:
    """The results of checking a Job so far."""

    job_id: str
    unsealed: Mapping[str, str]  # Runs whose events have no digests, and the program that wrote each
    heads: dict[str, dict[int, str]] = field(default_factory=dict[str, "dict[int, str]"])
    """Hashes of each log by position."""
    anchors: list[tuple[str, Head]] = field(default_factory=list[tuple[str, Head]])
    starts: dict[str, StartRun] = field(default_factory=dict[str, StartRun])
    possible_contradictions: list[tuple[str, int, str]] = field(default_factory=list[tuple[str, int, str]])
    """Contradictions that a redaction may have caused: findings if nothing was redacted."""
    delegations: dict[str, tuple[Delegation, Run]] = field(default_factory=dict[str, "tuple[Delegation, Run]"])
    """Decisions about delegates by Run id, with the state of the Run that called each."""
    chains: dict[str, list[tuple[int, tuple[RuleSet, ...]]]] = field(
        default_factory=dict[str, "list[tuple[int, tuple[RuleSet, ...]]]"]
    )
    """The rules of each Run, with the position from which each were in force."""
    results: list[tuple[str, int, FinishToolCall]] = field(default_factory=list[tuple[str, int, FinishToolCall]])
    """Results of calls by delegates."""
    called_delegates: dict[str, tuple[str, int, str]] = field(default_factory=dict[str, "tuple[str, int, str]"])
    """Delegates by Run id: the Run, position and call that decided on each."""
    answered_calls: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Calls that have a result, as pairs of Run and call."""
    blobs: dict[str, tuple[str, int, int | None]] = field(default_factory=dict[str, "tuple[str, int, int | None]"])
    """Blobs by name: the Run and position that name each first, and its size if given."""
    blob_mentions: dict[str, tuple[str, int]] = field(default_factory=dict[str, "tuple[str, int]"])
    """Blobs that the texts of results refer to: the Run and position of each."""
    programs: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Calls of the base skill's `exec`, as pairs of Run and call: only the host writes the names in their results."""
    trees: dict[str, tuple[str, int]] = field(default_factory=dict[str, "tuple[str, int]"])
    definitions: dict[str, tuple[str, int]] = field(default_factory=dict[str, "tuple[str, int]"])
    blob_references: dict[str, list[tuple[str, int]]] = field(default_factory=dict[str, "list[tuple[str, int]]"])
    """All Runs and positions that name a blob."""
    removed_blobs: dict[str, tuple[str, int]] = field(default_factory=dict[str, "tuple[str, int]"])
    """Blobs that a redaction removed: the Run and position of the redaction."""
    offers: list[tuple[str, int, StartGeneration]] = field(default_factory=list[tuple[str, int, StartGeneration]])
    states: dict[str, Run] = field(default_factory=dict[str, Run])
    """The last state of each Run, as far as its events can be folded."""
    states_at: dict[tuple[str, int], Run] = field(default_factory=dict[tuple[str, int], Run])
    """The states of Runs at the positions in `referenced_ends`."""
    referenced_ends: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    fold_error: Damaged | NotFound | None = None  # reason why a state does not include the whole log; None if all do
    checkpoints: dict[str, CheckpointFile] = field(default_factory=dict[str, CheckpointFile])
    """The expected content of the stored checkpoints."""
    digests: int = 0
    summaries: int = 0
    caches: int = 0
    right_blobs: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])
    unchecked: list[Unchecked] = field(default_factory=list[Unchecked])
    redactions: list[Redaction] = field(default_factory=list[Redaction])

    def record_blob(self, name: str, run_id: str, seq: int, size: int | None = None) -> None:
        """Record that an event names a blob, with its size if given."""
        self.blobs.setdefault(name, (run_id, seq, size))
        self.blob_references.setdefault(name, []).append((run_id, seq))

    def add_finding(self, run_id: str, seq: int, message: str) -> None:
        self.findings.append(Finding(run_id, seq, message))

    def add_contradiction(self, run_id: str, seq: int, event_type: str, repetition: Repetition) -> None:
        """Add a value that an event repeats wrongly."""
        message = f"{event_type} {repetition.contradiction}"
        if repetition.is_emptied:
            self.possible_contradictions.append((run_id, seq, message))
        else:
            self.add_finding(run_id, seq, message)

    def add_unchecked(self, kind: UncheckedKind, run_id: str, count: int, message: str) -> None:
        """Record that something cannot be checked."""
        self.unchecked.append(Unchecked(kind, run_id, count, message))

    def report(self) -> Report:
        """Return the report of everything so far."""
        return Report(
            self.job_id,
            len(self.heads),
            sum(len(chain) for chain in self.heads.values()),
            tuple(dict.fromkeys(self.findings)),
            tuple(self.unchecked),
            Checked(self.digests, len(self.anchors), self.summaries, self.caches, self.right_blobs),
            redactions=tuple(self.redactions),
        )


# Data derived from a Job's logs: job.json, run-setting.json, checkpoints.

Files = Mapping[str, bytes]


async def checkpoint_files(storage: Storage, job_id: str) -> Files:
    files: dict[str, bytes] = {}
    for checkpoint_id in await checkpoint_ids(storage, job_id):
        data = await storage.checkpoint(job_id, checkpoint_id)
        if data is not None:
            files[checkpoint_id] = data
    return files


def checkpoint_anchors(files: Files) -> list[tuple[str, Head]]:
    """Return the heads of logs that checkpoints record."""
    anchors: list[tuple[str, Head]] = []
    for checkpoint_id, data in files.items():
        try:
            messages = CheckpointFile.model_validate_json(data).messages
        except ValidationError:
            continue
        if is_place(checkpoint_id):
            anchors.append((place_of(checkpoint_id)[1], Head(messages.through, messages.sha256)))
    return anchors


async def check_caches(check: JobCheck, storage: Storage, summary: bytes | None, checkpoints: Files) -> None:
    """Compare summary, settings and checkpoints with the logs, if there is no finding about the logs."""
    stored_summary = _read_summary(check, summary)
    if check.findings:
        return
    if isinstance(check.fold_error, InvalidTransition):
        check.add_finding(check.fold_error.ref.run_id, check.fold_error.seq, check.fold_error.reason)
        return
    if check.fold_error is not None:
        message = "not compared, because parts of the logs cannot be read"
        check.add_unchecked("summary", "", 1, f"job.json: {message}")
        check.add_unchecked("caches", "", len(checkpoints) + len(check.heads), f"checkpoints and settings: {message}")
        return
    if summary is not None and stored_summary is not None and any(run.is_coordinator for run in check.states.values()):
        await _check_summary(check, storage, summary, stored_summary)
    if storage.keeps_copies:
        await _check_copies(check, storage, checkpoints)


async def _check_copies(check: JobCheck, storage: Storage, checkpoints: Files) -> None:
    for run_id, run in check.states.items():
        data = await storage.run_setting(RunRef(check.job_id, run_id))
        if data is None:
            check.add_unchecked("caches", run_id, 0, "there is no run-setting.json; what it says is in the log")
        elif run_id not in check.unsealed:
            _compare_cache(check, "run-setting.json", run_id, data, run_setting(run.start))
    for checkpoint_id, data in checkpoints.items():
        file = check.checkpoints.get(checkpoint_id)
        if file is None:
            check.add_finding("", 0, f"checkpoint {checkpoint_id} belongs to no event in these logs")
        else:
            _compare_cache(check, f"checkpoint {checkpoint_id}", file.run_id, data, file)


def _compare_cache(check: JobCheck, name: str, run_id: str, data: bytes, expected: Record) -> None:
    check.caches += 1
    try:
        type(expected).model_validate_json(data)
        for difference in cache_differences(data, expected.to_json()):
            check.add_finding(run_id, 0, f"{name} {difference}")
    except ValueError:
        check.add_finding(run_id, 0, f"{name} cannot be parsed; delete it: its content is in the log")


def _read_summary(check: JobCheck, data: bytes | None) -> JobSummary | None:
    if data is None:
        check.add_unchecked("summary", "", 1, "there is no job.json; what is shown is from the logs")
        return None
    try:
        return JobSummary.model_validate_json(data)
    except ValidationError:
        if check.unsealed:
            check.add_unchecked("summary", "", 1, "job.json has another format; it is not compared")
        else:
            check.add_finding("", 0, "job.json cannot be parsed; delete it: its content is in the logs")
        return None


def _possible_summaries(job: Job, *, is_running: bool) -> tuple[JobSummary, ...]:
    """Return every summary that may be stored for these logs in job.json; `is_running`: job.json says «running»."""
    stopped = summarize(job, is_driven=False)
    return (summarize(job, is_driven=True), as_running(stopped)) if is_running else (stopped,)


async def _check_summary(check: JobCheck, storage: Storage, data: bytes, summary: JobSummary) -> None:
    """Compare job.json with the logs at the ends that it names: while a Job runs, its logs are ahead of job.json."""
    is_running = summary.status == "running"
    job_as_written = _job_as_written(check, summary)
    if job_as_written is None:
        check.add_finding("", 0, "job.json lists Runs without the Runs that started them; delete it")
        return
    check.summaries += 1
    expected = [other.to_json() for other in _possible_summaries(job_as_written, is_running=is_running)]
    differences = min((cache_differences(data, other) for other in expected), key=len)
    newer_event_count = sum(run.head.seq for run in check.states.values()) - sum(
        head.seq for head in job_as_written.heads.values()
    )
    if not differences and newer_event_count and not is_running and not await _may_be_driven(check, storage, data):
        (current_summary,) = _possible_summaries(job_of(check.job_id, check.states.values()), is_running=False)
        differences = cache_differences(data, current_summary.to_json())
    for message in differences:
        check.add_finding("", 0, f"job.json {message}")
    if not differences and (is_running or newer_event_count):
        message = (
            f"job.json was written while the Job ran, {newer_event_count} events ago; what is shown is from the logs"
        )
        check.add_unchecked("summary", "", 1, message)


def _job_as_written(check: JobCheck, summary: JobSummary) -> Job | None:
    """Return the Job at the ends of logs in its summary; None if these Runs are no Job."""
    runs = [
        run
        for run_id, seq in dict.fromkeys((run_summary.id, run_summary.head_seq) for run_summary in summary.runs)
        if (run := check.states_at.get((run_id, seq)) or check.states.get(run_id)) is not None
    ]
    listed_ids = {run.id for run in runs}
    parents = {run.start.delegated_by.run_id for run in runs if run.start.delegated_by is not None}
    is_whole = parents <= listed_ids and any(run.is_coordinator for run in runs)
    return job_of(check.job_id, runs) if is_whole else None


async def _may_be_driven(check: JobCheck, storage: Storage, summary: bytes) -> bool:
    """Return True if a driver, perhaps of a delegate, may have appended to the logs since it wrote the summary."""
    if any(may_have_own_driver(run, check.states) for run in check.states.values()):
        return True
    # A worker may have driven the Job to its end since the summary was read.
    return await storage.lease_info(check.job_id) is not None or await storage.summary(check.job_id) != summary


_BLOB_MENTION = re.compile(r"blob:([0-9a-f]{64})\b")
_OUTPUT_FILE = re.compile(r'"outputFile": ?"blob:([0-9a-f]{64})"\}?')


async def verify_job(storage: Storage, job_id: str) -> Report:
    """Check each log, blob and derived file of a Job, and their relations. Writes nothing. Raises NotFound."""
    # Caches are read before logs, which may grow meanwhile: a head found in a cache must then be in the log.
    summary = await storage.summary(job_id)
    checkpoints = await checkpoint_files(storage, job_id)
    check = JobCheck(job_id, await storage.unsealed_runs(job_id))
    check.referenced_ends.update((run_id, head.seq) for run_id, head in heads_in_summary(summary))
    for run_id in await run_ids(storage, job_id):
        await _check_log(check, storage, RunRef(job_id, run_id), checkpoints)
    check.anchors += [*heads_in_summary(summary), *checkpoint_anchors(checkpoints)]
    for run_id, anchor in check.anchors:
        check.findings += compare_with_head(run_id, anchor, check.heads.get(run_id, {}))
    _check_relations(check)
    _check_delegates(check)
    if not check.redactions:
        for run_id, seq, message in check.possible_contradictions:
            check.add_finding(run_id, seq, message)
    _report_uncovered(check)
    await _check_blobs(check, storage)
    await check_caches(check, storage, summary, checkpoints)
    return check.report()


# --- logs ---------------------------------------------------------------------------------------------------------


async def _check_log(check: JobCheck, storage: Storage, ref: RunRef, checkpoints: Files) -> None:
    redacted: dict[str, int] = {}
    before: Run | None = None

    def observe(line: StoredLine[StoredEvent], sealed: SealedLine, run: Run | None) -> None:
        nonlocal before
        if run is not None:
            _collect_state(check, line.seq, line.event, before, run)
        before = run
        if read_remains(sealed.payload) is not None:
            redacted[line.event.id] = line.seq
        if run is not None and line.event.id in checkpoints:
            check.checkpoints[line.event.id] = checkpoint_file(run)
        _collect_event(check, ref, line.seq, line.event)
        if line.event.named_tree is not None:
            check.trees.setdefault(line.event.named_tree, (ref.run_id, line.seq))

    log = await run_logs(storage, check.states).check(ref, observe)
    check.fold_error = check.fold_error or log.first_invalid
    if log.state is not None:
        check.states[ref.run_id] = log.state
    check.heads[ref.run_id] = log.chain
    for seq, message in log.wrong:
        check.add_finding(ref.run_id, seq, message)
    redactions = redactions_in(ref, log.lines)
    for event_id, seq in redacted.items():
        check.redactions += [redaction_of(event, seq) for event in redactions if event.event_id == event_id][:1]
    for redaction in redactions:
        _check_redaction(check, ref, redaction, log.lines)
        check.removed_blobs.update((name, (ref.run_id, place_of(redaction.id)[2])) for name in redaction.blobs)
    _report_unreadable_parts(check, ref, log)


def _report_unreadable_parts(check: JobCheck, ref: RunRef, log: CheckedLog[Run]) -> None:
    if log.damage is not None:
        check.add_finding(ref.run_id, log.damage.readable + 1, str(log.damage))
    if log.unknown:
        message = f"a newer version wrote what this one cannot read ({len(log.unknown)} of {len(log.lines)} events)"
        check.add_unchecked("content", ref.run_id, len(log.unknown), message)
    writer = check.unsealed.get(ref.run_id)
    if writer is not None:
        check.add_unchecked("digests", ref.run_id, len(log.lines), f"{writer} wrote it, without digests")
    else:
        check.digests += len(log.chain)


def _collect_state(check: JobCheck, seq: int, event: StoredEvent, previous_run: Run | None, run: Run) -> None:
    if previous_run is not None and run.id not in check.unsealed:
        for repetition in contradictions(previous_run, event):
            check.add_contradiction(run.id, seq, event.type, repetition)
        if checkpoint_at(event) not in (None, event.id):
            check.add_finding(run.id, seq, f"{event.type} says the checkpoint {checkpoint_at(event)!r}, not its own")
    if (run.id, seq) in check.referenced_ends:
        check.states_at[run.id, seq] = run
    if previous_run is None or run.permissions is not previous_run.permissions:
        check.chains.setdefault(run.id, []).append((seq, run.permissions))
    if isinstance(event, CallDelegate):
        check.delegations.update((delegation.run_id, (delegation, run)) for delegation in event.delegates)


def _collect_event(check: JobCheck, ref: RunRef, seq: int, event: StoredEvent) -> None:  # noqa: C901 - one case a kind
    if isinstance(event, StartRun):
        check.starts[ref.run_id] = event
        _collect_blobs(check, ref, seq, event.attachments)
        if seq > 1:
            check.add_finding(ref.run_id, seq, "a second startRun")
    elif seq == 1:
        check.add_finding(ref.run_id, 1, "the log does not begin with startRun")
    match event:
        case CallDelegate():
            for delegate in event.delegates:
                check.called_delegates[delegate.run_id] = (ref.run_id, seq, delegate.tool_call_id)
        case StartGeneration() if event.tools_digest is not None:
            check.offers.append((ref.run_id, seq, event))
        case CallTools():
            exec_calls = (
                decided for decided in event.calls if decided.skill_name == BASE_SKILL and decided.tool_name == "exec"
            )
            check.programs.update((ref.run_id, decided.id) for decided in exec_calls)
        case FinishToolCall():
            _collect_result(check, ref, seq, event)
        case QueueRun() if event.definition is not None:
            check.record_blob(event.definition, ref.run_id, seq)
            check.definitions.setdefault(event.definition, (ref.run_id, seq))
        case ShrinkResults():
            for shrunk in event.results:
                check.record_blob(shrunk.blob, ref.run_id, seq)
        case _:
            pass


def _collect_result(check: JobCheck, ref: RunRef, seq: int, event: FinishToolCall) -> None:
    check.answered_calls.add((ref.run_id, event.tool_call_id))
    if event.delegate is not None:
        check.referenced_ends.add((event.delegate.run_id, event.delegate.seq))
        check.results.append((ref.run_id, seq, event))
        check.anchors.append((event.delegate.run_id, Head(event.delegate.seq, event.delegate.hash)))
    _collect_blobs(check, ref, seq, event.contents)
    for part in event.contents:
        if isinstance(part, TextPart):
            for name in _BLOB_MENTION.findall(part.text):
                check.blob_mentions.setdefault(name, (ref.run_id, seq))
            if (ref.run_id, event.tool_call_id) in check.programs:
                for name in _OUTPUT_FILE.findall(part.text):
                    check.record_blob(name, ref.run_id, seq)


def _collect_blobs(check: JobCheck, ref: RunRef, seq: int, contents: Iterable[ResultContent]) -> None:
    for part in contents:
        if isinstance(part, BlobPart):
            check.record_blob(part.sha256, ref.run_id, seq, part.size)


def _check_redaction(check: JobCheck, ref: RunRef, redaction: RedactEvent, lines: Sequence[bytes]) -> None:
    _, _, redaction_seq = place_of(redaction.id)
    try:
        _, run_id, seq = place_of(redaction.event_id)
    except UsageError:
        run_id, seq = "", 0
    if run_id != ref.run_id or not 0 < seq < redaction_seq:
        problem = f"it redacts {redaction.event_id}, which is not an earlier event of this log"
        check.add_finding(ref.run_id, redaction_seq, problem)
    elif parse_remains(redaction) is None:
        problem = "it replaces an event with something that is not what a redaction leaves"
        check.add_finding(ref.run_id, redaction_seq, problem)
    elif not lines[seq - 1].startswith(b'{"type":"%b","id":"%b","redacted":' % (_type_and_id(redaction))):
        problem = f"the redaction of event {seq} was recorded but not carried out: its content is still there"
        check.add_finding(ref.run_id, redaction_seq, f"{problem}; redact it again")


def _type_and_id(redaction: RedactEvent) -> tuple[bytes, bytes]:
    return redaction.event_type.encode(), redaction.event_id.encode()


# --- logs together ------------------------------------------------------------------------------------------------


def _check_relations(check: JobCheck) -> None:
    """Check that each Run which another one started, continued or names has a log, and that both sides agree."""
    for run_id, start in check.starts.items():
        caller_record, base = start.delegated_by, start.continued_from
        if caller_record is not None and run_id not in check.unsealed:
            caller = check.called_delegates.get(run_id)
            if caller is None or (caller[0], caller[2]) != (caller_record.run_id, caller_record.tool_call_id):
                check.add_finding(
                    run_id, 1, f"it says that {caller_record.run_id} started it, but the log of that Run does not"
                )
        if base is not None and base.run_id not in check.starts:
            check.add_finding(run_id, 1, f"it continues from {base.run_id}, which has no log")
    referenced_run_ids = {run_id for run_id, _ in check.anchors}
    for run_id, (parent, seq, call_id) in check.called_delegates.items():
        # A delegate that could not be set up has a result that names no head, and no log.
        is_over = (parent, call_id) in check.answered_calls
        if run_id not in check.heads and run_id not in referenced_run_ids and not is_over:
            message = f"{parent}, event {seq}, decided on it, but it has no log: it never began, or the log was removed"
            check.add_unchecked("runs", run_id, 0, message)
    named_runs = check.heads.keys() | check.called_delegates.keys() | referenced_run_ids
    for number in _missing_numbers(number_of_run(run_id) for run_id in check.heads):
        run_id = run_id_of(check.job_id, number)
        if run_id not in named_runs:
            message = "no log names it, and it has no log: it never began, or the log was removed"
            check.add_unchecked("runs", run_id, 0, message)


def _check_delegates(check: JobCheck) -> None:
    """Compare the start and the result of each delegate with the log of the Run that called it."""
    for run_id, (delegation, parent) in check.delegations.items():
        delegate, (_, called_at, _) = check.states.get(run_id), check.called_delegates[run_id]
        if delegate is not None and run_id not in check.unsealed:
            chains = check.chains[parent.id]
            rules_seq = max((seq for seq, _ in chains if seq <= called_at), default=0)
            possible_chains = [chain for seq, chain in chains if seq >= rules_seq]
            for repetition in start_contradictions(delegate, delegation, parent, possible_chains):
                check.add_contradiction(run_id, 1, delegate.start.type, repetition)
    for run_id, seq, event in check.results:
        delegate_head = event.delegate
        delegate = None if delegate_head is None else check.states_at.get((delegate_head.run_id, delegate_head.seq))
        if delegate is not None and run_id not in check.unsealed:
            result_text = text_of(event.contents)
            for repetition in result_contradictions(
                event.tool_name, result_text, event.report, delegate, is_error=event.is_error
            ):
                check.add_contradiction(run_id, seq, event.type, repetition)


def _missing_numbers(numbers: Iterable[int]) -> Iterator[int]:
    """Yield the numbers below the highest of each block (of the Job, or of a delegate's driver): Runs that began."""
    last: dict[int, int] = {}
    for number in numbers:
        block = 0 if number in OWN_NUMBERS else number // BLOCK_SIZE
        last[block] = max(last.get(block, 0), number)
    for block, highest in sorted(last.items()):
        yield from range(block_of(block).start, highest)


def _report_uncovered(check: JobCheck) -> None:
    """Report the ends of logs without a head in another place: a chain alone does not show a cut or a rewrite."""
    for run_id, chain in check.heads.items():
        covered_seq = max((anchor.seq for anchored_id, anchor in check.anchors if anchored_id == run_id), default=0)
        if run_id not in check.unsealed and len(chain) > covered_seq:
            message = "no head kept elsewhere covers these: nobody would notice if they were cut off or rewritten"
            check.add_unchecked("heads", run_id, len(chain) - covered_seq, message)


async def _check_blobs(check: JobCheck, storage: Storage) -> None:
    """Check that every blob that an event names exists, has the recorded size, and is unchanged."""
    tools = StoredToolsCheck(storage, check.job_id)
    valid_digests: set[str | None] = {event.tools_digest for _, _, event in check.offers}
    for run_id, seq, event in check.offers:
        problem = await tools.problem(event)
        if problem is not None:
            check.add_finding(run_id, seq, problem)
            valid_digests.discard(event.tools_digest)
    check.right_blobs += len(valid_digests)
    await _collect_snapshot_blobs(check, storage)
    await _collect_skill_blobs(check, storage)
    for name, (run_id, seq, size) in check.blobs.items():
        try:
            actual_size = len(await storage.blob(check.job_id, name))
        except NotFound:
            if name not in check.removed_blobs:
                check.add_finding(run_id, seq, f"the blob {name}, which it names, is missing")
        except (StorageError, UsageError) as error:
            check.add_finding(run_id, seq, str(error))
        else:
            check.right_blobs += size in (None, actual_size)
            if size is not None and actual_size != size:
                check.add_finding(run_id, seq, f"the blob {name} has {actual_size:,} bytes, and it says {size:,}")
    await _check_mentioned_blobs(check, storage)
    await _check_removed_blobs(check, storage)


async def _check_mentioned_blobs(check: JobCheck, storage: Storage) -> None:
    """Read the blobs that results mention. Any tool may write a name, so a missing blob may never have existed."""
    for name, (run_id, seq) in check.blob_mentions.items():
        if name in check.blobs or name in check.removed_blobs:
            continue
        try:
            await storage.blob(check.job_id, name)
        except NotFound:
            message = f"event {seq} refers to the blob {name}, which is not there: it was lost, or never kept"
            check.add_unchecked("blobs", run_id, 1, message)
        except (StorageError, UsageError) as error:
            check.add_finding(run_id, seq, str(error))
        else:
            check.right_blobs += 1


async def _collect_snapshot_blobs(check: JobCheck, storage: Storage) -> None:
    """Check the folders of all snapshots, and add their blobs to the blobs to check."""
    if not check.trees:
        return
    from perstack.snapshots.stored_trees import Trees, blobs_of_trees  # few Jobs have snapshots

    async for part in blobs_of_trees(Trees(storage, check.job_id), check.trees):
        run_id, seq = check.trees[part.tree]
        if part.problem and not (part.is_missing and part.digest in check.removed_blobs):
            check.add_finding(run_id, seq, f"its snapshot: {part.problem}")
        elif not part.problem:
            check.record_blob(part.digest, run_id, seq, part.size)


async def _collect_skill_blobs(check: JobCheck, storage: Storage) -> None:
    """Add the blobs of Agent Skills that queued definitions name to the blobs to check."""
    if not check.definitions:
        return
    from perstack.workers.queued_definition import load_definition  # few Jobs are queued

    for digest, (run_id, seq) in check.definitions.items():
        with suppress(StorageError, UsageError, NotFound):  # the definition blob itself is checked below
            definition = await load_definition(storage, check.job_id, digest)
            for file in (file for skill in definition.agent_skills for file in skill.files):
                check.record_blob(file.sha256, run_id, seq, file.size)


async def _check_removed_blobs(check: JobCheck, storage: Storage) -> None:
    """Check that blobs removed by a redaction are gone; blobs that were named again later are skipped."""
    for name, (run_id, seq) in check.removed_blobs.items():
        if any(run != run_id or at > seq for run, at in check.blob_references.get(name, ())):
            continue
        with suppress(UsageError, StorageError):
            await storage.blob(check.job_id, name)
            message = f"the redaction was not completed: the blob {name} is still there; redact it again"
            check.add_finding(run_id, seq, message)
