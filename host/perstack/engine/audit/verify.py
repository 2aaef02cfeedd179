"""Checking a Job: its logs against their chain, heads kept elsewhere and each other, and what is derived from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from perstack.core.chain import Head, Sealed, taken_out
from perstack.core.checkpoint import checkpoint_file
from perstack.core.events import (
    CallDelegate,
    FinishToolCall,
    QueueRun,
    RedactEvent,
    ShrinkResults,
    StartGeneration,
    StartRun,
    StoredEvent,
)
from perstack.core.ids import BLOCK, OWN, block_of, number_of_run, place_of, run_id_of
from perstack.core.messages import BlobPart, ResultContent
from perstack.core.redaction import parse_remains, redaction_of
from perstack.core.runs.state import Run
from perstack.core.snapshots.named import trees_of
from perstack.core.verification import Report, against_head
from perstack.engine.logs.kept import heads_kept
from perstack.engine.logs.lines import run_ids
from perstack.engine.logs.log import CheckedLog, StoredLine
from perstack.engine.logs.runs import redactions_in, run_logs
from perstack.engine.requests import KeptToolsCheck
from perstack.engine.verify_caches import Files, check_caches, checkpoint_anchors, checkpoint_files
from perstack.engine.verify_state import Check
from perstack.errors import NotFound, StorageError, UsageError
from perstack.ports.formats import ShowsForeign
from perstack.ports.storage import RunRef, Storage


async def verify_job(storage: Storage, job_id: str) -> Report:
    """Check every line's digest and hash, each log against the heads that are kept in other places and against the
    Runs that name it, every blob, and what is derived against the logs. Nothing is written. Raises NotFound."""
    # caches are read before logs, which may grow meanwhile: so a head that is found in one is in the log
    summary = await storage.summary(job_id)
    checkpoints = await checkpoint_files(storage, job_id)
    unsealed = await storage.unsealed_runs(job_id) if isinstance(storage, ShowsForeign) else dict[str, str]()
    check = Check(job_id, unsealed)
    for run_id in await run_ids(storage, job_id):
        await _check_log(check, storage, RunRef(job_id, run_id), checkpoints)
    check.anchors += [*heads_kept(summary), *checkpoint_anchors(checkpoints)]
    for run_id, anchor in check.anchors:
        check.findings += against_head(run_id, anchor, check.heads.get(run_id, {}))
    _check_relations(check)
    _name_what_nothing_vouches_for(check)
    await _check_blobs(check, storage)
    await check_caches(check, storage, summary, checkpoints)
    return check.report()


# --- logs ---------------------------------------------------------------------------------------------------------


async def _check_log(check: Check, storage: Storage, ref: RunRef, checkpoints: Files) -> None:
    """One log against its own chain; what it tells of others, and what is derived from it, is taken down."""
    redacted: dict[str, int] = {}

    def observe(line: StoredLine[StoredEvent], sealed: Sealed, run: Run | None) -> None:
        if taken_out(sealed.payload) is not None:
            redacted[line.event.id] = line.seq
        if run is not None and line.event.id in checkpoints:
            check.checkpoints[line.event.id] = checkpoint_file(run)
        _take_down(check, ref, line.seq, line.event)
        for tree in trees_of(line.event):
            check.trees.setdefault(tree, (ref.run_id, line.seq))

    log = await run_logs(storage, check.states).check(ref, observe)
    check.misfit = check.misfit or log.misfit
    if log.state is not None:
        check.states[ref.run_id] = log.state
    check.heads[ref.run_id] = log.chain
    for seq, words in log.wrong:
        check.found(ref.run_id, seq, words)
    redactions = redactions_in(ref, log.lines)
    for event_id, seq in redacted.items():
        check.redactions += [redaction_of(one, seq) for one in redactions if one.event_id == event_id][:1]
    for redaction in redactions:
        _check_redaction(check, ref, redaction, log.lines)
        check.removed.update((name, (ref.run_id, place_of(redaction.id)[2])) for name in redaction.blobs)
    _say_how_far(check, ref, log)


def _say_how_far(check: Check, ref: RunRef, log: CheckedLog[Run]) -> None:
    """How far a log could be checked."""
    if log.damage is not None:
        check.found(ref.run_id, log.damage.readable + 1, str(log.damage))
    if log.unknown:
        words = f"a newer version has written what this one cannot read ({len(log.unknown)} of {len(log.lines)} events)"
        check.passed_over("content", ref.run_id, len(log.unknown), words)
    writer = check.unsealed.get(ref.run_id)
    if writer is not None:
        check.passed_over("digests", ref.run_id, len(log.lines), f"{writer} wrote it, without digests")
    else:
        check.digests += len(log.chain)


def _take_down(check: Check, ref: RunRef, seq: int, event: StoredEvent) -> None:  # noqa: C901 - one case a kind
    if isinstance(event, StartRun):
        check.starts[ref.run_id] = event
        _take_down_blobs(check, ref, seq, event.attachments)
        if seq > 1:
            check.found(ref.run_id, seq, "a second startRun")
    elif seq == 1:
        check.found(ref.run_id, 1, "the log does not begin with startRun")
    match event:
        case CallDelegate():
            for one in event.delegates:
                check.named[one.run_id] = (ref.run_id, seq, one.tool_call_id)
        case StartGeneration() if event.tools_digest is not None:
            check.offers.append((ref.run_id, seq, event))
        case FinishToolCall():
            _take_down_result(check, ref, seq, event)
        case QueueRun() if event.definition is not None:
            check.names_blob(event.definition, ref.run_id, seq)
            check.definitions.setdefault(event.definition, (ref.run_id, seq))
        case ShrinkResults():
            for shrunk in event.results:
                check.names_blob(shrunk.blob, ref.run_id, seq)
        case _:
            pass


def _take_down_result(check: Check, ref: RunRef, seq: int, event: FinishToolCall) -> None:
    check.answered.add((ref.run_id, event.tool_call_id))
    if event.delegate is not None:
        check.anchors.append((event.delegate.run_id, Head(event.delegate.seq, event.delegate.hash)))
    _take_down_blobs(check, ref, seq, event.contents)


def _take_down_blobs(check: Check, ref: RunRef, seq: int, contents: Iterable[ResultContent]) -> None:
    for part in contents:
        if isinstance(part, BlobPart):
            check.names_blob(part.sha256, ref.run_id, seq, part.size)


def _check_redaction(check: Check, ref: RunRef, redaction: RedactEvent, lines: Sequence[bytes]) -> None:
    """Whether what a redactEvent says was done."""
    _, _, at = place_of(redaction.id)
    try:
        _, run_id, seq = place_of(redaction.event_id)
    except UsageError:
        run_id, seq = "", 0
    if run_id != ref.run_id or not 0 < seq < at:
        check.found(ref.run_id, at, f"it redacts {redaction.event_id}, which is not an earlier event of this log")
    elif parse_remains(redaction) is None:
        check.found(ref.run_id, at, "it puts something in the place of an event that a redaction does not leave")
    elif not lines[seq - 1].startswith(b'{"type":"%b","id":"%b","redacted":' % (_ids_of(redaction))):
        words = f"the redaction of event {seq} was decided on and not carried out: its content is there still"
        check.found(ref.run_id, at, f"{words}; redact it again")


def _ids_of(redaction: RedactEvent) -> tuple[bytes, bytes]:
    return redaction.event_type.encode(), redaction.event_id.encode()


# --- logs together ------------------------------------------------------------------------------------------------


def _check_relations(check: Check) -> None:
    """Whether each Run is there because of another, or of a person, and whether those that are named are there."""
    for run_id, start in check.starts.items():
        by, base = start.delegated_by, start.continued_from
        if by is not None and run_id not in check.unsealed:
            place = check.named.get(run_id)
            if place is None or (place[0], place[2]) != (by.run_id, by.tool_call_id):
                check.found(run_id, 1, f"it says that {by.run_id} started it, and the log of that Run does not")
        if base is not None and base.run_id not in check.starts:
            check.found(run_id, 1, f"it continues from {base.run_id}, which has no log")
    anchored = {run_id for run_id, _ in check.anchors}
    for run_id, (parent, seq, call_id) in check.named.items():
        is_over = (parent, call_id) in check.answered  # it could not be set up: it has no log, and its parent no head
        if run_id not in check.heads and run_id not in anchored and not is_over:
            words = f"{parent}, event {seq}, has decided on it; it has no log: it never began, or the log was removed"
            check.passed_over("runs", run_id, 0, words)
    known = check.heads.keys() | check.named.keys() | anchored
    for number in _numbers_below(number_of_run(run_id) for run_id in check.heads):
        run_id = run_id_of(check.job_id, number)
        if run_id not in known:
            words = "no log names it, and it has none: it never began, or the log was removed"
            check.passed_over("runs", run_id, 0, words)


def _numbers_below(numbers: Iterable[int]) -> Iterator[int]:
    """Those that were given before some of these, each in its block: a Job's own, or one of a driver of its own."""
    last: dict[int, int] = {}
    for number in numbers:
        of = 0 if number in OWN else number // BLOCK
        last[of] = max(last.get(of, 0), number)
    for of, highest in sorted(last.items()):
        yield from range(block_of(of).start, highest)


