"""`perstack permissions`: what rules decide about a call, or about all calls that were made."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import cast

import click
from pydantic import JsonValue

from perstack.config.load import DefinitionFile
from perstack.config.permissions_file import read_permissions
from perstack.config.places import named_or_own
from perstack.core.base import JsonObject
from perstack.core.plain import one_line
from perstack.core.policy.permissions import Permissions
from perstack.dataclass import dataclass
from perstack.engine.backtest import Otherwise, Tested
from perstack.engine.clock import SYSTEM
from perstack.errors import UsageError
from perstack.frontends.cli.options import CONFIG, WORKSPACE, PlaceOptions, place_options
from perstack.frontends.cli.task_options import SPAN
from perstack.frontends.cli.terminal import Screen, data, err, out
from perstack.frontends.shared.words import count

_File = tuple[str, Permissions] | None
"""Rules, and the name of the file that they are from."""


@click.group("permissions")
def permissions_command() -> None:
    """Try permission rules, without running anything."""


@permissions_command.command("test")
@click.argument("expert")
@click.argument("tool")
@click.argument("args", metavar="[JSON]", default="{}")
@click.option("--under", multiple=True, metavar="EXPERT", help="An Expert that delegates to it; may be given again.")
@click.option("--json", "as_json", is_flag=True, help="The decision as one JSON object.")
@click.option("--config", metavar="FILE", help=CONFIG)
@click.option("--workspace", metavar="DIR", help=WORKSPACE)
def test_command(
    expert: str,
    tool: str,
    args: str,
    under: tuple[str, ...],
    as_json: bool,
    config: str | None,
    workspace: str | None,
) -> None:
    """Say whether a call of EXPERT's TOOL with these arguments is allowed, asked about or denied, and by which rule.

    TOOL is written as in rules: TOOL, SKILL/TOOL or delegate/EXPERT. Nothing is started and nothing runs.
    """
    from perstack.engine.plugins import load_plugins
    from perstack.engine.trying import try_call

    place = PlaceOptions(config, workspace, None)
    definition = DefinitionFile(place.find().required())
    folder = place.find().workspace(definition.project, place.named)
    tried = try_call(definition, load_plugins().skills, folder, expert, tool, _object(args), above=under)
    ruling = tried.ruling
    if as_json:
        found = {
            "decision": ruling.decision,
            "rule": ruling.rule or None,
            "list": ruling.list,
            "source": ruling.source or None,
            "file": tried.file,
            "line": tried.line,
            "subject": ruling.subject or None,
            "reason": ruling.reason or None,
            "opens": list(ruling.opens),
        }
        data(json.dumps(found, ensure_ascii=False))
        return
    screen = Screen.of_stdout()
    about = f" ({ruling.subject})" if ruling.subject and ruling.subject != tool else ""
    out(f"{ruling.decision}: {ruling.said}{about}")
    if tried.file is not None:
        out(screen.paint(f"{Path(tried.file)}:{tried.line}", dim=True))


@permissions_command.command("backtest")
@click.option("--rules", metavar="FILE", help="Rules in place of the project's: a file with one [permissions] table.")
@click.option("--since", type=SPAN, metavar="TIME", help="Only calls of the last 30d, 12h and the like.")
@click.option("--json", "as_json", is_flag=True, help="Each such call as JSON, one a line, and last the totals.")
@place_options
def backtest_command(
    rules: str | None,
    since: int | None,
    as_json: bool,
    config: str | None,
    workspace: str | None,
    storage: str | None,
) -> None:
    """Try today's rules on all calls that stored Jobs have made, and list those that would be decided otherwise.

    It costs no tokens and changes nothing. Exit status 1 if a call that ran would now be denied.
    """
    place = PlaceOptions(config, workspace, storage)
    other = None if rules is None else (Path(rules).name, read_permissions(Path(rules)))
    start = 0 if since is None else SYSTEM.now() - since
    totals = asyncio.run(_backtested(place, other, start, as_json=as_json))
    if as_json:
        data(json.dumps(totals.to_json()))
    else:
        totals.tell()
    sys.exit(int(totals.denied > 0))


@dataclass(slots=True)
class _Totals:
    jobs: int = 0
    calls: int = 0
    otherwise: int = 0
    denied: int = 0
    """Those that ran, and would be denied."""
    unknown: int = 0
    unreadable: int = 0

    def add(self, tested: Tested) -> None:
        self.jobs += 1
        self.calls += tested.calls
        self.unknown += tested.unknown
        self.unreadable += tested.problem is not None
        self.otherwise += len(tested.otherwise)
        self.denied += sum(_is_denied(one) for one in tested.otherwise)

    def to_json(self) -> JsonObject:
        return {
            "jobs": self.jobs,
            "calls": self.calls,
            "otherwise": self.otherwise,
            "denied": self.denied,
            "unknown": self.unknown,
            "unreadable": self.unreadable,
        }

    def tell(self) -> None:
        out(f"{count(self.jobs, 'Job')}, {count(self.calls, 'call')}: {self.otherwise:,} would be decided otherwise")
        if self.denied:
            out(f"{count(self.denied, 'call')} that ran would be denied")
        if self.unknown:
            err(f"note: {count(self.unknown, 'call')} not tried: the arguments were taken out of the log")


def _is_denied(one: Otherwise) -> bool:
    """Whether a call that ran would be denied."""
    return one.call.ran and one.ruling.decision == "deny"


async def _backtested(place: PlaceOptions, rules: _File, since: int, *, as_json: bool) -> _Totals:
    host = place.writer()
    totals = _Totals()
    async with host:
        workspace = named_or_own(host.project, place.named)
        async for tested in host.jobs.backtest(host.project, workspace, rules=rules, since=since):
            totals.add(tested)
            if tested.problem is not None:
                err(one_line(f"warning: Job {tested.job_id} cannot be read: {tested.problem}"))
            for one in tested.otherwise:
                data(json.dumps(_to_json(one), ensure_ascii=False)) if as_json else _tell(one)
    return totals


def _tell(one: Otherwise) -> None:
    about = f" {one.ruling.subject}" if one.ruling.subject not in ("", one.call.tool) else ""
    place = f"{one.run_id} step {one.call.step} {one.expert_key}"
    said = f"{one.call.decision} -> {one.ruling.decision}: {one.call.tool}{about} ({one.ruling.said})"
    out(one_line(f"{place}: {said}"))


def _to_json(one: Otherwise) -> JsonObject:
    return {
        "jobId": one.job_id,
        "runId": one.run_id,
        "expertKey": one.expert_key,
        "step": one.call.step,
        "toolCallId": one.call.id,
        "skill": one.call.skill,
        "tool": one.call.tool,
        "was": one.call.decision,
        "ran": one.call.ran,
        "decision": one.ruling.decision,
        "rule": one.ruling.rule or None,
        "source": one.ruling.source or None,
        "subject": one.ruling.subject or None,
        "reason": one.ruling.reason or None,
    }


def _object(text: str) -> JsonObject:
    """The arguments as typed. Raises UsageError."""
    try:
        found = cast("JsonValue", json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f'the arguments are not JSON: {error}; write an object in quotes: \'{{"path": "a"}}\''
        ) from None
    if not isinstance(found, dict):
        raise UsageError('the arguments are no JSON object: write one in quotes: \'{"path": "a"}\'')
    return found
