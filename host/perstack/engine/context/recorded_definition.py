"""Convert a Host's definition and options to what iterations record of them, and back."""

from __future__ import annotations

from perstack.config.settings import resolve_settings
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.overrides import Overrides
from perstack.core.definitions.project import Project
from perstack.core.definitions.recorded_definition import SeriesDefinition, definition_of, in_force
from perstack.engine.plugins.providers import ProviderPool


def record_definition(pool: ProviderPool, project: Project, expert: Expert, overrides: Overrides) -> SeriesDefinition:
    """Return the definition that a Run of this Expert would start with. Raises UsageError or MissingCredential."""
    settings = pool.settings(project, expert, overrides)
    update: dict[str, object] = {}
    # record the default provider of today: a key for another provider may be added later
    if resolve_settings(project, expert, overrides).provider is None:
        update = {"provider": settings.provider, "model": project.model or settings.model}
    return definition_of(project.model_copy(update=update), expert, overrides)


def in_force_now(definition: SeriesDefinition, today: Project, overrides: Overrides) -> tuple[Project, Overrides]:
    """Return the recorded project, and today's options, or the recorded ones where today's are not set."""
    return in_force(definition, today), overrides.or_else(definition.chosen)
