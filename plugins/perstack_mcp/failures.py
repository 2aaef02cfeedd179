"""The words for what went wrong with a server."""

from __future__ import annotations

import asyncio
from typing import cast

from perstack.core.secret_text import masked_error
from perstack.errors import SkillError

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


def words(error: BaseException) -> str:
    """An error in one line, by its leaf, without the secrets of an address that it quotes."""
    found = leaf(error)
    text = masked_error(" ".join(str(found).split())[:_LONGEST])
    return text[:500] if text else type(found).__name__
