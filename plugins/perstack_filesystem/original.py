"""Job folders that the original Perstack wrote, seen as logs of ours.

They are only read. When one of their Runs goes on here, its log is written beside them, and counts from then on.
"""

from __future__ import annotations

import os
from typing import TypeVar

from pydantic import ValidationError

from perstack.core.base import Fact
from perstack.core.chain import EMPTY_LOG, seal
from perstack.core.original import from_original
from perstack.core.original_shapes import Event, RunSetting
from perstack.errors import StorageError
from perstack_filesystem.folders import Folder
from perstack_filesystem.originals import OriginalJob, Stamp

T = TypeVar("T", bound=Fact)

_UNREAD = ("-streamRunResult.json", "-startStreamingRunResult.json", "-resolveToolResults.json")
"""Events that hold nothing of their own."""


def read_original(job_id: str, runs: Folder, stamp: Stamp) -> OriginalJob:
    """The Job of those folders. Raises StorageError, naming the file, if one does not read."""
    events: dict[str, list[Event]] = {}
    settings: dict[str, RunSetting] = {}
    for name, _ in stamp:
        folder = runs.find(name)
        if folder is None:
            continue
        with folder:
            settings[name] = _parse(RunSetting, folder, "run-setting.json") or RunSetting()
            files = sorted(entry.name for entry in folder.entries() if _is_event(entry))
            events[name] = [read for file in files if (read := _parse(Event, folder, file)) is not None]
    upgraded = from_original(job_id, events, settings)
    logs: dict[str, list[bytes]] = {}
    for run_id, log in upgraded.logs.items():
        head = EMPTY_LOG
        logs[run_id] = []
        for event in log:
            lines, head = seal(head, [event.to_json()])
            logs[run_id] += lines
    return OriginalJob(logs, upgraded.blobs, upgraded.checkpoints)


def _is_event(entry: os.DirEntry[str]) -> bool:
    return entry.name.startswith("event-") and entry.name.endswith(".json") and not entry.name.endswith(_UNREAD)


def _parse(shape: type[T], folder: Folder, name: str) -> T | None:
    data = folder.read(name)
    if data is None:
        return None
    try:
        return shape.model_validate_json(data)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise StorageError(f"{folder.path / name}: {where or 'the file'}: {problem['msg']}") from error
