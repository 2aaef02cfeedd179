"""The storage of a project, wherever in it one stands."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from perstack.config.places import ProjectPlace
from perstack.core.definitions import Project
from perstack.engine.plugins import Plugins
from perstack.ports.storage import LocalStorage, Storage


def open_state(
    plugins: Plugins, project: Project, place: ProjectPlace, named: str | None = None
) -> tuple[Storage, str | None]:
    """The storage of a project, or the one that is named instead, and what a person should be told of it.

    What a project says is seen from its `state_root`, and what is named from where one stands. Where an older version,
    which kept all state there, has left some, that is used. Raises UsageError if no such storage is installed.
    """
    if named is not None:
        return plugins.open_storage(named, place.folder), None
    address = project.storage
    storage = plugins.open_storage(address, place.state_root)
    if place.folder == place.state_root:
        return storage, None
    older = plugins.open_storage(address, place.folder)
    if not isinstance(older, LocalStorage) or older.location == storage.location or not older.is_there():
        return storage, None
    return older, (
        f"Jobs are kept in {older.location}, where an older version left some, and not in {storage.location} beside"
        f" perstack.toml; {_how_to_merge(Path(older.location), Path(storage.location))}"
    )


def places_of(storage: Storage) -> tuple[Path, ...]:
    """The files and folders on this machine that a storage keeps."""
    return storage.places if isinstance(storage, LocalStorage) else ()


def _how_to_merge(older: Path, newer: Path) -> str:
    """A command, for a person who is sure that nothing runs."""
    source, target = quote(str(older)), quote(str(newer))
    if older.is_dir():
        each = f'mkdir -p {target}/"$s" && mv -n "$s"* {target}/"$s"'
        return f"to merge them: (cd {source} && for s in */; do {each}; done)"
    if newer.exists():
        return f"two files are not merged: move {source} away, and name it as the storage when you need it"
    return f"to move them: mkdir -p {quote(str(newer.parent))} && mv {source}* {quote(str(newer.parent))}/"
