"""Show the overview of `perstack` without a command: the first commands, the state of this folder, the next step."""

from __future__ import annotations

from perstack.core.base.text import count
from perstack.core.jobs.summary import JobSummary
from perstack.definition_files import load_usable
from perstack.doors.cli.options import HostOptions
from perstack.doors.cli.plugin_commands import listed_commands
from perstack.doors.cli.terminal import print_out
from perstack.doors.shared.next_step_phrases import cli_phrase
from perstack.errors import DefinitionError, PerstackError
from perstack.host import Host

_FIRST_COMMANDS = ("init", "run", "start", "jobs", "log", "inbox")


def show_overview() -> None:
    """Print the overview. It names a definition or state that cannot be read, instead of failing."""
    print_out("perstack runs Experts: small LLM agents declared in perstack.toml.\n")
    texts = listed_commands()
    for name in _FIRST_COMMANDS:
        if name in texts:
            print_out(f"  {name.ljust(max(map(len, _FIRST_COMMANDS)))}  {texts[name]}")
    state, step = _state()
    print_out(f"\n{state}\nNext: {step}\nAll commands: perstack --help")


def _state() -> tuple[str, str]:
    """Return the state of this folder and the next step."""
    options = HostOptions()
    path = options.find().config
    if path is None:
        return "There is no perstack.toml here.", "perstack init, or perstack demo to watch Experts at work"
    try:
        experts = load_usable(path).project.experts
    except DefinitionError as error:
        return f"{path} has {count(len(error.problems), 'problem')}.", "perstack validate"
    summary = f"{path} declares {count(len(experts), 'Expert')}"
    try:
        waiting, stopped = options.look(_open_work)
    except PerstackError as error:
        return f"{summary}; its Jobs cannot be read: {error.text_for(cli_phrase)}.", "perstack doctor"
    if waiting:
        verb = "waits" if waiting == 1 else "wait"
        summary = f"{summary}; {count(waiting, 'question')} {verb} for you"
    if stopped is not None:
        step = f"perstack resume {stopped.id}"
        summary = f"{summary}; Job {stopped.id} of {stopped.expert_key} was interrupted"
        return f"{summary}.", f"perstack inbox, then {step}" if waiting else step
    if waiting:
        return f"{summary}.", "perstack inbox"
    return f"{summary}; nothing waits for you.", "perstack start, or perstack run EXPERT QUERY"


async def _open_work(host: Host) -> tuple[int, JobSummary | None]:
    """Return the number of open questions, and the latest Job if it was interrupted, such as by a kill."""
    latest = (await host.jobs.list(limit=1)).jobs
    is_interrupted = bool(latest) and latest[0].status == "stoppedByInterrupt" and latest[0].closed is None
    stopped = latest[0] if is_interrupted and latest[0].pause_reason != "rate_limit" else None
    return len(await host.inbox()), stopped
