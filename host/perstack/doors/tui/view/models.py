"""The choice of a model: the rows that are offered, and the warning about a name that no list has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perstack.core.base.text import nearest, one_line
from perstack.core.definitions.models import NAMED, parts_of

_NEAR = 0.85  # ratio of similarity from which a name is taken for a misspelling, as in a definition


class ModelRow(NamedTuple):
    """A model that may be chosen."""

    name: str
    note: str = ""
    is_set: bool = False  # True for the model that the definition and the options name
    is_in_force: bool = False
    is_unknown: bool = False  # True for a typed name that no list has


def model_rows(named: str, known: Sequence[str], chosen: str | None, typed: str) -> list[ModelRow]:
    """Return the models that may be chosen: the configured one, and the known ones, filtered by what is typed.

    A typed name that no list has comes first, unless it is the beginning of others.
    """
    own, typed = parts_of(named)[1], typed.strip()
    default = ModelRow(own, _join_notes("as set", chosen is None), is_set=True, is_in_force=chosen is None)
    others = [one for one in known if one != own]
    if chosen is not None and chosen not in others:
        others.insert(0, chosen)
    rows = [default, *(ModelRow(one, _join_notes("", one == chosen), is_in_force=one == chosen) for one in others)]
    if not typed:
        return rows if own else rows[1:]
    words = typed.casefold().split()
    found = [row for row in rows if row.name and all(word in row.name.casefold() for word in words)]
    if any(row.name == typed for row in found):
        return sorted(found, key=lambda row: row.name != typed)
    new = ModelRow(typed, doubt_about(typed, known) or "as typed", is_unknown=True)
    near = [row for row in rows if row.name == _nearest_model(typed, known) and row not in found]
    return [*found, new] if found else [new, *near]


def doubt_about(name: str, known: Sequence[str]) -> str:
    """Return the warning about a name that is not known, which a newer model may have; empty without a reason.

    The first of `known` is the model that is set. Where it is the only one, the provider lists none.
    """
    near = _nearest_model(name, known)
    if name in known or (near is None and len(known) < 2):
        return ""
    words = f"`{one_line(name)}` is not a known model"
    return words if near is None else f"{words}; did you mean `{one_line(near)}`?"


def _nearest_model(name: str, known: Sequence[str]) -> str | None:
    return nearest(name, [one for one in known if one.startswith(NAMED) is name.startswith(NAMED)], _NEAR)


def _join_notes(note: str, is_in_force: bool) -> str:
    return ", ".join(filter(None, (note, "in force" if is_in_force else "")))
