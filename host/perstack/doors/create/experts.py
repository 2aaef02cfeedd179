"""The shipped Experts that write definitions, and what a definition would newly start or reach."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from perstack.config.expert_tests import read_tests
from perstack.config.load import DefinitionFile, load_project
from perstack.config.trust import Kind, digests_of, executed
from perstack.core.definitions.experts import ProviderSetting
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.project import Project
from perstack.errors import DefinitionError, PluginError, Problem, UsageError
from perstack.ports.environment import Environment

# Additional reach of a changed definition.

IN_A_RUN: frozenset[Kind] = frozenset({"command", "endpoint", "plugin", "provider"})
EVER: frozenset[Kind] = frozenset({*IN_A_RUN, "evaluator", "anchor", "include", "storage", "dispatcher"})


def new_executables(before: Project, after: Project, kinds: frozenset[Kind] = EVER) -> list[str]:
    """Return a line for each program, endpoint, plugin and the like that only `after` uses."""
    settings = (after.provider, *(expert.provider for expert in after.experts.values()))
    named = (Project(provider=ProviderSetting(provider_name=one.provider_name)) for one in settings if one)
    known = digests_of(executed(before)).union(*(digests_of(executed(one)) for one in named))
    return [one.shown for one in executed(after) if one.kind in kinds and one.digest not in known]


def commands_of_tests(path: Path) -> list[str]:
    """Return a line for each program that judges a test: Runs do not start them, `perstack test` does."""
    said = ((one.title, one.test.expect.command) for one in read_tests(DefinitionFile(path)))
    lines = ((title, one if isinstance(one, str) else shlex.join(one)) for title, one in said if one is not None)
    return [f"test {title}: {line}" for title, line in lines]


COORDINATOR = "create-expert"
DEFINITION = "perstack.toml"
_FILE = Path(__file__).parents[2] / "experts" / "create-expert" / "perstack.toml"
_NO_WORK_OF_ANYBODY = frozenset({".git", ".env", ".env.local", ".venv", "perstack"})
WRITES = ("writeTextFile", "editTextFile")


@cache
def team() -> Project:
    """Return the Experts as they ship."""
    return load_project(_FILE).project


def experts_for(own: Project, folder: Path, *, says_yes: bool) -> Project:
    """Return the shipped Experts under the project's settings and permission rules, without the project's own Experts.

    Changing an existing file asks the user, unless they agreed in advance (`says_yes`). A missing perstack.toml may be
    written without asking, and in a folder without the user's work other files too.
    """
    shipped = team()
    opened = Permissions() if shipped.permissions is None else shipped.permissions
    free: list[str] = []
    if says_yes or _is_empty(folder):
        free += WRITES
    if says_yes or not (folder / DEFINITION).exists():
        free += (f"{name}({DEFINITION})" for name in WRITES)
    theirs = Permissions() if own.permissions is None else own.permissions
    rules = opened.model_copy(
        update={
            "deny": (*opened.deny, *theirs.deny),
            "ask": (*(rule for rule in opened.ask if rule not in free), *theirs.ask),
            "allow": (*opened.allow, *free),
        }
    )
    of_its_experts: dict[str, object] = {
        "broken": {},
        "includes": (),
        "workspace": None,
        "compaction": None,
        "agents_md": None,
    }
    return own.model_copy(
        update={**of_its_experts, "experts": shipped.experts, "max_steps": shipped.max_steps, "permissions": rules}
    )


def _is_empty(folder: Path) -> bool:
    """Return whether the folder holds nothing that the user would miss."""
    return all(path.name in _NO_WORK_OF_ANYBODY for path in folder.iterdir())


# Validation of a definition, with the checks of the installed plugins.


async def validate_definition(
    definition: DefinitionFile, env: Environment, plugins: Iterable[object] = ()
) -> tuple[Project | None, tuple[Problem, ...]]:
    """Return the project, None if it has errors, and every problem including warnings. Starts nothing."""
    if not definition.drafts and not definition.problems and definition.report is not None:
        what, tell = "declares no Expert", definition.report.warn
        if not definition.project.model_fields_set:
            what, tell = "is empty", definition.report.error
        tell((), f"{what}: write [experts.NAME] and its `instruction`")
    await _ask_plugins(definition, env, plugins)
    if any(draft.tests is not None for draft in definition.drafts.values()):
        from perstack.config.expert_tests import read_tests  # imported late: few definitions have tests

        read_tests(definition)
    try:
        return definition.loaded(strict=True).project, definition.in_order()
    except DefinitionError as error:
        return None, error.problems


async def _ask_plugins(definition: DefinitionFile, env: Environment, plugins: Iterable[object]) -> None:
    from perstack.engine.permissions.definition_checks import check_with_plugins
    from perstack.engine.plugins.registry import EXTRA_MODULES, load_plugins

    try:
        loaded = load_plugins(plugins, env)
    except (UsageError, PluginError) as error:
        # without its plugins, the sections that they define cannot be checked
        definition.problems.append(Problem(str(error).removeprefix(f"{EXTRA_MODULES}: "), EXTRA_MODULES))
        return
    await check_with_plugins(definition, loaded, env)
