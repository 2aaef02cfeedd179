"""What an author of a definition wrote, and what pydantic finds wrong, in one line."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from perstack.core.base import JsonObject
from perstack.errors import SkillError


def read_settings(model: type[BaseModel] | None, declared: JsonObject, skill_name: str) -> BaseModel | None:
    """The `settings` of a declaration. Raises SkillError that names the skill, the key and what it must be."""
    if model is None:
        if declared:
            raise SkillError(f"skill {skill_name!r} has no settings: remove {', '.join(declared)} from perstack.toml")
        return None
    try:
        return model.model_validate_json(to_json(declared), extra=None if "extra" in model.model_config else "forbid")
    except ValidationError as error:
        wrong = in_one_line(error, "settings.")
        raise SkillError(f"skill {skill_name!r} cannot be used as perstack.toml declares it: {wrong}") from error


def in_one_line(error: ValidationError, prefix: str = "") -> str:
    """What pydantic found, each with its place, without the values: they may be secret."""
    return "; ".join(
        f"{prefix}{'.'.join(map(str, one['loc']))}: {one['msg']}" if one["loc"] else one["msg"]
        for one in error.errors(include_url=False, include_input=False)
    )
