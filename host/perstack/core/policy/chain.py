"""Which rules a definition puts on a Run."""

from __future__ import annotations

from posixpath import basename

from perstack.core.definitions import Expert, Project
from perstack.core.policy.permissions import RuleSet


def rule_sets(project: Project, expert: Expert) -> tuple[RuleSet, ...]:
    """The project's rules and the Expert's, as far as there are any; those of the Runs above are added to them."""
    found: list[RuleSet] = []
    name = basename(project.path) if project.path else "perstack.toml"
    recorded = project.recorded_permissions
    if recorded is not None and recorded != project.permissions:
        found.append(RuleSet(source=f"{name} [permissions], as recorded", permissions=recorded))
    if project.permissions is not None:
        found.append(RuleSet(source=f"{name} [permissions]", permissions=project.permissions))
    if expert.permissions is not None:
        source = f"[experts.{expert.key}.permissions]"
        found.append(RuleSet(source=source, expert=expert.key, permissions=expert.permissions))
    return tuple(found)
