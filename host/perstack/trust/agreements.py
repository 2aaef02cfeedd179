"""Trust in a folder: what its user has agreed to, and the check before anything in it acts.

What needs an agreement is derived from the definition (`items`), and from the content of a `.env` file that nobody
named. Agreements are stored by folder, outside of every workspace, as digests: a changed declaration, file that it runs
(`named_files`) or `.env` file needs a new agreement. A definition made in Python, or named by PERSTACK_TRUST, is the
user's own.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from pydantic import ValidationError

from perstack.config.project_place import ProjectPlace, folder_contains, folder_of, is_named, owner_of
from perstack.core.base.records import Record, canonical_json
from perstack.core.base.text import approvable_line
from perstack.core.definitions.experts import Expert, Iterate
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import Overrides, ProviderSetting
from perstack.core.definitions.skills import AnySkill
from perstack.errors import NotAgreed, StorageError
from perstack.next_steps import Trust as AgreeTo
from perstack.ports.environment import Environment
from perstack.support.variables import variables_in
from perstack.system.clock import SYSTEM
from perstack.system.files import read_regular, replace_private_file
from perstack.system.user import user_directory
from perstack.trust.env_files import EnvFile, read_env
from perstack.trust.items import (
    IsVendor,
    Ownership,
    StoredItem,
    TrustItem,
    digests_of,
    inert_project,
    items_of_iterate,
    items_of_keys,
    items_of_provider,
    items_of_skill,
    items_to_trust,
    no_files,
)
from perstack.trust.user_keys import KeyStore


def _vendor_is_unknown(name: str) -> bool | None:
    return None


def ownership_of(
    project: Project, is_vendor: IsVendor = _vendor_is_unknown, workspace: Path | None = None
) -> Ownership:
    """Return what the project may name without an agreement, and the files that its declarations run.

    `workspace`: None for the project's own, or the current folder.
    """
    folder = folder_of(project, Path.cwd())

    def files(table: Record) -> Mapping[str, str]:
        from perstack.trust.named_files import contents_of  # few definitions start programs

        return contents_of(table, folder, workspace or Path(project.folder or "."))

    return Ownership(lambda path: folder_contains(folder, path), is_vendor, files)


# Stored agreements, by folder, kept outside of every workspace.


class TrustRecord(Record):
    """Agreements for one folder."""

    folder: str
    agreed_at: int  # milliseconds since 1970
    items: tuple[StoredItem, ...] = ()

    def changes(self, item: StoredItem) -> list[str]:
        """Return how files have changed since the last agreement to an item; none if it was never agreed to."""
        same = (earlier for earlier in reversed(self.items) if earlier.without_files == item.without_files)
        earlier = next(same, None)
        return [] if earlier is None else item.changes_since(earlier)


_MAX_FILE_BYTES = 8 << 20
_MAX_VERSIONS = 100  # maximum agreements to one declaration, each with other contents of its files


class TrustStore:
    """Store of agreements: one file for each folder, readable only by the user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of_user(cls, environ: Mapping[str, str] = os.environ) -> "TrustStore":
        """Return the store in the user's state directory; no `.env` can change where that is."""
        return cls(user_directory("state", environ) / "trust")

    def path(self, folder: Path) -> Path:
        return self.folder / f"{sha256(os.fsencode(folder)).hexdigest()}.json"

    def read(self, folder: Path) -> TrustRecord | None:
        """Return a folder's agreements; None without any, or if the file is invalid."""
        try:
            record = TrustRecord.model_validate_json(read_regular(self.path(folder), _MAX_FILE_BYTES))
        except (OSError, ValidationError):
            return None
        return record if record.folder == str(folder) else None

    def digests(self, folder: Path) -> frozenset[str]:
        """Return the digests of all items agreed to for a folder."""
        record = self.read(folder)
        return frozenset() if record is None else digests_of(record.items)

    def write(self, folder: Path, items: Iterable[StoredItem]) -> None:
        """Replace the agreements of a folder. Raises StorageError."""
        trust = TrustRecord(folder=str(folder), agreed_at=SYSTEM.now(), items=tuple(items))
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_private_file(self.path(folder), trust.to_json())
        except OSError as error:
            raise StorageError(f"agreements cannot be stored in {self.folder}: {error.strerror}") from error

    def agree(self, folder: Path, items: Iterable[TrustItem]) -> None:
        """Add items to the agreements of a folder. Raises StorageError.

        Earlier ones stay, since Jobs that began with them can be resumed.
        """
        record = self.read(folder)
        added = {item.digest: item.to_stored() for item in items}
        versions = Counter(item.without_files for item in added.values())
        kept: list[StoredItem] = []
        for item in reversed(() if record is None else record.items):
            versions[item.without_files] += 1
            if item.digest not in added and versions[item.without_files] <= _MAX_VERSIONS:
                kept.append(item)
        self.write(folder, (*reversed(kept), *added.values()))

    def remove(self, folder: Path) -> bool:
        """Remove the agreements of a folder and return whether there were any. Raises StorageError."""
        try:
            self.path(folder).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageError(f"{self.path(folder)} cannot be removed: {error.strerror}") from error
        return True


