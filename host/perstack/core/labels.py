"""Labels: words of its owner by which a Job is found again, such as `team=search`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from perstack.errors import UsageError

MOST_LABELS = 32
LONGEST_VALUE = 256

_KEY = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}"


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """Each `KEY=VALUE`, as typed. Raises UsageError."""
    labels: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise UsageError(f"label {_shown(text)}: write it as KEY=VALUE")
        if labels.get(key, value) != value:
            raise UsageError(f"label {_shown(key)} is given twice, with different values")
        labels[key] = value
    return check_labels(labels)


def check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels themselves. Raises UsageError for one that is too long, or not plain text."""
    if len(labels) > MOST_LABELS:
        raise UsageError(f"a Job may have {MOST_LABELS} labels, not {len(labels)}")
    for key, value in labels.items():
        if not re.fullmatch(_KEY, key):
            raise UsageError(
                f"label {_shown(key)}: a key is 1 to 63 of A-Z a-z 0-9 . _ / - and begins with a letter or digit"
            )
        if not value.isprintable() or len(value) > LONGEST_VALUE:
            raise UsageError(f"label {key}: a value is at most {LONGEST_VALUE} printable characters")
    return dict(labels)


def has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether all that are wanted are there."""
    return all(labels.get(key) == value for key, value in wanted.items())


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "…")
