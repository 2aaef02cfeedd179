"""Update perstack.lock: merge a new lock with the old one, say what has changed, and write the file."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.secrets import without_secrets
from perstack.core.definitions.skills import AgentSkill, agent_skills, tool_skills
from perstack.core.definitions.tool_definitions import by_name, definition_diff, definition_digest, text_diff
from perstack.errors import StorageError
from perstack.lockfile.lock import Lock, LockedSkill, digest_of_json, digest_of_skill


def digest_of_expert(expert: Expert) -> str:
    """Return the digest of an Expert's definition, without secrets and without local paths of skills."""
    masked = without_secrets(expert)
    if agent_skills(masked.skills):
        skills = (
            skill.model_copy(update={"path": ""}) if isinstance(skill, AgentSkill) else skill for skill in masked.skills
        )
        masked = masked.model_copy(update={"skills": tuple(skills)})
    return digest_of_json(masked.to_json())


def lock_changes(old_lock: Lock, new_lock: Lock) -> tuple[str, ...]:
    """Return lines about the new and changed tools and instructions of each skill that the old lock has, too.

    A tool that is gone needs no agreement. A skill that was not locked is agreed to with its definition.
    """
    lines: list[str] = []
    for skill in new_lock.skills:
        earlier = _earlier(old_lock, skill)
        if earlier is not None and earlier != skill:
            lines += _changes_of(earlier, skill)
    return tuple(lines)


def _earlier(lock: Lock, skill: LockedSkill) -> LockedSkill | None:
    """Return a skill's entry in the old lock: of this definition, or of the same name."""
    entries = [entry for entry in lock.skills if entry.name == skill.name]
    return next((entry for entry in entries if entry.digest == skill.digest), entries[0] if entries else None)


def _changes_of(old: LockedSkill, new: LockedSkill) -> Iterator[str]:
    before, after = by_name(old.toolset().specs), by_name(new.toolset().specs)
    for name, spec in after.items():
        earlier = before.get(name)
        if earlier is None or definition_digest(earlier) != definition_digest(spec):
            yield f"{new.name}/{name} is {'new' if earlier is None else 'changed'}:"
            yield from (f"  {line}" for line in definition_diff(earlier, spec))
    if old.instructions != new.instructions:
        yield f"the instructions of {new.name} are changed:"
        yield from (f"  {line}" for line in text_diff(old.instructions, new.instructions))


def write_lock(path: Path, lock: Lock) -> None:
    """Write the lock atomically; concurrent readers see the old one. Raises StorageError."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_text(lock.to_toml(), encoding="utf-8", newline="\n")
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error


def merge_locks(old_lock: Lock, new_lock: Lock, experts: Iterable[Expert], folders: Collection[str] = ()) -> Lock:
    """Return the new lock with the old entries whose declarations are unchanged. `folders`: declared Agent Skills."""
    by_key = {expert.key: expert for expert in experts}
    declared = {digest_of_skill(skill) for expert in by_key.values() for skill in tool_skills(expert.skills)}
    fresh = {skill.digest for skill in new_lock.skills}
    kept_skills = tuple(skill for skill in old_lock.skills if skill.digest in declared - fresh)
    kept_experts = {
        key: entry
        for key, entry in old_lock.experts.items()
        if key in by_key and entry.digest == digest_of_expert(by_key[key])
    }
    new_paths = {folder.path for folder in new_lock.agent_skills}
    kept_folders = tuple(
        folder for folder in old_lock.agent_skills if folder.path in folders and folder.path not in new_paths
    )
    return Lock(
        experts={**kept_experts, **new_lock.experts},
        skills=(*kept_skills, *new_lock.skills),
        agent_skills=(*kept_folders, *new_lock.agent_skills),
    )
