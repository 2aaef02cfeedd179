"""The Experts that write definitions: those that ship with perstack, with the settings of the folder they work for."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from perstack.config.load import load_project
from perstack.core.definitions import Project
from perstack.core.policy.permissions import Permissions

COORDINATOR = "create-expert"
DEFINITION = "perstack.toml"
_FILE = Path(__file__).parents[2] / "experts" / "create-expert" / "perstack.toml"
_NO_WORK_OF_ANYBODY = frozenset({".git", ".env", ".env.local", ".venv", "perstack"})
WRITES = ("writeTextFile", "editTextFile")


@cache
def team() -> Project:
    """The Experts as they ship."""
    return load_project(_FILE).project


def team_for(own: Project, folder: Path, *, says_yes: bool) -> Project:
    """The Experts that write, under the settings of a project and the rules that it has; its Experts are left out.

    A person is asked before a file that is there is changed, unless who began `says_yes`. Where no perstack.toml is
    there it may be written, and in a folder with nothing of anybody's other files too.
    """
    shipped = team()
    opened = Permissions() if shipped.permissions is None else shipped.permissions
    free: list[str] = []
    if says_yes or is_empty(folder):
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


def is_empty(folder: Path) -> bool:
    """Whether nothing is there that a person would miss."""
    return all(path.name in _NO_WORK_OF_ANYBODY for path in folder.iterdir())
