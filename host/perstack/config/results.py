"""What an Expert's result has to fit: schemas that can be used, and checked."""

from __future__ import annotations

from perstack.config.key_path import KeyPath
from perstack.config.source import Reporter
from perstack.core.definitions import Expert
from perstack.core.results import schema_fault


def check_results(expert: Expert, at: KeyPath, report: Reporter) -> None:
    """Report what is wrong with the schemas of its results."""
    for key, schema in (("returns", expert.returns), ("output", expert.output)):
        if schema is None:
            continue
        fault = schema_fault(schema)
        if fault is not None:
            report.error((*at, key), fault)
