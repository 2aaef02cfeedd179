"""The tool `loadSkill`: read an Agent Skill's body and files as they were when the Run began."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from hashlib import sha256
from os.path import normpath

from perstack.agent_skills.front_matter import NotASkill, split_front_matter
from perstack.agent_skills.skill_folders import SkillFolder, decode_utf8, read_bytes, skill_file_name
from perstack.core.definitions.skills import AgentSkill, ToolSpec
from perstack.engine.plugins.tool_catalogue import OfferedTool, builtin_tool
from perstack.errors import SkillError
from perstack.ports.skill import ToolCall, ToolResult

LOAD_TOOL = "loadSkill"
SKILL_NAME = "agentSkills"  # the skill name of `loadSkill` in permission rules

MAX_RESULT_CHARS = 100_000  # characters that one call returns at most: about 25,000 tokens
_MAX_FILES_NAMED = 100


def load_spec(skills: Sequence[AgentSkill]) -> ToolSpec:
    return ToolSpec(
        name=LOAD_TOOL,
        description="Read a skill: what to do, and which files are beside it. With `path`, read one of those files.",
        input_schema={
            "type": "object",
            "properties": {
                "name": {"type": "string", "enum": [skill.name for skill in skills], "description": "the skill"},
                "path": {"type": "string", "description": "a file beside its SKILL.md, seen from the skill's folder"},
                "from": {"type": "integer", "minimum": 0, "description": "begin at this character of a long text"},
            },
            "required": ["name"],
        },
        skill_name=SKILL_NAME,
        effect="readOnly",
    )


UnchangedFolder = Callable[[AgentSkill], SkillFolder | None]
"""Returns a skill's folder; None if it has changed since the Run began. May read from disk."""


def loading_tool(skills: Sequence[AgentSkill], unchanged_folder: UnchangedFolder) -> OfferedTool:
    """Return the tool `loadSkill`. It reads no file that changed since the Run began: nobody has agreed to it."""
    skills_by_name = {skill.name: skill for skill in skills}

    async def load(tool_call: ToolCall) -> ToolResult:
        path, begin = tool_call.args.get("path"), tool_call.args.get("from")
        path, begin = path if isinstance(path, str) else "", begin if isinstance(begin, int) else 0
        skill = skills_by_name[str(tool_call.args["name"])]
        return ToolResult.text(await asyncio.to_thread(_load_text, unchanged_folder, skill, path, begin))

    return builtin_tool(load_spec(skills), load)


def _load_text(unchanged_folder: UnchangedFolder, skill: AgentSkill, path: str, begin: int) -> str:
    folder = unchanged_folder(skill)
    if folder is None:
        raise SkillError(
            f"the files of skill {skill.name} in {skill.path} are not those that this Run began with: they are not"
            " read; a new Run takes them as they are"
        )
    path = normpath(path) if path else ""
    is_body = path in ("", ".", skill_file_name(folder))
    try:
        text = decode_utf8(_read_file(folder, skill, "" if is_body else path))
        head, text = (f"{_describe_skill(folder, skill)}\n\n", split_front_matter(text)[1]) if is_body else ("", text)
    except NotASkill as error:
        raise SkillError(f"{path or skill_file_name(folder)} of skill {skill.name} {error}") from error
    return head + _excerpt(text, begin)


def _read_file(folder: SkillFolder, skill: AgentSkill, path: str) -> bytes:
    file = folder.find_file(path)
    if file is None:
        raise SkillError(f"skill {skill.name} has no file {path!r}; {_describe_files(folder)}")
    try:
        data = read_bytes(folder.path, file.path)
    except OSError as error:
        raise SkillError(f"{file.path} of skill {skill.name} cannot be read: {error.strerror or error}") from error
    if sha256(data).hexdigest() != file.sha256:
        raise SkillError(
            f"{file.path} of skill {skill.name} has changed since this Run began: it is not read; a new Run takes it"
            " as it is"
        )
    return data


def _describe_skill(folder: SkillFolder, skill: AgentSkill) -> str:
    location = "the folder" if str(folder.path) == skill.path else "this machine's folder"
    return f"Skill {skill.name}, in {location} {folder.path}; {_describe_files(folder)}"


def _describe_files(folder: SkillFolder) -> str:
    other_files = [file for file in folder.files if file.path != skill_file_name(folder)]
    if not other_files:
        return "it has no files besides SKILL.md."
    listing = ", ".join(f"{file.path} ({file.size:,} bytes)" for file in other_files[:_MAX_FILES_NAMED])
    more = f" and {len(other_files) - _MAX_FILES_NAMED} more" if len(other_files) > _MAX_FILES_NAMED else ""
    return f"besides SKILL.md it has {listing}{more}."


def _excerpt(text: str, begin: int) -> str:
    end = begin + MAX_RESULT_CHARS
    excerpt = text[begin:end]
    if end < len(text):
        excerpt += f"\n\n[Cut: these are the characters {begin} to {end} of {len(text)}; read on with from = {end}.]"
    return excerpt
