"""The Agent Skills of an Expert: declared one by one, or by patterns of folders, each seen from its own file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from os.path import normpath
from pathlib import Path

from perstack.config.key_path import KeyPath, spell
from perstack.config.source import Reporter
from perstack.core.agent_skills import SKILL_FILE, wrong_skill_name
from perstack.core.definitions import AgentSkill, AnySkill, Expert


def patterns_of(expert: Expert, report: Reporter) -> list[tuple[Path, str]]:
    """The patterns that may mean more folders one day, each with the folder that it is seen from."""
    from glob import has_magic

    folder = report.source.path.parent
    return [(folder, _of_files(pattern)) for pattern in expert.agent_skills if has_magic(pattern)]


def with_agent_skills(expert: Expert, at: KeyPath, report: Reporter) -> Expert:
    """The Expert whose Agent Skills have absolute paths, with those that its patterns mean. What is in a folder is not
    looked at: that is for who runs the Expert, or checks the file."""
    folder = report.source.path.parent.absolute()
    skills: dict[str, AnySkill] = {}
    for skill in expert.skills:
        if isinstance(skill, AgentSkill):
            path = _seen_from(folder, skill.path)
            if skill.path and path.name != skill.name:
                report.error(
                    (*at, "skills", skill.name, "path"),
                    f"names a folder `{path.name}`, and a skill has the name of its folder:"
                    f" write [{spell((*at, 'skills', path.name))}]",
                )
            skill = skill.model_copy(update={"path": str(path)})
        skills[skill.name] = skill
    for index, pattern in enumerate(expert.agent_skills):
        here = (*at, "agentSkills", index)
        for path in _meant(pattern, folder, here, report):
            _take(AgentSkill(name=path.name, path=str(path)), skills, here, report)
    return expert.model_copy(update={"skills": tuple(skills.values()), "agent_skills": ()})


def _take(skill: AgentSkill, skills: dict[str, AnySkill], at: KeyPath, report: Reporter) -> None:
    before = skills.setdefault(skill.name, skill)
    wrong = wrong_skill_name(skill.name)
    if wrong is not None:
        report.error(at, f"means the folder {skill.path}, whose name {wrong}")
    elif before != skill:
        report.error(at, f"means the folder {skill.path}, and there is a skill `{skill.name}` already: rename one")


def _meant(pattern: str, folder: Path, at: KeyPath, report: Reporter) -> Iterator[Path]:
    """The folders that a pattern means, of those that have a SKILL.md; a plain name means its folder in any case."""
    from glob import has_magic

    from perstack.config.globbing import TooMuch, matches

    if not has_magic(pattern):
        yield _seen_from(folder, pattern)
        return
    try:
        found = matches(_of_files(pattern), folder)
    except TooMuch as error:
        report.error(at, f"`{pattern}` {error}")
        return
    if not found:
        report.warn(at, f"no folder with a {SKILL_FILE} matches `{pattern}`, seen from {folder}")
    for name in found:
        yield Path(normpath(folder / name)).parent


def _of_files(pattern: str) -> str:
    """The pattern of the files that make folders skills."""
    with suppress(RuntimeError):  # of a user that nobody knows
        pattern = str(Path(pattern).expanduser())
    return str(Path(pattern) / SKILL_FILE)


def _seen_from(folder: Path, name: str) -> Path:
    with suppress(RuntimeError):  # of a user that nobody knows: there will be no such folder
        return Path(normpath(folder / Path(name).expanduser()))
    return Path(normpath(folder / name))
