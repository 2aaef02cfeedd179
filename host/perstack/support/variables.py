"""Substitute `${NAME}` in a definition from the environment; `$${NAME}` becomes a literal `${NAME}`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from perstack.core.base.records import JsonObject, map_texts, texts_in
from perstack.core.secrets.masking import has_masked
from perstack.errors import SkillError, UsageError

_VARIABLE = r"\$(\$?)\{([A-Za-z_][A-Za-z0-9_]*)\}"


def fill(values: Mapping[str, str], env: Mapping[str, str], skill: str, what: str) -> dict[str, str]:
    """Return the texts with their variables substituted. Raises SkillError for unset ones; `what` names the setting."""
    _check_set(variables_in(values.values()), env, skill, what)
    return {name: _with_values(text, env) for name, text in values.items()}


def fill_address(address: str, env: Mapping[str, str], of: str = "storage") -> str:
    """Return an address with its variables substituted; `of` names its setting. Raises UsageError naming unset ones."""
    if missing := ", ".join(sorted(name for name in variables_in([address]) if not env.get(name))):
        raise UsageError(f"`{of}` needs {missing}: set it in the environment or in a .env file")
    return _with_values(address, env)


def fill_settings(settings: JsonObject, env: Mapping[str, str], skill: str) -> JsonObject:
    """Return the settings of a plugin's skill with variables in their texts substituted.

    Raises SkillError if a variable is unset, or if a secret is no longer known.
    """
    texts = tuple(texts_in(settings))
    require_secrets_known(texts, skill)
    _check_set(variables_in(texts), env, skill, "settings")
    return map_texts(settings, lambda text: _with_values(text, env))


def _check_set(names: Iterable[str], env: Mapping[str, str], skill: str, what: str) -> None:
    missing = ", ".join(sorted(name for name in names if not env.get(name)))
    if missing:
        raise SkillError(f"skill {skill!r} needs {missing} for its {what}: set it in the environment or in a .env file")


def _with_values(text: str, env: Mapping[str, str]) -> str:
    return re.sub(_VARIABLE, lambda match: match[0][1:] if match[1] else env[match[2]], text)


def variables_in(texts: Iterable[str]) -> set[str]:
    """Return the names of the variables in the texts."""
    return {match[2] for text in texts for match in re.finditer(_VARIABLE, text) if not match[1]}


def require_secrets_known(texts: Iterable[str], skill_name: str) -> None:
    """Raise SkillError if a secret is no longer known: it was not recorded, and perstack.toml no longer has it."""
    if has_masked(texts):
        raise SkillError(
            f"skill {skill_name!r} was started with a secret, which is not recorded, and perstack.toml has no such"
            " skill any more: put it back, or begin a new Job"
        )


# Errors that show no secrets.

_T = TypeVar("_T")


def find_by_address(address: str, find: Callable[[str], _T], filled_address: str) -> _T:
    """Return `find(filled_address)`. Raises its UsageError without the variables' values, which may be keys."""
    try:
        return find(filled_address)
    except UsageError:
        names = ", ".join(sorted(variables_in([address])))
        if not names:
            raise
        raise UsageError(f"{address!r}, with the value of {names}, is not an address of an installed plugin") from None
