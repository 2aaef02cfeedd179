"""Warnings of secrets that are written into a definition file, where a variable should be named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from pydantic import JsonValue

from perstack.config.source import KeyPath, Reporter, TomlTable, TomlValue
from perstack.core.base import JsonObject
from perstack.core.secret_text import masked_args, masked_line, masked_settings

_REMEDY = "write `${VAR}` in its place, and set the variable in the environment or in .env"


def warn_of_secret(text: str, masked: str, at: KeyPath, report: Reporter, remedy: str = _REMEDY) -> None:
    """Of one text, of which the log has `masked`."""
    if text != masked:
        report.warn(at, f"holds what looks like a secret, of which logs have the digest: {remedy}")


def warn_of_args(args: Sequence[str], at: KeyPath, report: Reporter, remedy: str = _REMEDY) -> None:
    """Of the arguments of a program."""
    for index, (arg, masked) in enumerate(zip(args, masked_args(args), strict=True)):
        warn_of_secret(arg, masked, (*at, index), report, remedy)


def warn_of_evaluator(evaluator: TomlValue, at: KeyPath, report: Reporter) -> None:
    """Of a line for the shell, or a program with its arguments; an Expert and a function have none."""
    if isinstance(evaluator, str):
        warn_of_secret(evaluator, masked_line(evaluator), at, report)
    elif isinstance(evaluator, list):
        args = [arg for arg in evaluator if isinstance(arg, str)]
        warn_of_args(args, at, report, f"make it one line for the shell: {_REMEDY}")


def warn_of_settings(settings: TomlTable, at: KeyPath, report: Reporter) -> None:
    """Of the settings of a plugin's skill."""
    # a date, which no JSON has, is an error of its own, and no secret
    values = cast("JsonObject", settings)
    _warn_of_value(values, masked_settings(values), at, report)


def _warn_of_value(value: JsonValue, masked: JsonValue, at: KeyPath, report: Reporter) -> None:
    match value, masked:
        case dict(), dict():
            for name, inner in value.items():
                _warn_of_value(inner, masked[name], (*at, name), report)
        case list(), list():
            for index, (inner, its) in enumerate(zip(value, masked, strict=True)):
                _warn_of_value(inner, its, (*at, index), report)
        case str(), str():
            warn_of_secret(value, masked, at, report)
        case _:
            return
