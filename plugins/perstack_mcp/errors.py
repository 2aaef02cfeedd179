"""The words for what went wrong with a server."""

from __future__ import annotations

import asyncio
from typing import cast

from perstack.core.secret_text import masked_error
from perstack.errors import PerstackError, SkillError
from perstack.next_steps import NextStep

_LONGEST = 10_000
"""Characters of an error that are looked at."""


class ServerEnded(SkillError):
    """The connection closed under a call."""


class Unauthorized(SkillError):
    """The server, or its authorization server, did not let this request in; others may go on."""


def leaf(error: BaseException) -> BaseException:
    """The one error that a group, which says nothing itself, was made of."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
    return leaf(next((one for one in inner if not isinstance(one, asyncio.CancelledError)), inner[0]))


def steps(error: BaseException) -> tuple[NextStep, ...]:
    """What its leaf says may be done next."""
    found = leaf(error)
    return found.next_steps if isinstance(found, PerstackError) else ()


def words(error: BaseException) -> str:
    """An error in one line, by its leaf and without its steps, nor the secrets of an address that it quotes."""
    found = leaf(error)
    said = found.message if isinstance(found, PerstackError) else str(found)
    text = masked_error(" ".join(said.split())[:_LONGEST])
    return text[:500] if text else type(found).__name__
