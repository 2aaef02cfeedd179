"""Agent Skills of Experts and the project's AGENTS.md files, as they were when a process began to drive the Job.

`declarations` finds the folders that a definition declares, `skill_folders` reads one with `front_matter`, and
`SkillLibrary` keeps the folders for all Runs of the Job. `with_skill_digests` puts description and digest into the
Expert, which `startRun` records; `load_tool` then reads only files with that digest, so a skill that changes during a
Run has no effect. An unusable skill is an error of its Expert if a path names it, and is skipped with a notice if only
a pattern has found it. For workers `bundles` stores the files with the Job, and the library reads the unpacked copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from perstack.agent_skills.agents_md import read_agents_md
from perstack.agent_skills.front_matter import NotASkill
from perstack.agent_skills.load_tool import loading_tool
from perstack.agent_skills.skill_folders import SkillFolder, read_skill, skill_file_name
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.instruction import AgentsMdFile
from perstack.core.definitions.project import Project
from perstack.core.definitions.skills import AgentSkill, agent_skills
from perstack.engine.plugins.knowledge import Knowledge
from perstack.engine.plugins.runtimes import UnpackedSkill
from perstack.engine.plugins.tool_catalogue import OfferedTool
from perstack.engine.plugins.trust_checks import ToolLock
from perstack.errors import UsageError
from perstack.lockfile.lock import LockedFolder, path_in_lock
from perstack.next_steps import Install
from perstack.system.user import notice

_LIST_HEAD = (
    "You have these skills: folders of instructions for a kind of task. Before you do what one of them is for, read"
    " it with loadSkill, and do as it says. Paths in it are seen from its folder.\n"
)


class SkillLibrary:
    """A cache of skills and AGENTS.md files: all Runs that a process begins for a Job see one content."""

    def __init__(
        self,
        project: Project,
        tool_lock: ToolLock,
        workspace: Path,
        unpacked_skills: tuple[UnpackedSkill, ...] | None = None,
    ) -> None:
        """Create an empty cache; `unpacked_skills` were stored with the Job, and are used in place of their paths."""
        self.workspace = workspace
        self._project = project
        self._unpacked_skills = (
            None if unpacked_skills is None else {skill.path: skill.folder for skill in unpacked_skills}
        )
        self._agents_md: tuple[str, tuple[AgentsMdFile, ...]] | None = None
        self._lock = tool_lock
        self._folders: dict[str, SkillFolder | UsageError] = {}

    def read(self, skills: Iterable[AgentSkill], *, agents_md: bool) -> None:
        """Read these skills, and the AGENTS.md files if `agents_md`. Errors are raised at the first use."""
        for skill in skills:
            self._folder_or_error(skill)
        if agents_md:
            self.agents_md()

    def agents_md(self) -> tuple[str, tuple[AgentsMdFile, ...]]:
        """Return the text of the AGENTS.md files for the model, and the record of each. May read from disk."""
        if self._agents_md is None:
            self._agents_md = read_agents_md(self.workspace)
        return self._agents_md

    def with_skill_digests(self, expert: Expert) -> Expert:
        """Return the Expert with its skills' descriptions and digests, which a Run records.

        An unusable skill that only a pattern has found is left out. Raises UsageError for another one, and for a skill
        that differs from perstack.lock.
        """
        skills = tuple(
            self._with_description(skill, expert) if isinstance(skill, AgentSkill) else skill
            for skill in self.without_skipped(expert).skills
        )
        return expert.model_copy(update={"skills": skills})

    def without_skipped(self, expert: Expert) -> Expert:
        """Return the Expert without the unusable skills that only a pattern has found."""
        if not any(self._is_skipped(skill) for skill in agent_skills(expert.skills)):
            return expert
        usable_skills = (
            skill for skill in expert.skills if not (isinstance(skill, AgentSkill) and self._is_skipped(skill))
        )
        return expert.model_copy(update={"skills": tuple(usable_skills)})

    def list_skills(self, skills: Sequence[AgentSkill]) -> str:
        """Return the list of skills for the instruction."""
        lines = (f"- {skill.name} (in {skill.path}): {' '.join(skill.description.split())}" for skill in skills)
        return _LIST_HEAD + "\n".join(lines)

    def loading_tools(self, skills: Sequence[AgentSkill]) -> tuple[OfferedTool, ...]:
        """Return the tool `loadSkill` for these skills."""
        return (loading_tool(skills, self.folder),)

    def folder(self, skill: AgentSkill) -> SkillFolder | None:
        """Return the skill's folder if it is unchanged since the Run began; otherwise None. May read from disk."""
        folder = self._folder_or_error(skill)
        return None if isinstance(folder, UsageError) or folder.digest != skill.digest else folder

    def valid_folders(self, experts: Iterable[Expert]) -> dict[str, SkillFolder]:
        """Return the Experts' skills by the path that these name; invalid ones are left out."""
        folders_by_path = {
            skill.path: self._folder_or_error(skill) for expert in experts for skill in agent_skills(expert.skills)
        }
        return {path: folder for path, folder in folders_by_path.items() if not isinstance(folder, UsageError)}

    def _is_skipped(self, skill: AgentSkill) -> bool:
        return skill.is_found and isinstance(self._folder_or_error(skill), UsageError)

    def _folder_or_error(self, skill: AgentSkill) -> SkillFolder | UsageError:
        folder = self._folders.get(skill.path)
        if folder is None:
            folder = self._folders[skill.path] = self._read_folder(skill)
            if not isinstance(folder, UsageError):
                for repair in folder.skill_head.repairs:
                    notice(f"skill {skill.name}: {skill.path}: {repair}")
            elif skill.is_found:
                notice(f"{folder}; skipped, because only a pattern names it")
        return folder

    def _read_folder(self, skill: AgentSkill) -> SkillFolder | UsageError:
        if self._unpacked_skills is None:
            return _read_skill(skill)
        folder = self._unpacked_skills.get(skill.path)
        if folder is None:
            return UsageError(f"skill {skill.name}: {skill.path} was not stored with the Job: submit the Job again")
        return _read_skill(skill.model_copy(update={"path": str(folder)}))

    def _with_description(self, skill: AgentSkill, expert: Expert) -> AgentSkill:
        folder = self._folder_or_error(skill)
        if isinstance(folder, UsageError):
            raise UsageError(f"Expert {expert.key}: {folder}")
        file = self._project.path
        # skills stored with a Job were compared with the lock when it was submitted
        config = None if self._unpacked_skills is not None else file
        locked_digest = None if config is None else self._lock.folder_digest(config, skill)
        if locked_digest not in (None, folder.digest):
            raise UsageError(
                f"Expert {expert.key}: skill {skill.name} differs from perstack.lock:"
                f" review what has changed in {skill.path}",
                next_steps=(Install(),),
            )
        fields = {"description": folder.skill_head.description, "digest": folder.digest, "is_found": False}
        return skill.model_copy(update=fields)


