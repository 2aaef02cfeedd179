"""Exception groups, for people: one line about what went wrong first."""

from __future__ import annotations

from typing import cast


def leaves(error: BaseException) -> list[BaseException]:
    """The exceptions that a group, and groups in it, are made of."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in cast("BaseExceptionGroup[BaseException]", error).exceptions for leaf in leaves(part)]
