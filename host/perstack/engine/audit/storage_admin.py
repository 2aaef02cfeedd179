"""Copies Jobs, tasks, series of iterations and schedules from one storage to another, as they are: no id and no byte
changes.

What is copied is checked by both chains. A copy that was cut short is taken up where it ended, whoever takes it up: the
logs themselves say how far it came.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from typing import Literal, get_args

from perstack.core.chain import is_redaction_of, open_line
from perstack.core.ids import number_of_run
from perstack.core.json_reading import read_json
from perstack.core.owners import Owner, OwnerKind
from perstack.dataclass import dataclass
from perstack.engine.blobs import keep_blobs
from perstack.engine.elsewhere.holding import Holders
from perstack.engine.pages import every_id
from perstack.engine.spaces import space_of
from perstack.engine.who import this_process
from perstack.errors import Conflict, NotFound, PerstackError, StorageError, UsageError
from perstack.ports.formats import ShowsForeign
from perstack.ports.storage import Erases, KeepsCopies, Redacts, RunRef, Storage

_RECORDS = 500
_BLOBS = 50
"""How many are in memory at a time, and then those of the append that the last belongs to."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What became of one Job, task, series or schedule."""

    owner: Owner
    state: Literal["copied", "continued", "there", "left"]
    """New there; what was missing was added; nothing was missing; not copied, for the reason in `problem`."""
    records: int = 0
    blobs: int = 0
    problem: str = ""


async def copy_storage(
    source: Storage, target: Storage, ids: Sequence[str] = (), since: int | None = None
) -> AsyncGenerator[Copied]:
    """Copy everything, or what has one of these ids, or whose last event is not older than `since` (ms since 1970).

    The oldest first, so that the order of a list stays. Raises NotFound for an id that there is not, and UsageError if
    both are the same.
    """
    if source.location == target.location:
        raise UsageError(f"{source.location} would be copied to itself: name another storage to copy to")
    wanted = [one for kind in get_args(OwnerKind) for one in await _all_of(source, kind) if not ids or one.id in ids]
    missing = sorted(set(ids) - {owner.id for owner in wanted})
    if missing:
        raise NotFound(f"there is no Job, task or series {', '.join(missing)} in {source.location}")
    for owner in wanted:
        one = _Copying(space_of(source, owner.kind), space_of(target, owner.kind), owner)
        if since is None or await one.last_event() >= since:
            yield await one.done()


async def _all_of(storage: Storage, kind: OwnerKind) -> list[Owner]:
    ids = await every_id(lambda after: space_of(storage, kind).jobs(limit=1000, after=after))
    return [Owner(kind, of) for of in reversed(ids)]


