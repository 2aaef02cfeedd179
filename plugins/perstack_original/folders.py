"""Job folders that the original Perstack wrote, seen as logs of ours. They are only read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from pydantic import ValidationError

from perstack.core.base import Fact
from perstack.errors import StorageError
from perstack.ports.formats import Folder, ForeignJob
from perstack_original.imports import from_original
from perstack_original.shapes import Event, RunSetting

T = TypeVar("T", bound=Fact)

_UNREAD = ("-streamRunResult.json", "-startStreamingRunResult.json", "-resolveToolResults.json")
"""Events that hold nothing of their own."""


def read_job(job_id: str, runs: Folder, names: Sequence[str]) -> ForeignJob:
    """The Job of those folders. Raises StorageError, naming the file, if one cannot be read."""
    events: dict[str, list[Event]] = {}
    settings: dict[str, RunSetting] = {}
    for name in names:
        found = runs.find(name)
        if found is None:
            continue
        with found as folder:
            files = sorted(entry.name for entry in folder.entries() if _is_event(entry))
            if not files:
                continue
            settings[name] = _parse(RunSetting, folder, "run-setting.json") or RunSetting()
            events[name] = [read for file in files if (read := _parse(Event, folder, file)) is not None]
    return from_original(job_id, events, settings)


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
