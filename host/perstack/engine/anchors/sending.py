"""Send log heads to an anchor, through an outbox: a failing anchor fails no Job, and delays it `TIMEOUT_S` at most."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from perstack.core.audit.receipts import LogEnd
from perstack.core.base.chain import Head, open_line
from perstack.core.base.ids import Owner, OwnerKind
from perstack.engine.anchors.receipts import Signer, ends_at, ends_now, lock_digest, signed_record
from perstack.engine.anchors.targets import TIMEOUT_S, Anchor, reason_of
from perstack.engine.log.event_log import add_payload
from perstack.engine.log.storage import OWNER_KINDS, log_of, space_of
from perstack.errors import Conflict, NotAgreed, NotFound
from perstack.ports.storage import Storage
from perstack.system.clock import SYSTEM, Clock
from perstack.system.user import notice

# The outbox: records that an anchor has not accepted yet, one log for each owner, in separate spaces of the
# storage.
#
# A record is stored before it is sent and until it has arrived, so that no crash and no failing anchor loses it. An
# expected record is an empty log: if its driver is killed before it makes the record, a later process does.

_MAX_ATTEMPTS = 5
_MAX_OWNERS = 1000


class AnchorOutbox:
    """Records that an anchor has not accepted yet. Several processes may add, send and remove at once."""

    def __init__(self, storage: Storage, kind: OwnerKind) -> None:
        """Open the outbox for one kind of owner."""
        self._space = storage.space(OWNER_KINDS[kind].outbox)

    async def expect(self, job_id: str) -> None:
        """Create an empty entry for a record to come. Raises StorageError."""
        with suppress(Conflict):
            await self._space.create_job(job_id)

    async def add(self, job_id: str, record: bytes) -> None:
        """Store a record, a JSON object; it survives power loss when this returns. Raises StorageError."""
        ref = log_of(job_id)
        for attempt in range(_MAX_ATTEMPTS):
            try:
                await self.expect(job_id)
                await add_payload(self._space, ref, record)
            except (Conflict, NotFound):  # another process added or removed concurrently
                if attempt == _MAX_ATTEMPTS - 1:
                    raise
            else:
                return

    async def of(self, job_id: str) -> list[bytes]:
        """Return the records of an owner, oldest first. Raises StorageError."""
        return [open_line(line).payload for line in await self._space.read(log_of(job_id))]

    async def to_send(self, job_id: str) -> list[bytes]:
        """Return the records of an owner, oldest first. Raises NotAgreed for records of others, and StorageError."""
        await self._space.require_own(job_id)
        return await self.of(job_id)

    async def jobs(self) -> tuple[str, ...]:
        """Return the ids of owners with records or empty entries, at most a thousand."""
        return (await self._space.jobs(limit=_MAX_OWNERS)).ids

    async def has(self, job_id: str) -> bool:
        """Return whether an owner has records or an empty entry."""
        return await self._space.has_job(job_id)

    async def remove(self, job_id: str, count: int) -> None:
        """Delete the records of an owner, unless their number is no longer `count`. Raises StorageError."""
        expected = (log_of(job_id), count) if count else None
        with suppress(Conflict, NotFound):
            await self._space.delete_job(job_id, expected=expected)


class AnchorSender:
    """A sender of records to one anchor. No method raises: errors become notices."""

    def __init__(
        self,
        storage: Storage,
        anchor: Anchor,
        signer: Callable[[], Signer | None],
        lock: Path | None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Create without sending anything; `signer` is called when a record is made."""
        self._storage = storage
        self._anchor = anchor
        self._signer = signer
        self._lock = lock
        self._clock = clock

    async def expect(self, owner: Owner) -> None:
        """Create an empty outbox entry for an owner whose heads will be sent."""
        await self._try(_heads_of(owner), lambda: self._pending(owner.kind).expect(owner.id))

    async def send_heads(self, owner: Owner, heads: Mapping[str, Head]) -> None:
        """Store and send the heads that this process has written, by Run, of an owner that has stopped."""

        async def send() -> None:
            ends = await ends_at(self._storage, owner, heads)
            await self._keep(owner, ends)
            await self._send_pending(owner)

        await self._try(_heads_of(owner), send)

    async def send_current(self, owner: Owner) -> None:
        """Store and send the heads that the owner's logs have now."""

        async def send() -> None:
            await self._keep(owner, await ends_now(self._storage, owner))
            await self._send_pending(owner)

        await self._try(_heads_of(owner), send)

    async def keep_removal(self, owner: Owner) -> None:
        """Store the record of a removal, with the last heads. `send_stored` sends it."""

        async def keep() -> None:
            await self._keep(owner, await ends_now(self._storage, owner), removed=True)

        await self._try(f"the removal of {_owner_name(owner)}", keep)

    async def send_stored(self, owner: Owner) -> None:
        """Send the stored records of an owner."""
        await self._try(_heads_of(owner), lambda: self._send_pending(owner))

    async def send_backlog(self) -> None:
        """Send all stored records, except records that the driver of a leased owner is about to send."""

        async def send() -> None:
            for kind in OWNER_KINDS:
                for owner_id in await self._pending(kind).jobs():
                    with suppress(NotAgreed):  # records that came with a file from elsewhere
                        await self._send_remaining(Owner(kind, owner_id))

        await self._try("the heads of earlier stops", send)

    async def _send_remaining(self, owner: Owner) -> None:
        space = space_of(self._storage, owner.kind)
        await space.require_own(owner.id)
        if not await self._pending(owner.kind).of(owner.id):
            if await space.lease_info(owner.id) is not None:
                return  # its driver will send
            await self._keep(owner, await ends_now(self._storage, owner))
        await self._send_pending(owner)
        if await space.lease_info(owner.id) is not None:
            await self._pending(owner.kind).expect(owner.id)

    async def _keep(self, owner: Owner, ends: Sequence[LogEnd], *, removed: bool = False) -> None:
        """Store a record of these log ends; do nothing if there are no logs."""
        if ends:
            record = signed_record(
                owner,
                ends,
                signer=self._signer(),
                lock=lock_digest(self._lock),
                clock=self._clock,
                store=store_digest(self._storage),
                removed=removed,
            )
            await self._pending(owner.kind).add(owner.id, record)

    async def _send_pending(self, owner: Owner) -> None:
        pending = self._pending(owner.kind)
        records = await pending.to_send(owner.id)
        for record in records:
            await self._anchor.send(owner.id, record)
        await pending.remove(owner.id, len(records))

    def _pending(self, kind: OwnerKind) -> AnchorOutbox:
        return AnchorOutbox(self._storage, kind)

    async def _try(self, what: str, send: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await send()
        except Exception as error:  # noqa: BLE001 - no fault of an anchor may end a Job
            words = f"the anchor {self._anchor.name} did not take {what}: {reason_of(error)}"
            notice(f"{words}; they are kept, and sent at the next start or stop")


def store_digest(storage: Storage) -> bytes:
    """Return the SHA-256 of the storage's location."""
    places = storage.places
    return sha256((str(places[0].resolve()) if places else storage.location).encode()).digest()


def _heads_of(owner: Owner) -> str:
    return f"the heads of {_owner_name(owner)}"


def _owner_name(owner: Owner) -> str:
    return f"{OWNER_KINDS[owner.kind].singular} {owner.id}"
