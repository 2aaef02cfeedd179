"""All that is wrong with a definition, in itself and for the plugins that are installed."""

from __future__ import annotations

from collections.abc import Iterable

from perstack.config.load import DefinitionFile
from perstack.core.definitions import Project
from perstack.errors import DefinitionError, PluginError, Problem, UsageError
from perstack.ports.environment import Environment


async def checked(
    definition: DefinitionFile, env: Environment, plugins: Iterable[object] = ()
) -> tuple[Project | None, tuple[Problem, ...]]:
    """The project, if it has no errors, and every problem, warnings too. Nothing is started; `plugins` are those
    besides the installed ones."""
    if not definition.drafts and not definition.problems and definition.report is not None:
        what, tell = "declares no Expert", definition.report.warn
        if not definition.project.model_fields_set:
            what, tell = "is empty", definition.report.error
        tell((), f"{what}: write [experts.NAME] and its `instruction`")
    await _ask_plugins(definition, env, plugins)
    if any(draft.tests is not None for draft in definition.drafts.values()):
        from perstack.config.expert_tests import read_tests  # few definitions have any

        read_tests(definition)
    try:
        return definition.loaded(strict=True).project, definition.in_order()
    except DefinitionError as error:
        return None, error.problems


async def _ask_plugins(definition: DefinitionFile, env: Environment, plugins: Iterable[object]) -> None:
    from perstack.engine.checking import check_with_plugins
    from perstack.engine.plugins import EXTRA_MODULES, load_plugins

    try:
        loaded = load_plugins(plugins, env)
    except (UsageError, PluginError) as error:
        # without them nothing can be said of what the file asks of them
        definition.problems.append(Problem(str(error).removeprefix(f"{EXTRA_MODULES}: "), EXTRA_MODULES))
        return
    await check_with_plugins(definition, loaded, env)
