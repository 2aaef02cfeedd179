"""Names for models: `[models]` by itself, and each `models.NAME` that a definition has."""

from __future__ import annotations

from collections.abc import Mapping

from perstack.config.check import suggestion
from perstack.config.key_path import KeyPath
from perstack.config.source import Reporter
from perstack.core.models import NAMED, Models, UnknownName, wanted


def check_named(named: Mapping[str, Models], report: Reporter) -> None:
    """A name stands for models, and not for another name."""
    for name, models in named.items():
        for one in models if isinstance(models, tuple) else (models,):
            if one.startswith(NAMED):
                report.error(("models", name), f"must be a model, or several, not another name: `{one}`")


def resolve_models(models: Models | None, at: KeyPath, named: Mapping[str, Models], report: Reporter) -> None:
    """Every name must be there."""
    if models is None:
        return
    for index, one in enumerate(models if isinstance(models, tuple) else (models,)):
        try:
            wanted(one, named)
        except UnknownName as error:
            place = (*at, "model", index) if isinstance(models, tuple) else (*at, "model")
            report.error(place, f"{error}{suggestion(one, [NAMED + name for name in named])}")
