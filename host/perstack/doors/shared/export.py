"""Export of a Job to one file or to folders."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from perstack.core.base.text import suggestion
from perstack.doors.shared.log_view import in_order
from perstack.engine.log.run_log import RunLog
from perstack.errors import UsageError
from perstack.host import Host
from perstack.ports.commands import GROUP, PluginDocument
from perstack.system.plugin_modules import installed_modules

OWN_FORMS: dict[str, str] = {
    "jsonl": "the stored events, by time",
    "json": "one document with summary, Runs, checkpoints and messages",
}
"""The formats that need no plugin; each is one file."""


def forms_of(host: Host) -> list[str]:
    """Return the names of all formats, including plugins."""
    return sorted({*OWN_FORMS, *host.exports.formats})


def lines_of(logs: Iterable[RunLog]) -> bytes:
    """Return the events of the logs unchanged, by time."""
    return b"".join(entry.line + b"\n" for entry in in_order(logs))


async def document_of(host: Host, job_id: str) -> bytes:
    """Return a Job as one JSON document."""
    return json.dumps(await host.exports.document(job_id), ensure_ascii=False).encode() + b"\n"


async def folders_of(host: Host, job_id: str, form: str) -> Mapping[str, bytes]:
    """Return the files of a Job in a plugin's format. Raises UsageError that lists the formats."""
    forms = sorted({*forms_of(host), *plugin_documents()})
    if form not in forms:
        raise UsageError(f"no format {form!r} is installed; available: {', '.join(forms)}{suggestion(form, forms)}")
    return await host.exports.export(form, job_id)


def plugin_documents() -> Mapping[str, PluginDocument]:
    """Return the formats of plugins in which a Job is one file, by name. A plugin that cannot be loaded has none."""
    documents: dict[str, PluginDocument] = {}
    for point, _, _ in installed_modules(GROUP):
        with suppress(Exception):  # the list of commands says what is wrong with the plugin
            hook: Callable[[], Iterable[PluginDocument]] | None = getattr(point.load(), "perstack_documents", None)
            documents |= {document.name: document for document in (hook() if hook is not None else ())}
    return documents


async def plugin_document_of(host: Host, job_id: str, document: PluginDocument) -> bytes:
    """Return a Job as one file in the format of a plugin."""
    module, _, attribute = document.import_path.partition(":")
    make: Callable[[Host, str], Awaitable[bytes]] = getattr(importlib.import_module(module), attribute)
    return await make(host, job_id)


def write_new_file(content: bytes, path: Path, label: str) -> None:
    """Write a file that must not exist yet. Raises UsageError that calls it `label`."""
    try:
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError as error:
        raise UsageError(f"{label} exists: choose another name, or remove it first") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{label} cannot be written: {reason}") from error


def write_new_files(files: Mapping[str, bytes], folder: Path, option: str, label: str) -> Path:
    """Write files below a new folder and return their common path. Raises UsageError if that exists."""
    target = folder / os.path.commonpath([*files])
    if target.exists():
        raise UsageError(f"{target} exists: choose another directory for {option}, or remove it first")
    try:
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{label} cannot be written: {reason}") from error
    return target