class Agreement:
    """Check of what a definition names against what the user of its folder has agreed to."""

    def __init__(
        self,
        project: Project,
        store: TrustStore | None = None,
        is_vendor: IsVendor = _vendor_is_unknown,
        workspace: Path | None = None,
    ) -> None:
        """Check for the folder of `project`, with the user's store by default. `workspace`: see `ownership_of`."""
        self.path = project.path
        self._store = store
        self._is_whole = project.path is None or is_named(Path(project.path))
        own = ownership_of(project, is_vendor, workspace)
        self.own = replace(own, files=no_files) if self._is_whole else own  # their digests are compared with nothing
        self._adopted: Project | None = None  # the definition, if something of it needs an agreement
        self._withheld: list[TrustItem] = []
        self._chosen: frozenset[str] = frozenset()

    def check(self, items: Iterable[TrustItem]) -> None:
        """Raise NotAgreed if an item has no agreement. Agreements are read at each call."""
        missing = self.missing(items)
        if missing:
            raise self.refusal(missing)

    def check_keys(self, project: Project, names: Iterable[str]) -> None:
        """Raise NotAgreed if one of these keys of a definition, by the names of their fields, has no agreement."""
        if not self._is_whole:
            self.check(items_of_keys(project, names, self.own))

    def check_skill(self, skill: AnySkill) -> None:
        self.check(items_of_skill(skill, f"skill {skill.name}", self.own))

    def check_provider(self, setting: ProviderSetting) -> None:
        self.check(items_of_provider(setting, self.own))

    def check_evaluator(self, settings: Iterate, expert_key: str) -> None:
        self.check(items_of_iterate(settings, expert_key, self.own))

    def undeclared_effects(self, expert: Expert, project: Project, declared_project: Project) -> list[str]:
        """Return a phrase, without values, for each item of another project's Expert that is not declared here."""
        own = replace(self.own, contains=ownership_of(project).contains)
        declared_digests = digests_of(items_to_trust(declared_project, self.own))
        items = items_to_trust(Project(experts={expert.key: expert}), own)
        return [f"{item.place} ({', '.join(item.kinds)})" for item in items if item.digest not in declared_digests]

    def adopt(self, project: Project) -> Project:
        """Return the definition without the items that have no agreement; `check_definition` then names these."""
        items = [] if self._is_whole else items_to_trust(project, self.own)
        self._adopted = project if items else None
        self._withheld = self.missing(items)
        if not self._withheld:
            return project
        # a file may change meanwhile: items that are not among these digests are withheld as well
        agreed = digests_of(items) - digests_of(self._withheld)
        return inert_project(project, self.own, agreed.__contains__)

    def take_choices(self, project: Project, overrides: Overrides) -> None:
        """Count the providers that the caller chose by options as the user's own, but not settings of a definition."""
        models = overrides.model if isinstance(overrides.model, tuple) else (overrides.model or "",)
        prefixes = (name.partition("/")[0] for name in models if "/" in name)
        names = dict.fromkeys(filter(None, (overrides.provider, *prefixes)))
        chosen = [ProviderSetting(provider_name=name) for name in names]
        tables = (project.provider, *(expert.provider for expert in project.experts.values()))
        if overrides.recording is not None:  # it is played under the settings of the definition, which are checked
            chosen += [table for table in tables if table is not None and table.provider_name == overrides.provider]
        for setting in chosen:
            playing = overrides.playing(setting) if setting.provider_name == overrides.provider else setting
            self._chosen |= {item.without_files for item in items_of_provider(playing, self.own)}

    def check_definition(self) -> None:
        """Raise NotAgreed if an item of the adopted definition has no agreement. Call it before anything is driven.

        The files that it runs are read at each call.
        """
        if self._withheld:
            raise self.refusal(self._withheld)
        if self._adopted is not None:
            self.check(items_to_trust(self._adopted, self.own))

    def missing(self, items: Iterable[TrustItem]) -> list[TrustItem]:
        missing_items = [] if self._is_whole else [item for item in items if item.without_files not in self._chosen]
        if not missing_items:
            return []
        agreed = self._digests()
        return [item for item in missing_items if item.digest not in agreed]

    def refusal(self, missing: Sequence[TrustItem]) -> NotAgreed:
        folder = self._folder
        record = self.store.read(folder)
        places = ", ".join(dict.fromkeys(describe_place(item, record) for item in missing))
        return NotAgreed(
            f"{self.path} names what nobody has agreed to: {places}",
            page=describe_items(missing, record),
            agree=lambda: self.store.agree(folder, missing),
            next_steps=(AgreeTo(str(folder)),),
        )

    @property
    def store(self) -> TrustStore:
        return self._store or TrustStore.of_user()

    @property
    def _folder(self) -> Path:
        return Path(self.path or ".").parent.resolve()

    def _digests(self) -> frozenset[str]:
        return self.store.digests(self._folder)


def describe_items(items: Iterable[TrustItem], record: TrustRecord | None) -> list[str]:
    """Return a line for each item, as a person sees what is asked, with the changes of its files since `record`."""
    return [f"  {item.shown}  ({describe_place(item, record)})" for item in items]


def describe_place(item: StoredItem, record: TrustRecord | None) -> str:
    """Return the key of an item, and how its files have changed since the agreement to it, if there is one."""
    changes = [] if record is None else record.changes(item)
    return approvable_line(f"{item.place}; since you agreed, {', '.join(changes)}") if changes else item.place


# Environment of a project.

_OPAQUE = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_-]{16,}")
"""Value of a `.env` file that is not shown: it looks like a key, and can be no command line, path or address."""


def env_item(file: EnvFile) -> TrustItem:
    """Return the item of a `.env` file; an agreement to it ends when the file changes."""
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
    opened_files: list[EnvFile] = []

    def collect(file: EnvFile) -> bool:
        opened_files.append(file)
        return False

    owners = () if project.path is None else owner_of(Path(project.path))
    may_open = partial(_may_open, project, place)
    read_env(place.folder, project.env_path, owners=owners, may_open=may_open, is_agreed=collect)
    return [env_item(file) for file in opened_files]


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
