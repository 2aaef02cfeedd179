"""A Job in another form, in a file or in folders."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from perstack.config.check import suggestion
from perstack.engine.read import RunLog
from perstack.errors import UsageError
from perstack.frontends.shared.log_entries import in_order
from perstack.host import Host

OWN_FORMS: dict[str, str] = {
    "jsonl": "the events as they are, by time",
    "json": "one document with summary, Runs, checkpoints and messages",
}
"""Those that need no plugin; each is one file."""


def forms_of(host: Host) -> list[str]:
    """Every form that there is."""
    return sorted({*OWN_FORMS, *host.jobs.plugins.formats})


def lines_of(logs: Iterable[RunLog]) -> bytes:
    """The events of these logs as they are, by time."""
    return b"".join(entry.line + b"\n" for entry in in_order(logs))


async def document_of(host: Host, job_id: str) -> bytes:
    """A Job as one JSON document."""
    return json.dumps(await host.document(job_id), ensure_ascii=False).encode() + b"\n"


async def folders_of(host: Host, job_id: str, form: str) -> Mapping[str, bytes]:
    """The files of a Job as another program keeps them. Raises UsageError that lists the forms."""
    known = forms_of(host)
    if form not in known:
        raise UsageError(f"no format {form!r} is installed; there are: {', '.join(known)}{suggestion(form, known)}")
    return await host.export(form, job_id)


def write_new_file(content: bytes, path: Path, named: str) -> None:
    """Write a file that is not there yet; errors say it as `named`. Raises UsageError."""
    try:
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError as error:
        raise UsageError(f"{named} exists: choose another name, or remove it first") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{named} cannot be written: {reason}") from error


def write_new_files(files: Mapping[str, bytes], folder: Path, option: str, named: str) -> Path:
    """Write these below a folder; returns what they have in common, which must not be there. Errors say where by
    `option`, and which by `named`. Raises UsageError."""
    place = folder / os.path.commonpath([*files])
    if place.exists():
        raise UsageError(f"{place} exists: choose another directory for {option}, or remove it first")
    try:
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{named} cannot be written: {reason}") from error
    return place
