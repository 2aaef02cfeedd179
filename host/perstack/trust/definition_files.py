"""Load definition files: includes of another folder, and Experts of another file, only as far as a person agreed.

An include that leads to another folder needs an agreement. An Expert that a Run adds from another file needs none: it
may have only what this project declares too, in the same words, and so a person has agreed to it already.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perstack.config.load import DefinitionFile, LoadedProject
from perstack.config.project import folder_contains
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.project import Project
from perstack.core.definitions.secrets import without_secrets
from perstack.errors import NotAgreed, SkillError

if TYPE_CHECKING:
    from perstack.engine.context.host_context import HostContext


def load_project(path: Path) -> LoadedProject:
    """Load a definition file with its includes. Raises DefinitionError with all problems, in the files' order.

    Raises NotAgreed for includes of another folder.
    """
    return open_definition(path).to_project(strict=True)


def load_usable(path: Path) -> LoadedProject:
    """Load the Experts without errors. Raises DefinitionError if none is left, or an error is outside of Experts.

    Raises NotAgreed for includes of another folder.
    """
    return open_definition(path).to_project(strict=False)


def open_definition(path: Path, *, must_be_whole: bool = True) -> DefinitionFile:
    """Read a definition file with its includes; includes of another folder only if the user has agreed to them.

    Without an agreement raises NotAgreed if the definition `must_be_whole`; otherwise each such include is a problem.
    """
    definition = DefinitionFile(path)
    if not definition.includes_outside:
        return definition
    from perstack.trust.agreements import Agreement  # few definitions leave their folder

    project = Project(includes=tuple(definition.includes), path=str(path.absolute()))
    try:
        Agreement(project).check_keys(project, ("includes",))
    except NotAgreed:
        if must_be_whole:
            raise
        return definition
    return DefinitionFile(path, may_leave_folder=True)


_UNKEPT_KEYS = ("permissions", "runtime", "sandbox", "mask_secrets")
"""Keys at the top of a file that restrict its Experts, and are not taken over with one of them."""


def expert_of_file(host: HostContext, path: str, name: str) -> Expert:
    """Return an Expert of a definition file in the workspace. Raises PerstackError if it may not be added."""
    if not path.endswith(".toml") or not folder_contains(host.workspace, path):
        raise SkillError(f"{path} is no definition file, `*.toml`, in the workspace")
    loaded = load_project(host.workspace / path).project
    expert = loaded.experts.get(name)
    if expert is None:
        raise SkillError(f"{path} has no Expert {name!r}; it has: {', '.join(loaded.experts) or 'none'}")
    unkept = [key for key in _UNKEPT_KEYS if getattr(loaded, key)]
    if unkept:
        raise SkillError(f"{name} is not added: the top of {path} has {', '.join(unkept)}: write it for the Expert")
    project = host.project
    undeclared = host.agreement.undeclared(expert, loaded, host.declared or project)
    if undeclared:
        # without the values: file tools do not read this file, and it may have secrets written out
        words = f"{path} has what this project does not declare in these words: {', '.join(undeclared)}"
        raise SkillError(f"{name} is not added: {words}")
    if expert.provider is not None and expert.provider == project.provider:
        expert = expert.model_copy(update={"provider": None})
    if expert.provider != without_secrets(expert).provider:
        raise SkillError(f"{name} is not added: its provider has settings, which only perstack.toml can have")
    return expert
