"""What a person has agreed to have executed, folder by folder. It is kept outside of every workspace."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from pydantic import ValidationError

from perstack.config.env import read_env
from perstack.config.places import ProjectPlace
from perstack.core.base import Fact
from perstack.core.definitions import Project
from perstack.engine.clock import SYSTEM
from perstack.engine.executed import Agreed, Item, addresses, confirming, digests_of
from perstack.errors import StorageError
from perstack.ports.clock import Clock
from perstack.ports.environment import Environment
from perstack.ports.private_file import replace_private_file


class Trust(Fact):
    """What was agreed to in one folder."""

    folder: str
    agreed_at: int
    """Milliseconds since 1970."""
    items: tuple[Agreed, ...] = ()


class TrustStore:
    """A file for each folder, which nobody but the user can read."""

    def __init__(self, folder: Path, clock: Clock = SYSTEM) -> None:
        self.folder = folder
        self._clock = clock

    @classmethod
    def of_user(cls, environ: Mapping[str, str] = os.environ) -> TrustStore:
        """In the user's state directory, by the process's own environment: no `.env` can say where it is."""
        base = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".local" / "state")
        return cls(Path(base) / "perstack" / "trust")

    def path(self, folder: Path) -> Path:
        """Where what was agreed to in a folder is kept."""
        return self.folder / f"{sha256(os.fsencode(folder)).hexdigest()}.json"

    def read(self, folder: Path) -> Trust | None:
        """None as well if the file cannot be read as one: then nothing was agreed to."""
        try:
            found = Trust.model_validate_json(self.path(folder).read_bytes())
        except (OSError, ValidationError):
            return None
        return found if found.folder == str(folder) else None

    def digests(self, folder: Path) -> frozenset[str]:
        """Of all that was agreed to there."""
        found = self.read(folder)
        return frozenset() if found is None else digests_of(found.items)

    def write(self, folder: Path, items: Iterable[Agreed]) -> None:
        """These and no others are agreed to from now on. Raises StorageError if that cannot be kept."""
        trust = Trust(folder=str(folder), agreed_at=self._clock.now(), items=tuple(items))
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_private_file(self.path(folder), trust.to_json())
        except OSError as error:
            raise StorageError(f"what is trusted cannot be kept in {self.folder}: {error.strerror}") from error

    def agree(self, folder: Path, items: Iterable[Item]) -> None:
        """A definition is agreed to; the addresses that were agreed to stay. Raises StorageError."""
        before = self.read(folder)
        others = () if before is None else (one for one in before.items if one.kind == "address")
        self.write(folder, (*(item.kept() for item in items), *others))

    def remove(self, folder: Path) -> bool:
        """Whether anything was agreed to there. Raises StorageError if it cannot be removed."""
        try:
            self.path(folder).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageError(f"{self.path(folder)} cannot be removed: {error.strerror}") from error
        return True


def folder_of(project: Project, otherwise: Path) -> Path:
    """The folder that what is agreed to belongs to: that of the definition, if there is one."""
    return otherwise if project.path is None else Path(project.path).parent.resolve()


def environment_of(
    project: Project, place: ProjectPlace, named: Sequence[str] = (), *, confirm: bool = True
) -> Environment:
    """The environment with the `.env` files; `named` are those that a person names, in place of the project's.

    An address that a person has agreed to by `perstack trust` is as good as one of their own environment, unless not
    to `confirm`. Raises UsageError if a file cannot be read.
    """
    env = read_env(place.folder, named or project.env_path, is_confirmed=bool(named))
    if not confirm or not addresses(env):
        return env
    return confirming(env, TrustStore.of_user().digests(folder_of(project, place.folder)))