class _Copying:
    """One of them."""

    def __init__(self, source: Storage, target: Storage, owner: Owner) -> None:
        self._source = source
        self._target = target
        self._owner = owner
        self._records = 0
        self._blobs = 0

    async def done(self) -> Copied:
        """Copy it. What keeps it from that is said, and harms no other."""
        try:
            await self._check_own()
            async with AsyncExitStack() as stack:
                await self._hold_source(stack)
                is_new = not await self._target.has_job(self._owner.id)
                if is_new:
                    await self._target.create_job(self._owner.id)
                await stack.enter_async_context(self._target.lease(self._owner.id, this_process()))
                await self._check_no_delegate_driven(self._target)
                await self._copy()
        except (StorageError, UsageError) as error:
            return Copied(self._owner, "left", self._records, self._blobs, str(error))
        added = self._records or self._blobs
        return Copied(
            self._owner, "copied" if is_new else "continued" if added else "there", self._records, self._blobs
        )

    async def last_event(self) -> int:
        """When the last one was, in milliseconds since 1970; 0 if no log can be read."""
        latest = 0
        for run_id in await every_id(lambda after: self._source.runs(self._owner.id, after=after)):
            try:
                records = await self._source.read(RunRef(self._owner.id, run_id))
            except PerstackError:
                continue
            latest = max(latest, _time_of(records[-1]) if records else 0)
        return latest

    async def _check_own(self) -> None:
        if isinstance(self._source, ShowsForeign) and (foreign := await self._source.unsealed_runs(self._owner.id)):
            raise UsageError(f"{next(iter(foreign.values()))} wrote it: run it once with perstack, and copy it then")

    async def _hold_source(self, stack: AsyncExitStack) -> None:
        """Nobody drives it meanwhile."""
        try:
            await stack.enter_async_context(self._source.lease(self._owner.id, this_process()))
        except Conflict:
            raise
        except StorageError:
            # a storage that may only be read: who writes to it can be seen, and not kept from it
            if (info := await self._source.lease_info(self._owner.id)) is not None:
                raise Conflict(f"it is being driven by {info.holder}: copy it when it has ended") from None
        await self._check_no_delegate_driven(self._source)

    async def _check_no_delegate_driven(self, storage: Storage) -> None:
        driven = await Holders(storage).driven(self._owner.id) if self._owner.kind == "job" else ()
        if driven:
            words = f"{driven[0]}, a delegate of it, is being driven by another worker"
            raise Conflict(f"{words}: copy it when it has ended")

    async def _copy(self) -> None:
        of = self._owner.id
        await self._copy_blobs()
        # a Run that started others comes after them: what is cut short refers to nothing that is not there
        runs = sorted(await every_id(lambda after: self._source.runs(of, after=after)), key=number_of_run, reverse=True)
        for run_id in runs:
            await self._copy_log(RunRef(of, run_id))
        await self._copy_caches(runs)

    async def _copy_blobs(self) -> None:
        if not isinstance(self._source, Erases):
            raise UsageError(f"{self._source.location}: this storage cannot list its blobs: it cannot be copied from")
        there = set(await self._target.blobs(self._owner.id)) if isinstance(self._target, Erases) else set[str]()
        missing = [name for name in await self._source.blobs(self._owner.id) if name not in there]
        for first in range(0, len(missing), _BLOBS):
            names = missing[first : first + _BLOBS]
            await keep_blobs(
                self._target, self._owner.id, [await self._source.blob(self._owner.id, name) for name in names]
            )
            self._blobs += len(names)

    async def _copy_log(self, run: RunRef) -> None:
        seq = 0
        while there := await self._target.read(run, seq, _RECORDS):
            here = await self._source.read(run, seq, len(there))
            for at, (old, new) in enumerate(zip(there, here, strict=False), seq + 1):
                if old != new:
                    await self._redact(run, at, old, new)
            seq += len(there)
            if len(here) < len(there):
                raise self._other(run, seq - len(there) + len(here))
        while True:
            records = await self._source.read(run, seq, _RECORDS)
            if not records:
                return
            whole = _whole_appends(records)
            if not whole:  # one append of more records than that
                records = await self._source.read(run, seq, open_line(records[0]).batch)
                whole = [records]
            for append in whole:
                await self._target.append(run, seq, append)
                seq += len(append)
                self._records += len(append)

    async def _redact(self, run: RunRef, seq: int, old: bytes, new: bytes) -> None:
        """What was taken out here since the last copy is taken out there."""
        if not is_redaction_of(old, new):
            raise self._other(run, seq - 1)
        if not isinstance(self._target, Redacts):
            raise UsageError(f"{self._target.location}: record {seq} of run {run.run_id} cannot be redacted there")
        await self._target.redact(run, seq, new)
        self._records += 1

    def _other(self, run: RunRef, seq: int) -> Conflict:
        return Conflict(
            f"{self._target.location}, run {run.run_id}: other records follow record {seq}: it was continued there, or"
            " is of another Job; what is there stays"
        )

    async def _copy_caches(self, runs: Sequence[str]) -> None:
        of = self._owner.id
        source, target = self._source, self._target
        entry = await source.entry(of)
        if entry is not None:
            await target.put_entry(of, entry[0], entry[1], synced=True)
        if isinstance(source, KeepsCopies) and isinstance(target, KeepsCopies):
            for run_id in runs:
                if (setting := await source.run_setting(RunRef(of, run_id))) is not None:
                    await target.put_run_setting(RunRef(of, run_id), setting)
            for checkpoint in await every_id(lambda after: source.checkpoints(of, after=after)):
                if (data := await source.checkpoint(of, checkpoint)) is not None:
                    await target.put_checkpoint(of, checkpoint, data)
        summary = await source.summary(of)
        if summary is not None and (self._records or await target.summary(of) is None):
            await target.put_summary(of, summary)


def _whole_appends(records: Sequence[bytes]) -> list[list[bytes]]:
    """The appends that are in these records whole, from the first on."""
    appends: list[list[bytes]] = []
    at = 0
    while at < len(records):
        length = open_line(records[at]).batch
        if at + length > len(records):
            break
        appends.append(list(records[at : at + length]))
        at += length
    return appends


def _time_of(record: bytes) -> int:
    try:
        event = read_json(open_line(record).payload)
    except ValueError:
        return 0
    at = event.get("timestamp") if isinstance(event, dict) else None
    return at if isinstance(at, int) else 0
