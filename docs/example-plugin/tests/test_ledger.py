"""The Expert, on a model that plays a script."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perstack import Event, Host, JobSummary, Overrides
from perstack.core.messages.messages import text_of
from perstack.core.runs.events.tool_calls import FinishToolCall
from perstack.testing.scripted import ScriptedProvider, text, tool

CONFIG = Path(__file__).parents[1] / "perstack.toml"


def run(workspace: Path, model: ScriptedProvider) -> tuple[JobSummary, list[str]]:
    """The Job, and the results of the tools."""
    results: list[str] = []

    def on_event(event: Event, line: bytes) -> None:
        if isinstance(event, FinishToolCall):
            results.append(text_of(event.contents))

    async def work() -> JobSummary:
        overrides = Overrides(provider="scripted")
        async with Host.open(config=CONFIG, workspace=workspace, overrides=overrides, plugins=[model]) as host:
            return await host.run("bookkeeper", "Note 12.50 for lunch, and tell me the total", on_event=on_event)

    return asyncio.run(work()), results


@pytest.fixture(autouse=True)
def _trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agree to the package's own definition, as its author does."""
    monkeypatch.setenv("PERSTACK_TRUST", str(CONFIG))


def test_an_expense_is_noted_and_added_up(tmp_path: Path) -> None:
    model = ScriptedProvider(
        [
            tool("add_expense", {"amount": 12.5, "what": "lunch", "day": "2026-11-01"}),
            tool("add_expense", {"amount": -1, "what": "nothing"}),
            tool("list_expenses", {"containing": "lun"}),
            tool("total_expenses"),
            text("12.50 EUR in all."),
        ]
    )
    job, (noted, refused, listed, total) = run(tmp_path, model)
    assert (job.status, job.text) == ("completed", "12.50 EUR in all.")
    assert noted == "noted: 12.5 EUR for lunch"
    assert refused.startswith("Wrong arguments at amount")
    assert '"2026-11-01"' in listed
    assert total == "12.5 EUR"
    assert (tmp_path / "expenses.db").is_file()
