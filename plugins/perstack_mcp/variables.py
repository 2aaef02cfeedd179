"""`${NAME}` in a definition, replaced from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

from perstack.errors import SkillError

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def filled(values: Mapping[str, str], env: Mapping[str, str], skill: str, what: str) -> dict[str, str]:
    """The same texts with their variables' values. Raises SkillError that names each variable that is not set."""
    wanted = {name for value in values.values() for name in _VARIABLE.findall(value)}
    missing = ", ".join(sorted(name for name in wanted if not env.get(name)))
    if missing:
        raise SkillError(f"skill {skill!r} needs {missing} for its {what}: set it in the environment or in a .env file")
    return {name: _VARIABLE.sub(lambda found: env[found.group(1)], value) for name, value in values.items()}
