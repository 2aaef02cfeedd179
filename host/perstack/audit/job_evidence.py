"""Evidence about a Job: what each log says that is compared with other logs, blobs, and data derived from logs.

Each log is read once, into `LogFacts`; the faults that one log shows by itself are found while it is read, as its
lines are not kept. `verify.py` judges the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import field
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import ValidationError

from perstack.audit.contradictions import contradictions
from perstack.audit.event_redaction import Redaction, redaction_of
from perstack.audit.verification_report import Finding
from perstack.core.base.chain import Head, SealedLine, read_remains
from perstack.core.base.ids import is_place, place_of
from perstack.core.definitions.permissions import RuleSet
from perstack.core.definitions.skills import BASE_SKILL
from perstack.core.jobs.checkpoints import CheckpointFile, checkpoint_file
from perstack.core.messages.messages import BlobPart, ResultContent, TextPart
from perstack.core.runs.events import StartRun, StoredEvent
from perstack.core.runs.events.base import Repetition
from perstack.core.runs.events.context import ShrinkResults
from perstack.core.runs.events.generations import StartGeneration
from perstack.core.runs.events.lifecycle import QueueRun, RedactEvent
from perstack.core.runs.events.tool_calls import CallDelegate, CallTools, FinishToolCall
from perstack.core.runs.facts import DelegateHead, Delegation
from perstack.core.runs.redacted_events import parse_remains
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.log.event_log import CheckedLog, StoredLine, run_ids
from perstack.engine.log.run_log import checkpoint_at, checkpoint_ids, redactions_in, run_logs
from perstack.engine.log.storage_access import heads_in_summary
from perstack.errors import Damaged, NotFound, UsageError
from perstack.ports.storage import RunRef, Storage

# Facts: what the events of one log say that other logs, blobs and heads are compared with.


class Place(NamedTuple):
    """The position of an event."""

    run_id: str
    seq: int


class DelegateCall(NamedTuple):
    """A decision to start a delegate."""

    place: Place
    delegation: Delegation
    run: Run | None  # the state of the Run that decided; None after an event that could not be folded


class DelegateAnswer(NamedTuple):
    """The result of a delegate, with the end of the delegate's log at that time."""

    place: Place
    event: FinishToolCall
    end: DelegateHead


class RulesInForce(NamedTuple):
    """The rules of a Run from a position on."""

    seq: int
    rules: tuple[RuleSet, ...]


class ToolOffer(NamedTuple):
    """A generation that names the blob with the tools that the model was offered."""

    place: Place
    event: StartGeneration


BlobRole: TypeAlias = Literal["content", "mention", "snapshot", "definition", "removed"]
"""Reason why a log names a blob.

`content`: an event or a definition needs it. `mention`: only the text of a result has its name. `snapshot`: the root
folder of one. `definition`: Experts and settings that a Run was queued with. `removed`: a redaction removed it.
"""


class NamedBlob(NamedTuple):
    """A blob that a log names."""

    place: Place
    name: str
    size: int | None = None  # as recorded; None if it is not
    role: BlobRole = "content"


class Contradiction(NamedTuple):
    """A value that an event repeats wrongly."""

    place: Place
    event_type: str
    repetition: Repetition

    @property
    def finding(self) -> Finding:
        return Finding(*self.place, f"{self.event_type} {self.repetition.contradiction}")


Fact: TypeAlias = DelegateCall | DelegateAnswer | ToolOffer | NamedBlob | Contradiction
"""A `Contradiction` is a fact if a redaction may have caused it; any other is a finding at once."""

