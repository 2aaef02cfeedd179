"""`perstack redact`."""

from __future__ import annotations

import asyncio
import json
import re

import click

from perstack.core.ids import place_of
from perstack.core.plain import one_line
from perstack.core.redaction import Redaction
from perstack.engine.who import this_user
from perstack.errors import PerstackError
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.terminal import data, err, out
from perstack.frontends.shared.words import count
from perstack.host import Host

_SHOWN = 20
_EVENT = re.compile(r".+-[1-9][0-9]*-[1-9][0-9]*")


@click.command("redact")
@click.argument("event")
@click.argument("fields", metavar="FIELD...", nargs=-1, required=True)
@click.option("--reason", metavar="TEXT", required=True, help="Why, for the record: it stays, so no secret in it.")
@click.option("--copies", is_flag=True, help="Redact every other event too that has the same text whole.")
@click.option("--json", "as_json", is_flag=True, help="What was taken out, and where it still is, as JSON, one a line.")
@place_options
def redact_command(
    event: str,
    fields: tuple[str, ...],
    reason: str,
    copies: bool,
    as_json: bool,
    config: str | None,
    workspace: str | None,
    storage: str | None,
) -> None:
    """Take the text of FIELDs of EVENT out of the log, caches, checkpoints and blobs, for good.

    Who did it, when and why is recorded, and shown by `perstack verify` and `log`. Killed in between, the same command
    does the rest.
    """
    place = PlaceOptions(config, workspace, storage)
    done, left, failed = asyncio.run(_redacted(place.writer(), event, fields, reason, copies=copies))
    for event_id, redaction in done.items():
        if as_json:
            data(json.dumps({"event": event_id, **redaction.to_json()}, ensure_ascii=False))
        else:
            blobs = f", and {count(len(redaction.blobs), 'blob')}" if redaction.blobs else ""
            out(f"redacted {event_id} ({redaction.type}): {', '.join(redaction.fields)}{blobs}")
    for event_id, why in failed.items():
        err(one_line(f"error: {event_id}: {why}"))
    if left and not as_json:
        more = f", and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        err(one_line(f"the same text is also in: {', '.join(left[:_SHOWN])}{more}"))
    raise SystemExit(1 if failed else 0)


async def _redacted(
    host: Host, event: str, fields: tuple[str, ...], reason: str, *, copies: bool
) -> tuple[dict[str, Redaction], list[str], dict[str, str]]:
    """What was redacted by its id, where the same text is left, and what could not be."""
    by, done, failed = this_user("cli"), dict[str, Redaction](), dict[str, str]()
    async with host:
        event = await host.jobs.find(event)
        place_of(event, "event")
        done[event] = await host.jobs.redact(event, fields, reason=reason, by=by)
        left = [one for one in done[event].copies if one != event]
        for one in [one for one in left if copies and _EVENT.fullmatch(one)]:
            try:
                done[one] = await host.jobs.redact(one, reason=reason, by=by)
            except PerstackError as error:
                failed[one] = str(error)
        redacted = {place for place in left if place in done or await _is_redacted(host, place)}
    return done, [one for one in left if one not in redacted], failed


async def _is_redacted(host: Host, event_id: str) -> bool:
    """Whether a copy that was found at an earlier time has been redacted since."""
    if not _EVENT.fullmatch(event_id):
        return False
    job_id, run_id, seq = place_of(event_id)
    try:
        (log,) = await host.jobs.logs(job_id, run_id=run_id)
    except PerstackError:
        return True
    return len(log.lines) < seq or b'"redacted":true' in log.lines[seq - 1][:400]
