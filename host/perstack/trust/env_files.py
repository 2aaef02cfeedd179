"""The environment of a project: its `.env` files are read if their user named them, or has agreed to their content."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

from perstack.config.env import EnvFile, read_env
from perstack.config.keys import KeyStore
from perstack.config.project import ProjectPlace, folder_contains, folder_of, is_named, owner_of
from perstack.core.base.records import canonical_json
from perstack.core.base.text import approvable_line
from perstack.core.definitions.project import Project
from perstack.ports.environment import Environment
from perstack.support.variables import variables_in
from perstack.trust.agreements import Agreement, TrustStore
from perstack.trust.items import TrustItem, items_of_keys

_OPAQUE = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_-]{16,}")
"""Value of a `.env` file that is not shown: it looks like a key, and can be no command line, path or address."""


def env_item(file: EnvFile) -> TrustItem:
    """Return the item of a `.env` file, which an agreement lets be read as long as it does not change."""
    digest = sha256(canonical_json(["env", sha256(file.content).hexdigest()])).hexdigest()
    values = ((name, "***" if _OPAQUE.fullmatch(value) else value) for name, value in file.variables.items())
    lines = (approvable_line(f"{name}={value}") for name, value in values)
    return TrustItem(
        place=str(file.path), digest=digest, kinds=("reads",), shown=f"reads: {file.path.name} sets {', '.join(lines)}"
    )


def environment_of(project: Project, place: ProjectPlace, env_files: Sequence[str] = ()) -> Environment:
    """Return the environment with the user's keys and the `.env` files that the user named or has agreed to.

    `env_files`: files that the user named for this call, in place of all others. Raises UsageError if a
    file cannot be read.
    """
    if env_files:
        return read_env(place.folder, env_files, stored=KeyStore.of_user(), is_named=True)
    return read_env(
        place.folder,
        project.env_path,
        stored=KeyStore.of_user(),
        owners=() if project.path is None else owner_of(Path(project.path)),
        may_open=partial(_may_open, project, place),
        is_agreed=lambda file: _is_agreed(project, place, file),
    )


def state_environment(project: Project, place: ProjectPlace, named: str | None) -> Mapping[str, str]:
    """Return the environment, with `.env` files if the address of the storage or the dispatcher contains a variable."""
    workers = () if project.workers is None or project.workers.dispatcher is None else (project.workers.dispatcher,)
    if variables_in([project.storage if named is None else named, *workers]):
        return environment_of(project, place).without_stored
    return Environment(os.environ)


def env_items(project: Project, place: ProjectPlace) -> list[TrustItem]:
    """Return an item for each `.env` file of a project that may be opened, agreed to or not. Raises UsageError."""
    found: list[EnvFile] = []

    def note(file: EnvFile) -> bool:
        found.append(file)
        return False

    owners = () if project.path is None else owner_of(Path(project.path))
    may_open = partial(_may_open, project, place)
    read_env(place.folder, project.env_path, owners=owners, may_open=may_open, is_agreed=note)
    return [env_item(file) for file in found]


def _may_open(project: Project, place: ProjectPlace, path: Path) -> bool:
    """Return whether a `.env` file is in the folder of the definition, or its folder is agreed to."""
    if folder_contains(folder_of(project, place.folder), str(path)):
        return True
    agreement = Agreement(project)
    items = items_of_keys(project, ("env_path",), agreement.own)
    return bool(items) and not agreement.missing(items)


def _is_agreed(project: Project, place: ProjectPlace, file: EnvFile) -> bool:
    if project.path is not None and is_named(Path(project.path)):
        return True
    return env_item(file).digest in TrustStore.of_user().digests(folder_of(project, place.folder))
