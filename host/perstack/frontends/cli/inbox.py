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
from perstack.frontends.cli.terminal import Screen, data, out
from perstack.frontends.shared.approvals import call_shown
from perstack.frontends.shared.words import ago, count
from perstack.next_steps import Answer, NextStep

_LINES = 40
"""Of a question that is longer, the rest is not shown."""


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
    """Each as a line that says what it is, what it says under it, and the command that answers."""
    screen, now = Screen.of_stdout(), SYSTEM.now()
    for number, item in enumerate(items):
        if number:
            out()
        of = "Job" if item.task_id is None else "task"
        since = ago(item.since, now) if item.since else "?"
        about = f"{of}  {item.who or '-'}  {since}  wants {_wanted(item)}"
        out(screen.paint(item.id, bold=True), f"  {screen.fit(about, len(item.id) + 2)}")
        lines = _text(item).splitlines()
        for line in lines[:_LINES]:
            out(f"  {line}")
        if len(lines) > _LINES:
            out(screen.paint(f"  … {count(len(lines) - _LINES, 'more line')}: perstack inbox --json", dim=True))
        for step in _steps(item):
            out("  ", screen.paint(said(step), dim=True))


def _text(item: InboxItem) -> str:
    if item.asking is None or not item.asking.call_digest:
        return item.text if item.asking is None else item.asking.shown
    return "\n".join((call_shown(item.asking), *(f"for the whole Job: {rule}" for rule in item.asking.offers)))


def _steps(item: InboxItem) -> tuple[NextStep, ...]:
    of_call = item.asking is not None and bool(item.asking.call_digest)
    return item.next_steps or (Answer(item.id, is_approval=of_call),)


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