_F = TypeVar("_F", bound=Fact)


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Facts of one log, and what is wrong with it by itself."""

    run_id: str
    writer: str | None  # the other program that wrote it, without digests; None if this one did
    chain: Mapping[int, str]  # the hash at each position, as far as the chain holds
    line_count: int
    unknown_count: int  # events that this version cannot read
    start: StartRun | None
    run: Run | None  # the last state, as far as the events can be folded
    fold_error: Damaged | NotFound | None  # why `run` does not include the whole log; None if it does
    states_at: Mapping[int, Run]  # states at positions that other logs or job.json name
    checkpoints: Mapping[str, CheckpointFile]  # the content that stored checkpoints must have
    rules: tuple[RulesInForce, ...]
    answered_calls: Set[str]  # ids of calls that have a result
    redactions: tuple[Redaction, ...]
    facts: tuple[Fact, ...]
    findings: tuple[Finding, ...]

    @property
    def is_sealed(self) -> bool:
        """True if its events have digests."""
        return self.writer is None

    def of(self, kind: type[_F]) -> Iterator[_F]:
        """Yield the facts of one kind, in the order of events."""
        return (fact for fact in self.facts if isinstance(fact, kind))


Files = Mapping[str, bytes]


def first_by_name(blobs: Iterable[NamedBlob]) -> dict[str, NamedBlob]:
    first: dict[str, NamedBlob] = {}
    for blob in blobs:
        first.setdefault(blob.name, blob)
    return first


@dataclass(frozen=True, slots=True)
class JobEvidence:
    """The facts of all logs of a Job, by Run id, and the stored data that is derived from them."""

    id: str
    logs: Mapping[str, LogFacts]
    states: Mapping[str, Run]  # the last state of each Run, as far as its events can be folded
    heads: tuple[tuple[str, Head], ...]
    """Heads of logs, with the Run of each, that are kept outside it: in results of delegates, and in derived data."""
    summary: bytes | None  # job.json
    checkpoints: Files

    def of(self, kind: type[_F]) -> Iterator[_F]:
        """Yield the facts of one kind, in the order of logs and events."""
        return (fact for log in self.logs.values() for fact in log.of(kind))

    def blobs(self, role: BlobRole) -> dict[str, NamedBlob]:
        """Return the blobs that logs name in this role, by name, as the first event names each."""
        return first_by_name(blob for blob in self.of(NamedBlob) if blob.role == role)

    @property
    def redactions(self) -> tuple[Redaction, ...]:
        return tuple(redaction for log in self.logs.values() for redaction in log.redactions)

    def state_at(self, run_id: str, seq: int) -> Run | None:
        log = self.logs.get(run_id)
        return None if log is None else log.states_at.get(seq)


# Read the facts.


async def read_evidence(storage: Storage, job_id: str) -> JobEvidence:
    """Read the logs of a Job, and the data derived from them. Raises NotFound."""
    # Caches are read before logs, which may grow meanwhile: a head found in a cache must then be in the log.
    summary = await storage.summary(job_id)
    checkpoints = await _checkpoint_files(storage, job_id)
    writers = await storage.unsealed_runs(job_id)
    ends = {Place(run_id, head.seq) for run_id, head in heads_in_summary(summary)}
    logs: dict[str, LogFacts] = {}
    states: dict[str, Run] = {}
    for run_id in await run_ids(storage, job_id):
        reader = _FactReader(RunRef(job_id, run_id), writers.get(run_id), checkpoints, ends)
        log = await run_logs(storage, states).check(reader.ref, reader.observe)
        logs[run_id] = reader.facts_of(log)
        if log.state is not None:
            states[run_id] = log.state
    ends_in_results = [answer.end for log in logs.values() for answer in log.of(DelegateAnswer)]
    heads = [(end.run_id, Head(end.seq, end.hash)) for end in ends_in_results]
    heads += [*heads_in_summary(summary), *_heads_in_checkpoints(checkpoints)]
    return JobEvidence(job_id, logs, states, tuple(heads), summary, checkpoints)


async def _checkpoint_files(storage: Storage, job_id: str) -> Files:
    files: dict[str, bytes] = {}
    for checkpoint_id in await checkpoint_ids(storage, job_id):
        data = await storage.checkpoint(job_id, checkpoint_id)
        if data is not None:
            files[checkpoint_id] = data
    return files


def _heads_in_checkpoints(files: Files) -> list[tuple[str, Head]]:
    heads: list[tuple[str, Head]] = []
    for checkpoint_id, data in files.items():
        try:
            messages = CheckpointFile.model_validate_json(data).messages
        except ValidationError:
            continue
        if is_place(checkpoint_id):
            heads.append((place_of(checkpoint_id)[1], Head(messages.through, messages.sha256)))
    return heads


_BLOB_MENTION = re.compile(r"blob:([0-9a-f]{64})\b")
_OUTPUT_FILE = re.compile(r'"outputFile": ?"blob:([0-9a-f]{64})"\}?')


@dataclass(slots=True)
class _FactReader:
    """The facts of one log while it is read."""

    ref: RunRef
    writer: str | None
    stored_checkpoints: Files
    ends: set[Place]  # places whose states are kept; results add to it, and a caller's log is read before a delegate's
    _facts: list[Fact] = field(default_factory=list[Fact])
    _findings: list[Finding] = field(default_factory=list[Finding])
    _start: StartRun | None = None
    _previous_run: Run | None = None
    _states_at: dict[int, Run] = field(default_factory=dict[int, Run])
    _checkpoints: dict[str, CheckpointFile] = field(default_factory=dict[str, CheckpointFile])
    _rules: list[RulesInForce] = field(default_factory=list[RulesInForce])
    _answered_calls: set[str] = field(default_factory=set[str])
    _redacted: dict[str, int] = field(default_factory=dict[str, int])  # positions of redacted events, by event id
    _exec_calls: set[str] = field(default_factory=set[str])  # only the host writes the names of blobs in their results

    def observe(self, line: StoredLine[StoredEvent], sealed: SealedLine, run: Run | None) -> None:
        """Collect what an event says; `run`: the state after it, None once an event did not follow."""
        place = Place(self.ref.run_id, line.seq)
        if run is not None:
            self._observe_state(place, line.event, run)
        self._previous_run = run
        if read_remains(sealed.payload) is not None:
            self._redacted[line.event.id] = line.seq
        self._observe_event(place, line.event, run)
        if line.event.named_tree is not None:
            self._facts.append(NamedBlob(place, line.event.named_tree, role="snapshot"))

    def facts_of(self, log: CheckedLog[Run]) -> LogFacts:
        """Return the facts of the log that was read."""
        redact_events = redactions_in(self.ref, log.lines)
        self._findings += [Finding(self.ref.run_id, seq, message) for seq, message in log.wrong]
        for event in redact_events:
            place = Place(self.ref.run_id, place_of(event.id)[2])
            problem = _redaction_problem(event, place, log.lines)
            if problem is not None:
                self._findings.append(Finding(*place, problem))
            self._facts += [NamedBlob(place, name, role="removed") for name in event.blobs]
        if log.damage is not None:
            self._findings.append(Finding(self.ref.run_id, log.damage.readable + 1, str(log.damage)))
        redactions: list[Redaction] = []
        for event_id, seq in self._redacted.items():
            redactions += [redaction_of(event, seq) for event in redact_events if event.event_id == event_id][:1]
        return LogFacts(
            run_id=self.ref.run_id,
            writer=self.writer,
            chain=log.chain,
            line_count=len(log.lines),
            unknown_count=len(log.unknown),
            start=self._start,
            run=log.state,
            fold_error=log.first_invalid,
            states_at=self._states_at,
            checkpoints=self._checkpoints,
            rules=tuple(self._rules),
            answered_calls=self._answered_calls,
            redactions=tuple(redactions),
            facts=tuple(self._facts),
            findings=tuple(self._findings),
        )

    def _observe_state(self, place: Place, event: StoredEvent, run: Run) -> None:
        previous_run = self._previous_run
        if previous_run is not None and self.writer is None:
            for repetition in contradictions(previous_run, event):
                contradiction = Contradiction(place, event.type, repetition)
                if repetition.is_emptied:
                    self._facts.append(contradiction)
                else:
                    self._findings.append(contradiction.finding)
            if checkpoint_at(event) not in (None, event.id):
                message = f"{event.type} says the checkpoint {checkpoint_at(event)!r}, not its own"
                self._findings.append(Finding(*place, message))
        if place in self.ends:
            self._states_at[place.seq] = run
        if previous_run is None or run.permissions is not previous_run.permissions:
            self._rules.append(RulesInForce(place.seq, run.permissions))
        if event.id in self.stored_checkpoints:
            self._checkpoints[event.id] = checkpoint_file(run)

    def _observe_event(self, place: Place, event: StoredEvent, run: Run | None) -> None:
        if not isinstance(event, StartRun) and place.seq == 1:
            self._findings.append(Finding(*place, "the log does not begin with startRun"))
        match event:
            case StartRun():
                self._start = event
                self._facts += _blobs_in(place, event.attachments)
                if place.seq > 1:
                    self._findings.append(Finding(*place, "a second startRun"))
            case CallDelegate():
                self._facts += [DelegateCall(place, delegation, run) for delegation in event.delegates]
            case StartGeneration() if event.tools_digest is not None:
                self._facts.append(ToolOffer(place, event))
            case CallTools():
                self._exec_calls.update(
                    decided.id
                    for decided in event.calls
                    if decided.skill_name == BASE_SKILL and decided.tool_name == "exec"
                )
            case FinishToolCall():
                self._observe_result(place, event)
            case QueueRun() if event.definition is not None:
                self._facts += [
                    NamedBlob(place, event.definition),
                    NamedBlob(place, event.definition, role="definition"),
                ]
            case ShrinkResults():
                self._facts += [NamedBlob(place, shrunk.blob) for shrunk in event.results]
            case _:
                pass

    def _observe_result(self, place: Place, event: FinishToolCall) -> None:
        self._answered_calls.add(event.tool_call_id)
        if event.delegate is not None:
            self.ends.add(Place(event.delegate.run_id, event.delegate.seq))
            self._facts.append(DelegateAnswer(place, event, event.delegate))
        self._facts += _blobs_in(place, event.contents)
        for part in event.contents:
            if isinstance(part, TextPart):
                names = _BLOB_MENTION.findall(part.text)
                self._facts += [NamedBlob(place, name, role="mention") for name in names]
                if event.tool_call_id in self._exec_calls:
                    self._facts += [NamedBlob(place, name) for name in _OUTPUT_FILE.findall(part.text)]


def _blobs_in(place: Place, contents: Iterable[ResultContent]) -> list[NamedBlob]:
    return [NamedBlob(place, part.sha256, part.size) for part in contents if isinstance(part, BlobPart)]


def _redaction_problem(redaction: RedactEvent, place: Place, lines: Sequence[bytes]) -> str | None:
    """Return what is wrong with a `redactEvent` at this place, or with the line that it redacts; None if nothing is."""
    try:
        _, run_id, seq = place_of(redaction.event_id)
    except UsageError:
        run_id, seq = "", 0
    if run_id != place.run_id or not 0 < seq < place.seq:
        return f"it redacts {redaction.event_id}, which is not an earlier event of this log"
    if parse_remains(redaction) is None:
        return "it replaces an event with something that is not what a redaction leaves"
    type_and_id = redaction.event_type.encode(), redaction.event_id.encode()
    if not lines[seq - 1].startswith(b'{"type":"%b","id":"%b","redacted":' % type_and_id):
        problem = f"the redaction of event {seq} was recorded but not carried out: its content is still there"
        return f"{problem}; redact it again"
    return None
