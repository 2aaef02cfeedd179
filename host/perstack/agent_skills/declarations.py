"""Agent Skills that a definition declares: one by one, or by patterns of folders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from glob import has_magic
from os.path import normpath
from pathlib import Path

from perstack.agent_skills.front_matter import SKILL_FILE, legal_skill_name
from perstack.config.file_patterns import TooManyNames, matches
from perstack.config.project_place import folder_contains
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.keys import KeyPath, spell
from perstack.core.definitions.skills import AgentSkill, AnySkill, skill_name_problem
from perstack.toml_reader.skills import resolve_from
from perstack.toml_reader.source import Reporter


def with_agent_skills(expert: Expert, at: KeyPath, report: Reporter) -> tuple[Expert, list[tuple[Path, str]]]:
    """Return the Expert with absolute paths of Agent Skills, and with the skills that its patterns match.

    Also return the patterns, which may match more folders later, each with the folder that it is relative to.
    """
    patterns = [(report.source.path.parent, _expand_pattern(item)) for item in expert.agent_skills if has_magic(item)]
    folder = report.source.path.parent.absolute()
    skills: dict[str, AnySkill] = {}
    for skill in expert.skills:
        if isinstance(skill, AgentSkill):
            path = resolve_from(folder, skill.path)
            if skill.path and path.name != skill.name:
                report.error(
                    (*at, "skills", skill.name, "path"),
                    f"names a folder `{path.name}`, and a skill has the name of its folder:"
                    f" write [{spell((*at, 'skills', path.name))}]",
                )
            skill = skill.model_copy(update={"path": str(path)})
        skills[skill.name] = skill
    for index, pattern in enumerate(expert.agent_skills):
        key_path = (*at, "agentSkills", index)
        for path in _find_folders(pattern, folder, key_path, report):
            _add_skill(path, skills, key_path, report, is_found=has_magic(pattern))
    return expert.model_copy(update={"skills": tuple(skills.values()), "agent_skills": ()}), patterns


def _add_skill(path: Path, skills: dict[str, AnySkill], at: KeyPath, report: Reporter, *, is_found: bool) -> None:
    """Add the skill in a folder. A skill that only a pattern has found is skipped with a warning if it is unusable."""
    report_problem, skipped = (report.warn, "; skipped") if is_found else (report.error, "")
    problem, name = skill_name_problem(path.name), path.name
    if problem is not None:
        name = legal_skill_name(path.name)
        if not name:
            report_problem(at, f"means the folder {path}, whose name {problem}{skipped}")
            return
        report.warn(at, f"means the folder {path}, whose name {problem}: its skill is `{name}`")
    existing = skills.get(name)
    if existing is None or (isinstance(existing, AgentSkill) and existing.path == str(path)):
        is_named = not is_found or (isinstance(existing, AgentSkill) and not existing.is_found)
        skills[name] = AgentSkill(name=name, path=str(path), is_found=not is_named)
    else:
        report_problem(at, f"means the folder {path}, and there is a skill `{name}` already: rename one{skipped}")


def _find_folders(pattern: str, folder: Path, at: KeyPath, report: Reporter) -> Iterator[Path]:
    """Yield the folders that a pattern matches, if they have a SKILL.md; a plain name gives its folder in any case."""
    if not has_magic(pattern):
        yield resolve_from(folder, pattern)
        return
    if not folder_contains(folder, _expand_pattern(pattern)):
        report.error(at, f"`{pattern}` is a pattern that leads out of {folder}: name each folder")
        return
    try:
        names = matches(_expand_pattern(pattern), folder, report.search)
    except TooManyNames as error:
        report.error(at, f"`{pattern}` {error}")
        return
    if not names:
        report.warn(at, f"no folder with a {SKILL_FILE} matches `{pattern}`, seen from {folder}")
    for name in names:
        yield Path(normpath(folder / name)).parent


def _expand_pattern(pattern: str) -> str:
    with suppress(RuntimeError):  # `~name` of an unknown user: the folder does not exist
        pattern = str(Path(pattern).expanduser())
    return str(Path(pattern) / SKILL_FILE)
