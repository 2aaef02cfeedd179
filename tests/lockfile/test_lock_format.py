"""perstack.lock as a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from perstack.core.definitions.skills import McpSseSkill, McpStdioSkill, ToolSpec
from perstack.diagnostics.lock_update import write_lock
from perstack.errors import UsageError
from perstack.lockfile.lock import Lock, LockedSkill, digest_of_skill, read_lock
from perstack.ports.skill import Toolset

SCHEMA = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"enum": [None, 1.5, "\u2603 \"'\n"]}}}
SPEC = ToolSpec(name="b", description="Two\r\nlines \x00 ☃", input_schema=SCHEMA, effect="readOnly")
SKILL = McpStdioSkill(name="one", command="server", pick=("b",))
TOOLSET = Toolset((SPEC, ToolSpec(name="a")), "Be careful.")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "perstack.lock"
    write_lock(path, Lock(skills=(LockedSkill.of(SKILL, TOOLSET),)))
    found = read_lock(path).of_skill(SKILL)
    assert found is not None
    assert found.toolset() == Toolset((ToolSpec(name="a"), SPEC), "Be careful.")
    assert list(found.toolset().specs[1].input_schema["properties"]) == ["z", "a"], "a model reads them in this order"


def test_how_an_expert_uses_a_skill_is_no_part_of_its_digest_and_all_else_is() -> None:
    same = SKILL.model_copy(update={"pick": (), "omit": ("x",), "rule": "Softly.", "description": "It."})
    assert digest_of_skill(same) == digest_of_skill(SKILL)
    assert digest_of_skill(SKILL.model_copy(update={"args": ("-v",)})) != digest_of_skill(SKILL)


def test_secrets_are_no_part_of_a_digest() -> None:
    first, second = (
        McpSseSkill(name="web", endpoint="https://example.com", headers={"Authorization": secret})
        for secret in ("first", "second")
    )
    assert digest_of_skill(first) == digest_of_skill(second)


def test_entries_are_sorted(tmp_path: Path) -> None:
    skills = tuple(LockedSkill.of(McpStdioSkill(name=name), TOOLSET) for name in ("z", "a"))
    assert Lock(skills=skills).to_toml() == Lock(skills=skills[::-1]).to_toml()


def test_a_schema_that_was_edited_by_hand_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "perstack.lock"
    write_lock(path, Lock(skills=(LockedSkill.of(SKILL, TOOLSET),)))
    path.write_text(path.read_text().replace('"z', '"y').replace('\\"z', '\\"y'))
    with pytest.raises(UsageError, match=r"perstack\.lock is damaged .*install the skills again"):
        read_lock(path)
