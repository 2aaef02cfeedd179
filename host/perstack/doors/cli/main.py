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
from perstack.frontends.cli.commands import COMMANDS, COMPLETING, EXAMPLES, GROUPS
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
WIDEST_HELP = 120
"""Columns that help is as wide as at most, on a wider terminal."""


class LazyGroup(click.Group):
    """Lists all commands, imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"perstack.frontends.cli.{COMMANDS[cmd_name].module}")
        command = getattr(module, f"{cmd_name}_command")
        if not isinstance(command, click.Command):
            raise TypeError(f"{module.__name__}.{cmd_name}_command is not a command")
        _give_examples(command, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        first = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(first), listed.text) for name, listed in commands.items()])
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("`perstack COMMAND --help` shows a command's options, with examples.")


def _give_examples(command: click.Command, name: str) -> None:
    """The examples go to the end of the command's help, and of the help of those below it."""
    lines = "\n".join(f"  {line}" for line in EXAMPLES.get(name, ()))
    command.epilog = f"\b\nExamples:\n{lines}" if lines else None
    if isinstance(command, click.Group):
        for word, inner in command.commands.items():
            _give_examples(inner, f"{name} {word}")


def _say_usage(error: click.ClickException) -> None:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    from perstack.frontends.cli.usage import usage_error

    err(one_line(usage_error(error, sys.argv[1:])))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST_HELP})
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
    if COMPLETING in os.environ:
        from perstack.frontends.cli.completion import answer_shell

        answer_shell(perstack)
        return
    try:
        try:
            perstack.main(prog_name="perstack", standalone_mode=False)
        finally:
            flush_stdout()  # while it can still be said that it fails
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _say_usage(error)
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
