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
    public_expert = without_secrets(expert)
    if agent_skills(public_expert.skills):
        skills = (
            skill.model_copy(update={"path": ""}) if isinstance(skill, AgentSkill) else skill
            for skill in public_expert.skills
        )
        public_expert = public_expert.model_copy(update={"skills": tuple(skills)})
    return digest_of_json(public_expert.to_json())


def lock_changes(old_lock: Lock, new_lock: Lock) -> tuple[str, ...]:
    """Return lines about the new and changed tools and instructions of each skill that the old lock has, too.

    A tool that is gone needs no agreement. A skill that was not locked is agreed to with its definition.
    """
    lines: list[str] = []
    for skill in new_lock.skills:
        old_entry = _earlier_entry(old_lock, skill)
        if old_entry is not None and old_entry != skill:
            lines += _changes_of(old_entry, skill)
    return tuple(lines)


def _earlier_entry(lock: Lock, skill: LockedSkill) -> LockedSkill | None:
    """Return a skill's entry in the old lock: of this definition, or of the same name."""
    entries = [entry for entry in lock.skills if entry.name == skill.name]
    return next((entry for entry in entries if entry.digest == skill.digest), entries[0] if entries else None)


def _changes_of(old: LockedSkill, new: LockedSkill) -> Iterator[str]:
    old_specs, new_specs = by_name(old.toolset().specs), by_name(new.toolset().specs)
    for name, spec in new_specs.items():
        old_spec = old_specs.get(name)
        if old_spec is None or definition_digest(old_spec) != definition_digest(spec):
            yield f"{new.name}/{name} is {'new' if old_spec is None else 'changed'}:"
            yield from (f"  {line}" for line in definition_diff(old_spec, spec))
    if old.instructions != new.instructions:
        yield f"the instructions of {new.name} are changed:"
        yield from (f"  {line}" for line in text_diff(old.instructions, new.instructions))


def write_lock(path: Path, lock: Lock) -> None:
    """Write the lock atomically; concurrent readers see the old one. Raises StorageError."""
    new_path = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new_path.write_text(lock.to_toml(), encoding="utf-8", newline="\n")
        new_path.replace(path)
    except OSError as error:
        with suppress(OSError):
            new_path.unlink()
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error


def merge_locks(old_lock: Lock, new_lock: Lock, experts: Iterable[Expert], folders: Collection[str] = ()) -> Lock:
    """Return the new lock with the old entries whose declarations are unchanged. `folders`: declared Agent Skills."""
    by_key = {expert.key: expert for expert in experts}
    declared_digests = {digest_of_skill(skill) for expert in by_key.values() for skill in tool_skills(expert.skills)}
    new_digests = {skill.digest for skill in new_lock.skills}
    kept_skills = tuple(skill for skill in old_lock.skills if skill.digest in declared_digests - new_digests)
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
