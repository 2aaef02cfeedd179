"""Warnings of secrets that are written into a definition file, where a variable should be named."""

from __future__ import annotations

from pydantic import JsonValue

from perstack.config.key_path import KeyPath
from perstack.config.source import Reporter
from perstack.core.definition_secrets import without_secrets
from perstack.core.definitions import Expert

_NOT_RECORDED = {"headers", "oauth"}
REMEDY = "write `${VAR}` in its place, and set the variable in the environment or in .env"


def warn_of_secrets(expert: Expert, at: KeyPath, report: Reporter) -> None:
    """Of every text of an Expert that logs do not have as it is written, but for those of which they have nothing."""
    recorded = without_secrets(expert)
    for skill, masked in zip(expert.skills, recorded.skills, strict=True):
        if masked != skill:
            texts, others = (one.model_dump(mode="json", exclude=_NOT_RECORDED) for one in (skill, masked))
            _compare(texts, others, (*at, "skills", skill.name), report, REMEDY)
    if expert.iterate is not None and recorded.iterate is not None and recorded.iterate != expert.iterate:
        is_program = isinstance(expert.iterate.evaluator, tuple)
        remedy = f"make it one line for the shell: {REMEDY}" if is_program else REMEDY
        texts, others = (one.model_dump(mode="json") for one in (expert.iterate, recorded.iterate))
        _compare(texts, others, (*at, "iterate"), report, remedy)


def _compare(value: JsonValue, recorded: JsonValue, at: KeyPath, report: Reporter, remedy: str) -> None:
    match value, recorded:
        case dict(), dict():
            for name, inner in value.items():
                _compare(inner, recorded[name], (*at, name), report, remedy)
        case list(), list():
            for index, (inner, its) in enumerate(zip(value, recorded, strict=True)):
                _compare(inner, its, (*at, index), report, remedy)
        case str(), str() if value != recorded:
            report.warn(at, f"holds what looks like a secret, of which logs have the digest: {remedy}")
        case _:
            return
