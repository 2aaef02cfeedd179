"""Send log heads to an anchor, through an outbox: a failing anchor fails no Job, and delays it `TIMEOUT_S` at most."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from perstack.audit.anchors import TIMEOUT_S, Anchor, reason_of
from perstack.audit.receipt_statements import LogEnd
from perstack.audit.receipts import Signer, ends_at, ends_now, lock_digest, signed_record
from perstack.core.base.chain import Head
from perstack.core.base.ids import Owner, OwnerKind
from perstack.engine.log.storage_access import OWNER_KINDS, PendingRecords, space_of
from perstack.errors import NotAgreed
from perstack.ports.storage import Storage
from perstack.system.clock import SYSTEM, Clock
from perstack.system.user import notice

# The outbox: records that an anchor has not accepted yet, in separate spaces of the storage.
#
# A record is stored before it is sent and until it has arrived, so that no crash and no failing anchor loses it. An
# expected record is an empty log: if its driver is killed before it makes the record, a later process does.


def outbox(storage: Storage, kind: OwnerKind) -> PendingRecords:
    """Return the records of one kind of owner that an anchor has not accepted yet."""
    return PendingRecords(storage.space(OWNER_KINDS[kind].outbox))


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
        await self._send_or_warn(_heads_name(owner), lambda: self._pending(owner.kind).expect(owner.id))

    async def send_heads(self, owner: Owner, heads: Mapping[str, Head]) -> None:
        """Store and send the heads that this process has written, by Run, of an owner that has stopped."""

        async def send() -> None:
            log_ends = await ends_at(self._storage, owner, heads)
            await self._store(owner, log_ends)
            await self._send_pending(owner)

        await self._send_or_warn(_heads_name(owner), send)

    async def send_current(self, owner: Owner) -> None:
        """Store and send the heads that the owner's logs have now."""

        async def send() -> None:
            await self._store(owner, await ends_now(self._storage, owner))
            await self._send_pending(owner)

        await self._send_or_warn(_heads_name(owner), send)

    async def store_removal(self, owner: Owner) -> None:
        """Store the record of a removal, with the last heads. `send_stored` sends it."""

        async def store() -> None:
            await self._store(owner, await ends_now(self._storage, owner), removed=True)

        await self._send_or_warn(f"the removal of {_owner_name(owner)}", store)

    async def send_stored(self, owner: Owner) -> None:
        """Send the stored records of an owner."""
        await self._send_or_warn(_heads_name(owner), lambda: self._send_pending(owner))

    async def send_backlog(self) -> None:
        """Send all stored records, except records that the driver of a leased owner is about to send."""

        async def send() -> None:
            for kind in OWNER_KINDS:
                for owner_id in await self._pending(kind).jobs():
                    with suppress(NotAgreed):  # another installation made these records
                        await self._send_backlog_of(Owner(kind, owner_id))

        await self._send_or_warn("the heads of earlier stops", send)

    async def _send_backlog_of(self, owner: Owner) -> None:
        """Send an owner's stored records, or the present heads if its driver died before it made a record."""
        space = space_of(self._storage, owner.kind)
        await space.require_own(owner.id)
        if not await self._pending(owner.kind).records(owner.id):
            if await space.lease_info(owner.id) is not None:
                return  # the driver that holds the lease sends the heads when it stops
            await self._store(owner, await ends_now(self._storage, owner))
        await self._send_pending(owner)
        if await space.lease_info(owner.id) is not None:
            await self._pending(owner.kind).expect(owner.id)

    async def _store(self, owner: Owner, ends: Sequence[LogEnd], *, removed: bool = False) -> None:
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
        records = await pending.own_records(owner.id)
        for record in records:
            await self._anchor.send(owner.id, record)
        await pending.remove(owner.id, len(records))

    def _pending(self, kind: OwnerKind) -> PendingRecords:
        return outbox(self._storage, kind)

    async def _send_or_warn(self, content: str, send: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await send()
        except Exception as error:  # noqa: BLE001 - no fault of an anchor may end a Job
            message = f"the anchor {self._anchor.name} did not take {content}: {reason_of(error)}"
            notice(f"{message}; they are kept, and sent at the next start or stop")


def store_digest(storage: Storage) -> bytes:
    """Return the SHA-256 of the storage's location."""
    paths = storage.places
    return sha256((str(paths[0].resolve()) if paths else storage.location).encode()).digest()


def _heads_name(owner: Owner) -> str:
    return f"the heads of {_owner_name(owner)}"


def _owner_name(owner: Owner) -> str:
    return f"{OWNER_KINDS[owner.kind].singular} {owner.id}"
