"""Which rules a definition puts on a Run."""

from __future__ import annotations

from posixpath import basename

from perstack.core.definitions import Expert, Project
from perstack.core.policy.permissions import RuleSet


def rule_sets(project: Project, expert: Expert) -> tuple[RuleSet, ...]:
    """The project's rules and the Expert's, as far as there are any; those of the Runs above are added to them."""
    found: list[RuleSet] = []
    if project.permissions is not None:
        name = basename(project.path) if project.path else "perstack.toml"
        found.append(RuleSet(source=f"{name} [permissions]", permissions=project.permissions))
    if expert.permissions is not None:
        source = f"[experts.{expert.key}.permissions]"
        found.append(RuleSet(source=source, expert=expert.key, permissions=expert.permissions))
    return tuple(found)
