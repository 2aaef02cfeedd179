"""Where a project is: its definition file, its state, and the folder that Experts work in."""

from __future__ import annotations

from pathlib import Path

from perstack.core.definitions import Project
from perstack.dataclass import dataclass
from perstack.errors import UsageError
from perstack.next_steps import Begin, Give

CONFIG_NAME = "perstack.toml"


@dataclass(frozen=True, slots=True)
class ProjectPlace:
    """Where a project was looked for, and what is there."""

    folder: Path
    """The folder that one stands in, or that was named in its place; absolute."""
    config: Path | None
    """The definition file; None if there is none."""
    is_shared: bool = False
    """Whether the definition file was named, and is not the one that belongs to the folder."""

    @property
    def state_root(self) -> Path:
        """The folder that a relative `storage` is seen from.

        That of the definition file, so that every folder of a project has the same state; the folder itself for a
        definition that many projects share.
        """
        return self.folder if self.config is None or self.is_shared else self.config.parent

    def required(self) -> Path:
        """The definition file. Raises UsageError if there is none."""
        if self.config is None:
            raise UsageError(
                f"there is no {CONFIG_NAME} in {self.folder} or above", next_steps=(Begin(), Give("config"))
            )
        return self.config

    def workspace(self, project: Project, named: str | Path = ".") -> Path:
        """The folder that Experts work in, absolute: the one that is named, or the project's, or the folder itself."""
        return named_or_own(project, named, self.folder)


def named_or_own(project: Project, named: str | Path, folder: str | Path = ".") -> Path:
    """The folder that is named; for `.`, which is the default everywhere, the project's own, or `folder`. Absolute."""
    return Path(named if str(named) != "." else project.folder or folder).resolve()


def find_config(start: Path) -> Path | None:
    """The nearest perstack.toml: in `start`, or in a folder above it."""
    folder = start.absolute()
    for place in (folder, *folder.parents):
        found = place / CONFIG_NAME
        if found.is_file():
            return found
    return None


def find_place(folder: str | Path, config: str | Path | None = None) -> ProjectPlace:
    """The place of the project that a folder belongs to, or of the definition file that is named."""
    start = Path(folder).resolve()
    found = find_config(start)
    if config is None:
        return ProjectPlace(start, found)
    named = Path(config).absolute()
    return ProjectPlace(start, named, is_shared=found is None or named.resolve() != found.resolve())


def check_workspace(project: Project, workspace: Path) -> None:
    """Raises UsageError if there is no such folder to work in."""
    if not workspace.is_dir():
        said = f"workspace in {project.path}" if project.folder == str(workspace) else "workspace"
        raise UsageError(f"{said}: there is no directory {workspace}; make it, or name another one")
