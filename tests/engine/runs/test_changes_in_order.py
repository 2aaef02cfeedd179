"""Changes of an Expert by one reply, when a storage keeps the Run waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hosts import Bench, Seen, expert, wait_for
from typing_extensions import override

from perstack.core.definitions.skills import BASE_SKILL, McpStdioSkill
from perstack.ports.storage import RunRef
from perstack.testing.crashing_storage import CrashingStorage
from perstack.testing.scripted import text, tool, turn

CHANGES = [tool(name, {"name": "box"}) for name in ("addDelegate", "removeDelegate")] * 10


class Slow(CrashingStorage):
    """A storage whose appends take so long that several calls end meanwhile."""

    @override
    async def append(self, ref: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        for _ in range(1_000):
            await asyncio.sleep(0)
        await super().append(ref, expected_seq, records)


def test_changes_of_one_reply_are_recorded_in_its_order(bench: Bench) -> None:
    # the result of deleteFile has an effect, so it is written at once: the changes end while the storage is busy
    picks = ("addDelegate", "removeDelegate", "deleteFile", "attemptCompletion")
    base = McpStdioSkill(name=BASE_SKILL, package_name=BASE_SKILL, pick=picks)
    script = [turn(tool("deleteFile", {"path": "missing"}), *CHANGES), text("ok")]
    host = bench.host(script, expert("lead").model_copy(update={"skills": (base,)}), expert("box"), wrap=Slow)
    seen = Seen()
    job = wait_for(host.run("lead", "q", on_event=seen))
    assert job.status == "completed"
    recorded = [event.tool_name for event in seen.of("finishToolCall") if event.tool_name != "deleteFile"]
    assert recorded == [change.name for change in CHANGES]
    assert wait_for(host.audit.replay(job.id)).ok
