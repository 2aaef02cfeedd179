"""`${NAME}` in a definition, replaced from the environment; `$${NAME}` stands for `${NAME}` itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from perstack.core.secret_text import has_masked
from perstack.errors import SkillError

_VARIABLE = re.compile(r"\$(\$?)\{([A-Za-z_][A-Za-z0-9_]*)\}")


def filled(values: Mapping[str, str], env: Mapping[str, str], skill: str, what: str) -> dict[str, str]:
    """The same texts with their variables' values. Raises SkillError that names each variable that is not set."""
    missing = ", ".join(sorted(name for name in variables_in(values.values()) if not env.get(name)))
    if missing:
        raise SkillError(f"skill {skill!r} needs {missing} for its {what}: set it in the environment or in a .env file")

    def value(found: re.Match[str]) -> str:
        return found[0][1:] if found[1] else env[found[2]]

    return {name: _VARIABLE.sub(value, text) for name, text in values.items()}


def variables_in(texts: Iterable[str]) -> set[str]:
    """The variables that are named."""
    return {found[2] for text in texts for found in _VARIABLE.finditer(text) if not found[1]}


def check_known(texts: Iterable[str], skill: str) -> None:
    """Raises SkillError if a secret is not known any more: it was not recorded, and perstack.toml does not say it."""
    if has_masked(texts):
        raise SkillError(
            f"skill {skill!r} was started with a secret, which is not recorded, and perstack.toml has no such skill any"
            " more: put it back, or begin a new Job"
        )