def _name_what_nothing_vouches_for(check: Check) -> None:
    """The ends of logs: their own chain does not tell that they were cut, or written anew."""
    for run_id, chain in check.heads.items():
        vouched = max((anchor.seq for one, anchor in check.anchors if one == run_id), default=0)
        if run_id not in check.unsealed and len(chain) > vouched:
            words = "no head kept elsewhere is of these: a cut, or a log rewritten from there on, would not be seen"
            check.passed_over("heads", run_id, len(chain) - vouched, words)


async def _check_blobs(check: Check, storage: Storage) -> None:
    tools = KeptToolsCheck(storage, check.job_id)
    right: set[str | None] = {event.tools_digest for _, _, event in check.offers}
    for run_id, seq, event in check.offers:
        problem = await tools.problem(event)
        if problem is not None:
            check.found(run_id, seq, problem)
            right.discard(event.tools_digest)
    check.right_blobs += len(right)
    await _check_trees(check, storage)
    await _name_skills(check, storage)
    for name, (run_id, seq, size) in check.blobs.items():
        try:
            found = len(await storage.blob(check.job_id, name))
        except NotFound:
            if name not in check.removed:
                check.found(run_id, seq, f"the blob {name}, which it names, is missing")
        except (StorageError, UsageError) as error:
            check.found(run_id, seq, str(error))
        else:
            check.right_blobs += size in (None, found)
            if size is not None and found != size:
                check.found(run_id, seq, f"the blob {name} has {found:,} bytes, and it says {size:,}")
    await _check_removed(check, storage)


