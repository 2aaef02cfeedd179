"""Whether a changed definition may have something else executed: what a person may say to that."""

from __future__ import annotations

from perstack.core.answers import APPROVAL, yes_or_no

_YES, _NO = APPROVAL.options

CHOICES = {_YES: "Use it", _NO: "Keep the one of before"}
"""Each answer, with its name."""


def agrees(said: object) -> bool:
    """Whether that is a yes; anything else leaves the definition as it was."""
    found = yes_or_no(said) if isinstance(said, str) else None
    return found is not None and found.is_yes


def declines(said: str) -> bool:
    """Whether that is a no."""
    found = yes_or_no(said)
    return found is not None and not found.is_yes
