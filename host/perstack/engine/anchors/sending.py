"""Sending heads to an anchor: kept beside the state first, and until they have arrived.

Nothing that goes wrong with an anchor ends or delays what has stopped beyond `SECONDS`: it is said on stderr, and tried
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import get_args

from perstack.core.chain import Head
from perstack.core.owners import Owner, OwnerKind
from perstack.core.receipts import LogEnd
from perstack.engine.anchors import SECONDS, Anchor, reason_of
from perstack.engine.clock import SYSTEM
from perstack.engine.notices import notice
from perstack.engine.pending_heads import PendingHeads
from perstack.engine.receipts import NAMES, Voucher, ends_at, ends_now, lock_digest
from perstack.engine.signing import Signer
from perstack.engine.spaces import space_of
from perstack.engine.state import places_of
from perstack.ports.clock import Clock
from perstack.ports.storage import Storage


class Sending:
    """Sends to one anchor. No method raises what goes wrong."""

    def __init__(
        self,
        storage: Storage,
        anchor: Anchor,
        signer: Callable[[], Signer | None],
        lock: Path | None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._storage = storage
        self._anchor = anchor
        self._signer = signer
        self._lock = lock
        self._clock = clock

    async def expect(self, owner: Owner) -> None:
        """Take down that there are going to be heads of it."""
        await self._try(_heads_of(owner), lambda: self._pending(owner.kind).expect(owner.id))

    async def heads(self, owner: Owner, heads: Mapping[str, Head]) -> None:
        """Of one that has stopped, with the head of each log by its Run, as this process has written them."""

        async def send() -> None:
            ends = await ends_at(self._storage, owner, heads)
            await self._keep(owner, ends)
            await self._send_pending(owner)

        await self._try(_heads_of(owner), send)

    async def as_it_is(self, owner: Owner) -> None:
        """The same, with the heads that its logs have now."""

        async def send() -> None:
            await self._keep(owner, await ends_now(self._storage, owner))
            await self._send_pending(owner)

        await self._try(_heads_of(owner), send)

    async def removal(self, owner: Owner) -> None:
        """Keep the record that it is removed, with its last heads. `left` sends it."""

        async def keep() -> None:
            await self._keep(owner, await ends_now(self._storage, owner), removed=True)

        await self._try(f"the removal of {_named(owner)}", keep)

    async def left(self, owner: Owner) -> None:
        """Send what is kept of one."""
        await self._try(_heads_of(owner), lambda: self._send_pending(owner))

    async def earlier(self) -> None:
        """Send all that is kept, but for what others are about to send."""

        async def send() -> None:
            for kind in KINDS:
                for one in await self._pending(kind).jobs():
                    await self._send_left(Owner(kind, one))

        await self._try("the heads of earlier stops", send)

    async def _send_left(self, owner: Owner) -> None:
        space = space_of(self._storage, owner.kind)
        if not await self._pending(owner.kind).of(owner.id):
            if await space.lease_info(owner.id) is not None:
                return  # its driver is going to
            await self._keep(owner, await ends_now(self._storage, owner))
        await self._send_pending(owner)
        if await space.lease_info(owner.id) is not None:
            await self._pending(owner.kind).expect(owner.id)

    async def _keep(self, owner: Owner, ends: Sequence[LogEnd], *, removed: bool = False) -> None:
        """Nothing if there are no logs."""
        if ends:
            voucher = Voucher(self._signer(), lock_digest(self._lock), store_digest(self._storage), self._clock)
            await self._pending(owner.kind).add(owner.id, voucher.record(owner, ends, removed=removed))

    async def _send_pending(self, owner: Owner) -> None:
        pending = self._pending(owner.kind)
        records = await pending.of(owner.id)
        for record in records:
            await self._anchor.send(owner.id, record)
        await pending.remove(owner.id, len(records))

    def _pending(self, kind: OwnerKind) -> PendingHeads:
        return PendingHeads(self._storage, kind)

    async def _try(self, what: str, send: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                await send()
        except Exception as error:  # noqa: BLE001 - no fault of an anchor may end a Job
            words = f"the anchor {self._anchor.name} did not take {what}: {reason_of(error)}"
            notice(f"{words}; they are kept, and sent at the next start or stop")


KINDS: tuple[OwnerKind, ...] = get_args(OwnerKind)


def store_digest(storage: Storage) -> bytes:
    """The SHA-256 of where a storage is."""
    places = places_of(storage)
    return sha256((str(places[0].resolve()) if places else storage.location).encode()).digest()


def _heads_of(owner: Owner) -> str:
    return f"the heads of {_named(owner)}"


def _named(owner: Owner) -> str:
    return f"{NAMES[owner.kind]} {owner.id}"
