"""Read definition files: whole ones with the keys of all features, files of permissions, Experts of another file.

`perstack.config` reads a definition, and asks the parts in the table below for keys that belong to a feature. Each is
imported when a file has such a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from perstack.config.project_place import folder_contains
from perstack.core.base.records import Record
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.keys import KeyPath
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.project import Project, Schedule
from perstack.core.definitions.secrets import without_secrets
from perstack.core.definitions.skills import PluginSkill
from perstack.errors import DefinitionError, NotAgreed, Problem, SkillError, UsageError
from perstack.ports.parts import Parts
from perstack.system.files import system_reason
from perstack.toml_reader.definition_with_includes import SCHEDULES, DefinitionFile, LoadedProject
from perstack.toml_reader.experts import AGENT_SKILLS, Draft
from perstack.toml_reader.source import NotRead, Reporter, Source, parse_toml
from perstack.toml_reader.tables import SEPARATE_TABLES, read_table

if TYPE_CHECKING:
    from perstack.engine.context.host_setup import HostSetup


def _agent_skills() -> Callable[[Expert, KeyPath, Reporter], tuple[Expert, list[tuple[Path, str]]]]:
    from perstack.agent_skills.declarations import with_agent_skills

    return with_agent_skills


def _schedules() -> Callable[[tuple[Schedule, ...], Mapping[str, Draft], Reporter], None]:
    from perstack.schedules.calendar import check_schedules

    return check_schedules


def _separate_tables() -> Mapping[type[Record], str]:
    from perstack.expert_tests.models import PLACE_BY_MODEL

    return PLACE_BY_MODEL


_PARTS = Parts(
    (AGENT_SKILLS.offer(_agent_skills), SCHEDULES.offer(_schedules), SEPARATE_TABLES.offer(_separate_tables))
)


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


def read_definition(path: Path, text: str | None = None, *, may_leave_folder: bool = False) -> DefinitionFile:
    """Read a definition file with its includes, or `text` in place of the file. All that is wrong is in `problems`.

    Includes of another folder are problems too, unless it may be left.
    """
    return DefinitionFile(path, text, parts=_PARTS, may_leave_folder=may_leave_folder)


def open_definition(path: Path, *, must_be_whole: bool = True) -> DefinitionFile:
    """Read a definition file with its includes; includes of another folder only if the user has agreed to them.

    Without an agreement raises NotAgreed if the definition `must_be_whole`; otherwise each such include is a problem.
    """
    definition = read_definition(path)
    if not definition.includes_outside:
        return definition
    from perstack.trust.agreements import Agreement  # imported late: few definitions leave their folder

    project = Project(includes=tuple(definition.includes), path=str(path.absolute()))
    try:
        Agreement(project).check_keys(project, ("includes",))
    except NotAgreed:
        if must_be_whole:
            raise
        return definition
    return read_definition(path, may_leave_folder=True)


def checked_project(experts: Iterable[Expert], folder: Path) -> Project:
    """Return the project of Experts made in Python, checked as in a file of this folder.

    Raises DefinitionError with all problems, and UsageError for a key that two Experts have.
    """
    by_key: dict[str, Expert] = {}
    for number, expert in enumerate(experts):
        if not isinstance(cast("object", expert), Expert):
            raise UsageError(
                f"experts[{number}] must be an Expert, and is {type(expert).__name__}: write [Expert(…), …]"
            )
        if by_key.setdefault(expert.key, expert) is not expert:
            raise UsageError(f"two Experts are named {expert.key!r}: rename one")
    project = Project(experts={key: _without_functions(expert) for key, expert in by_key.items()})
    try:
        checked = read_definition(folder / "perstack.toml", project.to_toml()).to_project(strict=True).project
    except DefinitionError as error:
        raise DefinitionError(
            tuple(replace(problem, file="experts", line=None) for problem in error.problems)
        ) from None
    definition_file = {key: _with_functions_of(by_key[key], expert) for key, expert in checked.experts.items()}
    return checked.model_copy(update={"experts": definition_file, "path": None, "files": ()})


def _without_functions(expert: Expert) -> Expert:
    """Return the Expert as a file can have it."""
    skills = tuple(skill for skill in expert.skills if not (isinstance(skill, PluginSkill) and skill.functions))
    return expert.model_copy(update={"skills": skills, "tools": ()}) if expert.tools else expert


def _with_functions_of(given_expert: Expert, checked_expert: Expert) -> Expert:
    skills = (skill for skill in given_expert.skills if isinstance(skill, PluginSkill) and skill.functions)
    return checked_expert.model_copy(update={"skills": (*checked_expert.skills, *skills), "tools": given_expert.tools})


# Files with one `[permissions]` table, which a person names to apply or to try its rules.

_MAX_PERMISSIONS_BYTES = 1 << 20


def read_permissions(path: Path) -> Permissions:
    """Return a permissions file's table. Raises UsageError, or DefinitionError with all problems, unknown keys too."""
    try:
        source = Source.of(path, _MAX_PERMISSIONS_BYTES)
        table = parse_toml(source.text)
    except NotRead as error:
        raise UsageError(f"{path} {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: {system_reason(error)}") from None
    if list(table) != ["permissions"]:
        raise UsageError(f"{path}: a file of permissions has one table, [permissions], and nothing else")
    problems: list[Problem] = []
    permissions = read_table(Permissions, table["permissions"], ("permissions",), Reporter(source, problems))
    if problems or permissions is None:
        raise DefinitionError(tuple(problems))
    return permissions


# An Expert of another definition file, which a Run adds to its delegates.

_UNKEPT_KEYS = ("permissions", "runtime", "sandbox", "mask_secrets")
"""Keys at the top of a file that restrict its Experts, and are not taken over with one of them."""


def expert_of_file(setup: HostSetup, path: str, name: str) -> Expert:
    """Return an Expert of a definition file in the workspace. Raises PerstackError if it may not be added."""
    if not path.endswith(".toml") or not folder_contains(setup.workspace, path):
        raise SkillError(f"{path} is no definition file, `*.toml`, in the workspace")
    loaded_project = load_project(setup.workspace / path).project
    expert = loaded_project.experts.get(name)
    if expert is None:
        raise SkillError(f"{path} has no Expert {name!r}; it has: {', '.join(loaded_project.experts) or 'none'}")
    restricting_keys = [key for key in _UNKEPT_KEYS if getattr(loaded_project, key)]
    if restricting_keys:
        raise SkillError(
            f"{name} is not added: the top of {path} has {', '.join(restricting_keys)}: write it for the Expert"
        )
    project = setup.project
    undeclared_phrases = setup.agreement.undeclared_effects(expert, loaded_project, setup.declared_project or project)
    if undeclared_phrases:
        # without the values: file tools do not read this file, and it may have secrets written out
        reason = f"{path} has what this project does not declare in these words: {', '.join(undeclared_phrases)}"
        raise SkillError(f"{name} is not added: {reason}")
    if expert.provider is not None and expert.provider == project.provider:
        expert = expert.model_copy(update={"provider": None})
    if expert.provider != without_secrets(expert).provider:
        raise SkillError(f"{name} is not added: its provider has settings, which only perstack.toml can have")
    return expert
