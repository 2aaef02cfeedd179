"""Files of this machine that Experts and their programs must not use, or only read.

File tools, the views of sandboxes, snapshots, attachments and rewinds follow a `Protection`. In addition, some names
are protected in any folder (`core.files.file_names`): files of variables, definitions, git's own, and the state of any
project. `perstack.trust.run_files` finds the files that are run: without it no Job is driven.

| kind | file tools | programs in a sandbox |
| --- | --- | --- |
| state: storage, anchors, and the user's folders of perstack | neither listed nor used | absent |
| secret: files of variables and keys | listed | absent |
| definitions, and files that `include` matches | listed | read |
| programs: files that the host or an `allow` rule runs | read | read |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from perstack.core.definitions.project import Project
from perstack.dataclass import dataclass
from perstack.ports.parts import Part


@dataclass(frozen=True, slots=True)
class Protection:
    """Protected files and folders, as absolute paths. Some may not exist yet, and must not be created."""

    state: tuple[Path, ...]
    secret: tuple[Path, ...]
    definitions: tuple[Path, ...]
    programs: tuple[Path, ...]

    @property
    def hidden(self) -> tuple[Path, ...]:
        """Files and folders that no program may reach, and no snapshot may contain."""
        return (*self.state, *self.secret)


@dataclass(frozen=True, slots=True)
class FileOwners:
    """Everything in a setup that has or names protected files."""

    projects: tuple[Project, ...]  # the definition in force, and today's if that is another one
    workspace: Path
    env: Mapping[str, str]
    state: tuple[Path, ...]  # files and folders of storage and anchors
    secret: tuple[Path, ...]  # files of variables and keys
    commands: tuple[tuple[str, ...], ...]  # commands of tasks
    rules: tuple[str, ...]  # allow rules of the user, in addition to those of the definitions


class RunFiles(Protocol):
    """Functions that find the files which definitions, commands and allow rules run."""

    def protection_of(self, owners: FileOwners) -> Protection:
        """Return the protected files of a workspace, without reading contents of files."""
        ...

    def names_files(self, rule: str) -> bool:
        """Return whether an allow rule names files that it runs, whether they exist or not."""
        ...

    def contents_of_rule(self, rule: str, workspace: Path) -> dict[str, str]:
        """Return the content of each file in the workspace that an allow rule names, as a digest, by its path."""
        ...


RUN_FILES: Part[RunFiles] = Part("protection of the files that it runs")
