"""`perstack`: the commands, and what every one of them does with an error.

Each command's module is imported when it is called, so that `perstack run` pays for itself only.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import signal
import sys

import click

from perstack.core.plain import one_line
from perstack.errors import DefinitionError, PerstackError
from perstack.frontends.cli.privacy import keep_environment_private
from perstack.frontends.cli.terminal import err, flush_stdout, guard_streams
from perstack.version import VERSION

EXIT_CODES = {
    0: "completed",
    1: "failed",
    2: "wrong usage or definition",
    3: "waiting for a person",
    4: "a limit: steps, or the budget",
    130: "interrupted",
}

_COMMANDS = {
    "run": ("run", "Run an Expert: a new Job, or with --continue the next Run of one."),
    "resume": ("resume", "Continue a Job, or iterations, after a crash, Ctrl-C, an error or a limit."),
    "iterate": ("iterate", "Run an Expert again and again, until what it makes is good enough."),
    "iterations": ("iterations", "List what was iterated, newest first."),
    "report": ("report", "Show the best of some iterations, and how the others did."),
    "inbox": ("inbox", "List what waits for you: every open question of every Job and task."),
    "answer": ("answer", "Answer a question, and let its Job or task continue."),
    "task": ("task", "Keep tasks that agents pause and resume, from whichever process."),
    "signal": ("signal", "Tell a Job or a task of an event from outside."),
    "log": ("log", "Show what happened in a Job, the latest one by default."),
    "jobs": ("jobs", "List Jobs, newest first."),
    "cancel": ("cancel", "Stop a Job, wherever it is driven; it can be resumed."),
    "delete": ("delete", "Remove Jobs for good."),
    "prune": ("prune", "Remove all Jobs of a kind for good, such as those of last month."),
    "cost": ("cost", "Add up what Jobs have spent."),
    "verify": ("verify", "Check a Job's logs for edits, loss and damage."),
    "replay": ("verify", "Drive a recorded Job again, without a model, and compare."),
    "receipt": ("receipt", "Write a statement over a Job's logs, to be kept elsewhere."),
    "export": ("export", "Write a Job in another form."),
    "validate": ("validate", "Check perstack.toml without running anything."),
    "expert": ("expert", "Show exactly what an Expert's model is sent, and what it costs."),
    "permissions": ("permissions", "Try permission rules on a call, or on all calls that were made."),
    "install": ("install", "Ask every skill what it offers, so that runs need not wait for it."),
    "login": ("login", "Log in to the server of a skill, for all later Jobs."),
    "logout": ("login", "Forget a login."),
    "trust": ("trust", "Agree to what perstack.toml has executed, and to the addresses that .env names."),
    "mcp": ("mcp", "Serve Experts and Jobs to an editor or an agent over MCP."),
    "acp": ("acp", "Be an agent for an editor that speaks the Agent Client Protocol."),
    "chaos": ("chaos", "Kill an Expert's processes again and again, and say what was lost or done twice."),
    "sandbox": ("sandbox", "Run a command as the exec tool of an Expert would."),
    "doctor": ("doctor", "Say where programs of tools can run on this machine."),
    "plugins": ("plugins", "List the plugins that are installed, and what they bring."),
}


class LazyGroup(click.Group):
    """Lists all commands, imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"perstack.frontends.cli.{_COMMANDS[cmd_name][0]}")
        command = getattr(module, f"{cmd_name}_command")
        if not isinstance(command, click.Command):
            raise TypeError(f"{module.__name__}.{cmd_name}_command is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in _COMMANDS:
            from difflib import get_close_matches

            near = get_close_matches(name, _COMMANDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else " `perstack --help` lists the commands."
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="perstack")
def perstack() -> None:
    """Run Experts: small LLM agents declared in perstack.toml, with state that is never lost.

    Exit status: 0 completed, 1 failed, 2 wrong usage or definition, 3 waiting for a person,
    4 a limit: steps, or the budget, 130 interrupted.
    """


def entry() -> None:
    """The console script. Ends the process with the exit status of EXIT_CODES."""
    keep_environment_private()
    gc.freeze()  # what is imported stays: no collection need look at it
    guard_streams()
    try:
        try:
            perstack.main(standalone_mode=False)
        finally:
            flush_stdout()  # while it can still be said that it fails
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except click.Abort:
        sys.exit(130)
    except DefinitionError as error:
        for problem in error.problems:
            err(one_line(f"{problem.severity}: {problem}"))
        sys.exit(error.exit_code)
    except PerstackError as error:
        from perstack.frontends.cli.next_steps import said

        err(one_line(f"error: {error.said(said)}"))
        sys.exit(error.exit_code)
    except OSError as error:
        # what is left of the output would fail once more at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno != errno.EPIPE:  # who has seen enough need not be told
            place = error.filename or "the output cannot be written"
            err(one_line(f"error: {place}: {(error.strerror or str(error)).lower()}"))
        sys.exit(1)
    finally:
        # all is written: one more Ctrl-C must not make a traceback of the last moments
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    entry()
