"""The commands `perstack permissions` and `perstack trust`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perstack.audit.rule_testing import BacktestResult, ChangedRuling
from perstack.config.grants import ProjectGrant, ProjectGrants
from perstack.config.project_place import folder_of, workspace_folder
from perstack.core.base.records import JsonObject, read_json
from perstack.core.base.text import count, one_line
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.tool_definitions import Definitions
from perstack.dataclass import dataclass
from perstack.definition_files import open_definition, read_permissions
from perstack.doors.cli.options import HostOptions, definition_options, json_option, place_options
from perstack.doors.cli.param_types import SINCE
from perstack.doors.cli.terminal import confirm, print_err, print_out, table, write_json, write_json_line
from perstack.doors.shared.agreement_items import items_of
from perstack.doors.shared.screen import Screen
from perstack.doors.shared.text import minute
from perstack.errors import UsageError
from perstack.lockfile.lock import lock_path, read_lock
from perstack.trust.agreements import TrustRecord, TrustStore, describe_place
from perstack.trust.items import TrustItem, digests_of
from perstack.trust.run_files import contents_of_rule

if TYPE_CHECKING:
    from perstack.host import Host
    from perstack.ports.storage import LocalState
    from perstack.state_guard.state_marks import StateMark

_File = tuple[str, Permissions] | None


@click.group("permissions")
def permissions_command() -> None:
    """Test permission rules without running anything, and list and revoke what was granted to a project."""


@permissions_command.command("test")
@click.argument("expert")
@click.argument("tool")
@click.argument("args", metavar="[JSON]", default="{}")
@click.option("--under", multiple=True, metavar="EXPERT", help="An Expert that delegates to it; repeatable.")
@json_option("Print the decision as a JSON object.")
@definition_options
def test_command(
    expert: str, tool: str, args: str, under: tuple[str, ...], as_json: bool, options: HostOptions
) -> None:
    """Show whether a call of EXPERT's TOOL with these arguments is allowed, asked about or denied, and by which rule.

    TOOL is written as in rules: TOOL, SKILL/TOOL or delegate/EXPERT. Nothing is started or run.
    """
    from perstack.audit.rule_testing import judge_call
    from perstack.engine.plugins.registry import load_plugins

    definition = open_definition(options.find().require_path(), must_be_whole=False)
    folder = options.find().workspace(definition.project, options.workspace_path)
    result = judge_call(definition, load_plugins().skills, folder, expert, tool, _object(args), parents=under)
    ruling = result.ruling
    if as_json:
        document = {
            "decision": ruling.decision,
            "rule": ruling.rule or None,
            "list": ruling.list,
            "source": ruling.source or None,
            "file": result.file,
            "line": result.line,
            "subject": ruling.subject or None,
            "reason": ruling.reason or None,
            "opens": list(ruling.opens),
        }
        write_json(document)
        return
    screen = Screen.of_stdout()
    subject = f" ({ruling.subject})" if ruling.subject and ruling.subject != tool else ""
    print_out(f"{ruling.decision}: {ruling.reason_text}{subject}")
    if result.file is not None:
        print_out(screen.styled(f"{Path(result.file)}:{result.line}", dim=True))


@permissions_command.command("list")
@json_option("Print each grant as a line of JSON.")
@definition_options
def list_command(as_json: bool, options: HostOptions) -> None:
    """Show the rules that a person has approved for this project, by «always in this project»."""
    grants = _grants(options).all()
    if as_json:
        for grant in grants:
            write_json_line(grant.to_json())
    elif grants:
        locked, workspace = _locked_tools(options), _workspace(options)
        rows = [
            (grant.rule, grant.by.user, minute(grant.granted_at), _state(grant, locked, workspace)) for grant in grants
        ]
        table(Screen.of_stdout(), ("rule", "granted by", "when", "tools and files"), rows, texts=(0, 3))
    else:
        print_err("nothing was granted to this project")


def _locked_tools(options: HostOptions) -> Definitions:
    """Return the definitions that perstack.lock has, by skill and tool. Raises UsageError."""
    path = options.project(required=False).path
    return {} if path is None else read_lock(lock_path(path)).definitions()


def _state(grant: ProjectGrant, locked: Definitions, workspace: Path) -> str:
    """Return a phrase with the tools and files of a grant; if some have changed since, only these."""
    changed = [
        f"{skill}/{name}"
        for skill, digests in grant.pins.items()
        for name, digest in digests.items()
        if locked.get(skill, {}).get(name, digest) != digest
    ]
    changed += grant.changed_files(contents_of_rule(grant.rule, workspace))
    if changed:
        return f"changed since: {', '.join(changed)}"
    parts = [(sum(map(len, grant.pins.values())), "tool"), (len(grant.files), "file")]
    words = " and ".join(count(number, kind) for number, kind in parts if number)
    return f"{words} as allowed" if words else "as perstack.lock has them"


@permissions_command.command("revoke")
@click.argument("rules", metavar="[RULE]...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Revoke all grants of this project.")
@definition_options
def revoke_command(rules: tuple[str, ...], is_all: bool, options: HostOptions) -> None:
    """Remove grants, so that their calls need approval again. A running Job keeps the approvals that it has."""
    if is_all == bool(rules):
        raise UsageError("name the rules to revoke as `perstack permissions list` shows them, or give --all")
    grants = _grants(options)
    unknown = [rule for rule in rules if rule not in grants.rules()]
    if unknown:
        raise UsageError(
            f"not granted in this project: {', '.join(unknown)}; `perstack permissions list` shows the grants"
        )
    revoked = grants.revoke(lambda grant: is_all or grant.rule in rules)
    words = ", ".join(one_line(grant.rule) for grant in revoked)
    print_err(f"revoked: {words}" if revoked else "this project has no grants")


def _grants(options: HostOptions) -> ProjectGrants:
    return ProjectGrants(folder_of(options.project(required=False), _workspace(options)))


def _workspace(options: HostOptions) -> Path:
    return options.find().workspace(options.project(required=False), options.workspace_path)


@permissions_command.command("backtest")
@click.option(
    "--rules", metavar="FILE", help=("A file with a [permissions] table to use instead of the project's rules.")
)
@click.option("--since", type=SINCE, metavar="TIME", help="Only calls in this period: 30d, 12h.")
@json_option("Print each of these calls as a line of JSON, and the totals last.")
@place_options
def backtest_command(rules: str | None, since: int | None, as_json: bool, options: HostOptions) -> None:
    """Apply the current rules to all recorded calls of stored Jobs, and list those that would be decided differently.

    Uses no tokens and changes nothing. Exit status 1 if a call that ran would now be denied.
    """
    other_rules = None if rules is None else (Path(rules).name, read_permissions(Path(rules)))
    totals = options.change(lambda host: _backtest(host, options, other_rules, since or 0, as_json=as_json))
    if as_json:
        write_json_line(json.dumps(totals.to_json()))
    else:
        totals.print_totals()
    sys.exit(int(totals.denied > 0))


@dataclass(slots=True)
class _Totals:
    jobs: int = 0
    calls: int = 0
    otherwise: int = 0
    denied: int = 0  # number of calls that ran and would be denied
    unknown: int = 0
    unreadable: int = 0

    def add(self, result: BacktestResult) -> None:
        self.jobs += 1
        self.calls += result.calls
        self.unknown += result.unknown
        self.unreadable += result.problem is not None
        self.otherwise += len(result.otherwise)
        self.denied += sum(_is_denied(change) for change in result.otherwise)

    def to_json(self) -> JsonObject:
        return {
            "jobs": self.jobs,
            "calls": self.calls,
            "otherwise": self.otherwise,
            "denied": self.denied,
            "unknown": self.unknown,
            "unreadable": self.unreadable,
        }

    def print_totals(self) -> None:
        print_out(
            f"{count(self.jobs, 'Job')}, {count(self.calls, 'call')}: {self.otherwise:,} would be decided differently"
        )
        if self.denied:
            print_out(f"{count(self.denied, 'call')} that ran would be denied")
        if self.unknown:
            print_err(f"note: {count(self.unknown, 'call')} not tested: their arguments were redacted")


def _is_denied(change: ChangedRuling) -> bool:
    return change.past_call.ran and change.ruling.decision == "deny"


async def _backtest(host: Host, options: HostOptions, rules: _File, since: int, *, as_json: bool) -> _Totals:
    totals = _Totals()
    workspace = workspace_folder(host.project, options.workspace_path)
    async for result in host.audit.backtest(host.project, workspace, rules=rules, since=since):
        totals.add(result)
        if result.problem is not None:
            print_err(one_line(f"warning: Job {result.job_id} cannot be read: {result.problem}"))
        for change in result.otherwise:
            write_json(_to_json(change)) if as_json else _print_change(change)
    return totals


def _print_change(change: ChangedRuling) -> None:
    subject = f" {change.ruling.subject}" if change.ruling.subject not in ("", change.past_call.tool) else ""
    source = f"{change.run_id} step {change.past_call.step} {change.expert_key}"
    past_call, ruling = change.past_call, change.ruling
    words = f"{past_call.decision} -> {ruling.decision}: {past_call.tool}{subject} ({ruling.reason_text})"
    print_out(one_line(f"{source}: {words}"))


def _to_json(change: ChangedRuling) -> JsonObject:
    return {
        "jobId": change.job_id,
        "runId": change.run_id,
        "expertKey": change.expert_key,
        "step": change.past_call.step,
        "toolCallId": change.past_call.id,
        "skill": change.past_call.skill,
        "tool": change.past_call.tool,
        "was": change.past_call.decision,
        "ran": change.past_call.ran,
        "decision": change.ruling.decision,
        "rule": change.ruling.rule or None,
        "source": change.ruling.source or None,
        "subject": change.ruling.subject or None,
        "reason": change.ruling.reason or None,
    }


def _object(text: str) -> JsonObject:
    """Return the typed arguments. Raises UsageError."""
    try:
        value = read_json(text.encode())
    except ValueError as error:
        raise UsageError(
            f'the arguments are not JSON: {error}; write an object in quotes: \'{{"path": "a"}}\''
        ) from None
    if not isinstance(value, dict):
        raise UsageError('the arguments are not a JSON object: write one in quotes: \'{"path": "a"}\'')
    return value


# perstack trust


@click.command("trust")
@click.option("--show", is_flag=True, help="Only show what needs agreement, and what has changed.")
@click.option("--revoke", is_flag=True, help="Revoke all agreements for this folder.")
@click.option("--yes", is_flag=True, help="Agree without confirmation.")
@click.option(
    "--state", "of_state", is_flag=True, help="Trust what is waiting to run in the state, instead of the definition."
)
@place_options
def trust_command(show: bool, revoke: bool, yes: bool, of_state: bool, options: HostOptions) -> None:
    """Trust everything that perstack.toml starts, reads, writes, connects to and pays for, and its .env files.

    Without your agreement none of it has an effect, and no .env file is read unless you name it. With --state, trust a
    state folder that somebody else made, or that was copied here; without your agreement its Jobs are only shown.

    A running server, `mcp` or `acp`, then uses a changed definition. Exit status 0 if everything is trusted, 1 if not.
    """
    if sum((show, revoke, yes)) > 1:
        raise UsageError("--show, --revoke and --yes exclude each other: choose one")
    if of_state:
        _trust_state(options, show=show, revoke=revoke, yes=yes)
        return
    if options.storage is not None:
        raise UsageError("--storage names state: give --state with it")
    if revoke and options.config is None and options.find().config is None:
        raise UsageError("there is no perstack.toml here: change to the folder that is no longer to be trusted")
    place, store = options.find(), TrustStore.of_user()
    folder = place.require_path().parent.resolve()
    if revoke:
        was_there = store.remove(folder)
        print_err(f"no longer trusted: {one_line(str(folder))}" if was_there else "nothing was agreed to here")
        return
    declared = items_of(place)
    items = declared.items
    record = store.read(folder)
    agreed = frozenset[str]() if record is None else digests_of(record.items)
    _print(str(folder), items, record)
    if show:
        return
    if digests_of(items) <= agreed:
        print_err("all of this is already trusted")
        return
    if not yes and not _confirm():
        print_err("nothing was changed")
        sys.exit(1)
    store.agree(folder, items)
    if not declared.is_whole:
        print_err("files in other folders can now be read: run this command again to see what they declare")
        sys.exit(1)
    print_err("trusted")


def _trust_state(options: HostOptions, *, show: bool, revoke: bool, yes: bool) -> None:
    state, mark = options.look(_marked_state)
    path = one_line(str(state.path))
    if revoke:
        print_err(f"no longer trusted: {path}" if mark.remove() else "this state was not trusted")
        return
    has_mark = mark.validate()
    page = options.look(_unmarked_work)
    for line in page:
        print_out(one_line(line))
    if not page:
        print_err("this state is already trusted")
        return
    if show:
        print_err("these logs are not trusted; the rest of this state is" if has_mark else "this state is not trusted")
        return
    if mark.is_absent():
        print_err("there is no state here yet; state that your perstack creates here is trusted")
        return
    if not yes and not _confirm():
        print_err("nothing was changed")
        sys.exit(1)
    if not has_mark:
        mark.agree()
    options.look(lambda host: _mark_all(host, mark))
    print_err("trusted")


async def _marked_state(host: Host) -> tuple[LocalState, StateMark]:
    from perstack.state_guard.state_marks import StateMark

    state = host.storage.local_state
    if state is None:
        raise UsageError("the state is on a server: agree to its address with `perstack trust`")
    return state, StateMark(state)


async def _unmarked_work(host: Host) -> list[str]:
    """Return lines about the work that waits in unmarked state, or in unmarked logs of marked state; empty for none."""
    from perstack.diagnostics.waiting_work import waiting_work
    from perstack.state_guard.guarded_state import unmarked_owners

    _, mark = await _marked_state(host)
    owners = await unmarked_owners(host.storage) if mark.validate() else None
    return await waiting_work(host.storage.as_evidence(), owners) if owners is None or owners else []


async def _mark_all(host: Host, mark: StateMark) -> None:
    from perstack.state_guard.guarded_state import mark_logs

    await mark_logs(host.storage.as_evidence(), mark)


def _confirm() -> bool:
    if not sys.stdin.isatty():
        raise UsageError("without a terminal nobody can be asked: see it with --show, and agree with --yes")
    return confirm("Agree to all of this?")


def _print(folder: str, items: Sequence[TrustItem], record: TrustRecord | None) -> None:
    """Print a line for each item; `+` marks an item that is not agreed to."""
    agreed = frozenset[str]() if record is None else digests_of(record.items)
    print_out(f"{one_line(folder)}:")
    for item in items:
        is_agreed = item.digest in agreed
        place = item.place if is_agreed else describe_place(item, record)
        print_out(f"{' ' if is_agreed else '+'} {one_line(item.shown)}  ({one_line(place)})")
    if not items:
        print_out("  only texts and limits: nothing needs an agreement")
