"""`perstack inbox`."""

from __future__ import annotations

import asyncio
import json

import click

from perstack.core.base import JsonObject
from perstack.engine.clock import SYSTEM
from perstack.engine.inbox import InboxItem
from perstack.frontends.cli.next_steps import said
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.terminal import Screen, data, out, table
from perstack.frontends.shared.words import ago


@click.command("inbox")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each question.")
@place_options
def inbox_command(as_json: bool, config: str | None, workspace: str | None, storage: str | None) -> None:
    """List what waits for you: every open question of every Job and task, the oldest first."""
    place = PlaceOptions(config, workspace, storage)

    async def look() -> tuple[InboxItem, ...]:
        async with place.reader() as host:
            return await host.inbox()

    items = asyncio.run(look())
    if as_json:
        for item in items:
            data(json.dumps(_to_json(item), ensure_ascii=False))
    elif not items:
        out("nothing waits for you")
    else:
        _print(items)


def _to_json(item: InboxItem) -> JsonObject:
    common: JsonObject = {"id": item.id, "text": item.text, "since": item.since, "approval": item.is_approval}
    if item.damaged:
        common["damaged"] = True
    after: JsonObject = {"next": _next(item)} if item.next_steps else {}
    if item.task_id is not None:
        return {**common, "taskId": item.task_id, "agentId": item.who, **after}
    question: JsonObject = {} if item.asking is None else json.loads(item.asking.to_json())
    return {**common, "jobId": item.job_id, **question, **after}


def _print(items: tuple[InboxItem, ...]) -> None:
    screen, now = Screen.of_stdout(), SYSTEM.now()
    rows = [
        (
            item.id,
            "Job" if item.task_id is None else "task",
            item.who or "-",
            ago(item.since, now) if item.since else "?",
            _wanted(item),
            _text(item),
        )
        for item in items
    ]
    table(screen, ("id", "of a", "who asks", "since", "wants", "text"), rows, drops=(1, 2, 3, 4))
    out(screen.paint('answer with: perstack answer ID "…"', dim=True))


def _text(item: InboxItem) -> str:
    text = item.text if item.asking is None else item.asking.shown
    return f"{text}: {_next(item)}" if item.next_steps else text


def _next(item: InboxItem) -> str:
    return "; ".join(said(step) for step in item.next_steps)


def _wanted(item: InboxItem) -> str:
    if item.damaged:
        return "repair"
    if item.next_steps:
        return "help"
    if item.is_approval:
        return "approval"
    schema = item.asking.requested_schema if item.asking is not None else None
    fields = schema.get("properties") if schema is not None else None
    return ", ".join(fields) if isinstance(fields, dict) and fields else "an answer"
