"""Commands that paused tasks run to ask whether they may continue; Experts may not change what they run."""

from __future__ import annotations

from perstack.engine.log.storage_access import space_of
from perstack.ports.storage import Storage


async def waiting_commands(storage: Storage) -> tuple[tuple[str, ...], ...]:
    """Return the commands that tasks of a storage run while they wait. Reads no log without such a task."""
    entries = await space_of(storage, "task").entries()
    task_ids = [task_id for task_id, entry in entries.items() if not entry or b'"polls"' in entry]
    if not task_ids:
        return ()
    from perstack.tasks.task_log import commands_of_tasks  # few Jobs run while a task waits with a command

    return await commands_of_tasks(storage, task_ids)