async def _check_trees(check: Check, storage: Storage) -> None:
    """Each folder of each snapshot; the files in it are among the blobs that are named from then on."""
    if not check.trees:
        return
    from perstack.engine.snapshots.reach import parts_of  # few Jobs have snapshots
    from perstack.engine.snapshots.trees import Trees

    async for part in parts_of(Trees(storage, check.job_id), check.trees):
        run_id, seq = check.trees[part.tree]
        if part.problem and not (part.is_missing and part.digest in check.removed):
            check.found(run_id, seq, f"its snapshot: {part.problem}")
        elif not part.problem:
            check.names_blob(part.digest, run_id, seq, part.size)


async def _name_skills(check: Check, storage: Storage) -> None:
    """The files of the Agent Skills that a Job was left to workers with are among the blobs from then on."""
    if not check.definitions:
        return
    from perstack.engine.queueing import definition_kept  # few Jobs were

    for digest, (run_id, seq) in check.definitions.items():
        with suppress(StorageError, UsageError, NotFound):  # it is named itself
            definition = await definition_kept(storage, check.job_id, digest)
            for file in (file for skill in definition.agent_skills for file in skill.files):
                check.names_blob(file.sha256, run_id, seq, file.size)


async def _check_removed(check: Check, storage: Storage) -> None:
    """Whether the blobs are gone that a redaction was to take away; what was put there again later is named later."""
    for name, (run_id, seq) in check.removed.items():
        if any(run != run_id or at > seq for run, at in check.naming.get(name, ())):
            continue
        with suppress(UsageError, StorageError):
            await storage.blob(check.job_id, name)
            words = f"the redaction was not carried out to its end: the blob {name} is there still; redact it again"
            check.found(run_id, seq, words)
