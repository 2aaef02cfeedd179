"""The storage of a project, wherever in it one stands."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote

from perstack.config.places import ProjectPlace
from perstack.core.definitions import Project
from perstack.engine.plugins import Plugins
from perstack.engine.trust import environment_of
from perstack.ports import dispatcher
from perstack.ports.environment import refuse_redirected
from perstack.ports.storage import LocalStorage, SendsCredentials, Storage
from perstack.ports.variables import filled_address, variables_in


def open_state(
    plugins: Plugins, project: Project, place: ProjectPlace, named: str | None, env: Mapping[str, str]
) -> tuple[Storage, str | None]:
    """The storage of a project, or the one that is named instead, and what a person should be told of it.

    What a project says is seen from its `state_root`, and what is named from where one stands. Where an older version,
    which kept all state there, has left some, that is used. Raises UsageError if no such storage is installed, or if a
    variable in its address is not set. `[storageSetting]` is for what is named too, if that is of the same kind.
    """
    setting = project.storage_setting
    if named is not None:
        address = storage_address(plugins, named, env)
        same = address.partition(":")[0] == project.storage.partition(":")[0]
        return plugins.open_storage(address, place.folder, setting if same else {}), None
    address = storage_address(plugins, project.storage, env)
    storage = plugins.open_storage(address, place.state_root, setting)
    if place.folder == place.state_root:
        return storage, None
    older = plugins.open_storage(address, place.folder, setting)
    if not isinstance(older, LocalStorage) or older.location == storage.location or not older.is_there():
        return storage, None
    return older, (
        f"Jobs are kept in {older.location}, where an older version left some, and not in {storage.location} beside"
        f" perstack.toml; {_how_to_merge(Path(older.location), Path(storage.location))}"
    )


def state_environment(project: Project, place: ProjectPlace, named: str | None) -> Mapping[str, str]:
    """The environment, with the `.env` files if the address of the storage, or of the dispatcher, names a variable."""
    workers = () if project.workers is None or project.workers.dispatcher is None else (project.workers.dispatcher,)
    if variables_in([project.storage if named is None else named, *workers]):
        return environment_of(project, place)
    return os.environ


def storage_address(plugins: Plugins, address: str, env: Mapping[str, str]) -> str:
    """The address with the values of its variables.

    Raises UsageError if a person's own credential would go with it to where only a workspace's `.env` says.
    """
    filled = filled_address(address, env)
    if variables_in([address]):
        factory, _ = plugins.storage_at(filled)
        _refuse_redirected(address, env, factory.credentials if isinstance(factory, SendsCredentials) else ())
    return filled


def dispatcher_address(plugins: Plugins, address: str, env: Mapping[str, str]) -> str:
    """The same for the address of a dispatcher."""
    filled = filled_address(address, env, "dispatcher")
    if variables_in([address]):
        factory, _ = plugins.dispatcher_at(filled)
        sent = factory.credentials if isinstance(factory, dispatcher.SendsCredentials) else ()
        _refuse_redirected(address, env, sent)
    return filled


def _refuse_redirected(address: str, env: Mapping[str, str], sent: Sequence[str]) -> None:
    names = variables_in([address])
    for name in sorted(names):
        refuse_redirected(env, name, (*sorted(names - {name}), *sent))


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
