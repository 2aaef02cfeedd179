"""The choice of a model: the offered rows, and the warning about a name that is in no list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perstack.core.base.text import nearest, one_line
from perstack.core.definitions.models import NAMED, split_full_name

_SIMILARITY = 0.85  # minimum similarity for a name to count as a misspelling, as in a definition


class ModelRow(NamedTuple):
    """A model that may be chosen."""

    name: str
    note: str = ""
    is_default: bool = False  # True for the model that is configured by the definition and the options
    is_in_force: bool = False
    is_unknown: bool = False  # True for a typed name that is in no list


def model_rows(configured: str, known: Sequence[str], chosen: str | None, typed: str) -> list[ModelRow]:
    """Return the models that may be chosen: the configured one, and the known ones, filtered by the typed text.

    A typed name that is in no list comes first, unless others begin with it.
    """
    configured_name, typed = split_full_name(configured)[1], typed.strip()
    default = ModelRow(
        configured_name, _join_notes("as set", chosen is None), is_default=True, is_in_force=chosen is None
    )
    others = [name for name in known if name != configured_name]
    if chosen is not None and chosen not in others:
        others.insert(0, chosen)
    rows = [default, *(ModelRow(name, _join_notes("", name == chosen), is_in_force=name == chosen) for name in others)]
    if not typed:
        return rows if configured_name else rows[1:]
    words = typed.casefold().split()
    matches = [row for row in rows if row.name and all(word in row.name.casefold() for word in words)]
    if any(row.name == typed for row in matches):
        return sorted(matches, key=lambda row: row.name != typed)
    new = ModelRow(typed, unknown_model_warning(typed, known) or "as typed", is_unknown=True)
    similar = [row for row in rows if row.name == _nearest_model(typed, known) and row not in matches]
    return [*matches, new] if matches else [new, *similar]


def unknown_model_warning(name: str, known: Sequence[str]) -> str:
    """Return the warning about an unknown name, which may be a newer model's; empty if there is no reason for one.

    The first of `known` is the configured model. If it is the only one, the provider lists no models.
    """
    similar = _nearest_model(name, known)
    if name in known or (similar is None and len(known) < 2):
        return ""
    text = f"`{one_line(name)}` is not a known model"
    return text if similar is None else f"{text}; did you mean `{one_line(similar)}`?"


def _nearest_model(name: str, known: Sequence[str]) -> str | None:
    return nearest(name, [other for other in known if other.startswith(NAMED) is name.startswith(NAMED)], _SIMILARITY)


def _join_notes(note: str, is_in_force: bool) -> str:
    return ", ".join(filter(None, (note, "in force" if is_in_force else "")))