def library_of(knowledge: Knowledge) -> SkillLibrary:
    """Return the skill library behind the knowledge of a Job's Experts. Raises TypeError for another kind."""
    library = knowledge.library
    if not isinstance(library, SkillLibrary):
        raise TypeError(f"{library!r} is not a SkillLibrary")
    return library


def read_lock_entries(config: str, experts: Iterable[Expert]) -> tuple[LockedFolder | UsageError, ...]:
    """Return the lock entries of the Experts' skills, or the error for a skill that cannot be locked."""
    skills_by_path = {path_in_lock(config, skill): skill for expert in experts for skill in agent_skills(expert.skills)}
    folders = (
        (place, folder)
        for place, skill in skills_by_path.items()
        if not (isinstance(folder := _read_skill(skill), UsageError) and skill.is_found)
    )
    return tuple(
        folder if isinstance(folder, UsageError) else LockedFolder(path=place, digest=folder.digest)
        for place, folder in folders
    )


def _read_skill(skill: AgentSkill) -> SkillFolder | UsageError:
    try:
        folder = read_skill(Path(skill.path))
    except NotASkill as error:
        return UsageError(f"skill {skill.name}: {skill.path} {error}")
    if folder.problems:
        return UsageError(f"skill {skill.name}: {skill.path}/{skill_file_name(folder)}: {'; '.join(folder.problems)}")
    return folder
