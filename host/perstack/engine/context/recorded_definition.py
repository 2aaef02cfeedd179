"""From what a Host was given to what iterations record of it, and back."""

from __future__ import annotations

from perstack.config.settings import Overrides, resolve_settings
from perstack.core.definitions import Expert, Project
from perstack.core.recorded import SeriesDefinition, definition_of, in_force
from perstack.engine.providers import ProviderPool


def record_definition(pool: ProviderPool, project: Project, expert: Expert, overrides: Overrides) -> SeriesDefinition:
    """What a Run of this Expert would be started with now. Raises UsageError or MissingCredential if it could not."""
    settings = pool.settings(project, expert, overrides)
    update: dict[str, object] = {}
    # what nobody has chosen stays what it is today, though a key for another provider may come
    if resolve_settings(project, expert, overrides).provider is None:
        update = {"provider": settings.provider, "model": project.model or settings.model}
    return definition_of(project.model_copy(update=update), expert, overrides)


def in_force_now(definition: SeriesDefinition, today: Project, overrides: Overrides) -> tuple[Project, Overrides]:
    """The project as it was recorded; and what is asked for now, or, where nothing is, what was asked for then."""
    return in_force(definition, today), overrides.or_else(definition.chosen)
