"""`${NAME}` in a definition, replaced from the environment; `$${NAME}` stands for `${NAME}` itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from perstack.core.base import JsonObject
from perstack.core.json_texts import texts_in, with_texts
from perstack.core.secret_text import has_masked
from perstack.errors import SkillError, UsageError
from perstack.ports.environment import is_address_name, refuse_redirected
from perstack.ports.processes.environment import INHERITED

_VARIABLE = r"\$(\$?)\{([A-Za-z_][A-Za-z0-9_]*)\}"


def filled(values: Mapping[str, str], env: Mapping[str, str], skill: str, what: str) -> dict[str, str]:
    """The same texts with their variables' values. Raises SkillError that names each variable that is not set."""
    _check_set(variables_in(values.values()), env, skill, what)
    return {name: _with_values(text, env) for name, text in values.items()}


def filled_address(address: str, env: Mapping[str, str], of: str = "storage") -> str:
    """The same for the address of a storage, or of what is named. Raises UsageError that names each that is not set."""
    if missing := ", ".join(sorted(name for name in variables_in([address]) if not env.get(name))):
        raise UsageError(f"`{of}` needs {missing}: set it in the environment or in a .env file")
    return _with_values(address, env)


def filled_settings(settings: JsonObject, env: Mapping[str, str], skill: str) -> JsonObject:
    """The same for the texts in the settings of a plugin's skill.

    Raises SkillError also if a variable of the user's own would stand beside an address that only a workspace's `.env`
    names, or if a secret is not known any more.
    """
    texts = tuple(texts_in(settings))
    check_known(texts, skill)
    named = variables_in(texts)
    _check_set(named, env, skill, "settings")
    try:
        for name in sorted(named):
            if is_address_name(name) or "://" in env[name]:
                refuse_redirected(env, name, sorted(named - INHERITED))
    except UsageError as error:
        raise SkillError(f"skill {skill!r}: {error}") from error
    return with_texts(settings, lambda text: _with_values(text, env))


def _check_set(names: Iterable[str], env: Mapping[str, str], skill: str, what: str) -> None:
    missing = ", ".join(sorted(name for name in names if not env.get(name)))
    if missing:
        raise SkillError(f"skill {skill!r} needs {missing} for its {what}: set it in the environment or in a .env file")


def _with_values(text: str, env: Mapping[str, str]) -> str:
    return re.sub(_VARIABLE, lambda found: found[0][1:] if found[1] else env[found[2]], text)


def variables_in(texts: Iterable[str]) -> set[str]:
    """The variables that are named."""
    return {found[2] for text in texts for found in re.finditer(_VARIABLE, text) if not found[1]}


def check_known(texts: Iterable[str], skill: str) -> None:
    """Raises SkillError if a secret is not known any more: it was not recorded, and perstack.toml does not say it."""
    if has_masked(texts):
        raise SkillError(
            f"skill {skill!r} was started with a secret, which is not recorded, and perstack.toml has no such skill any"
            " more: put it back, or begin a new Job"
        )
