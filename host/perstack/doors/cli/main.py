"""The command group `perstack`, which imports a command's module when it is called, and the handling of every error."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import click

from perstack.core.base.text import one_line
from perstack.doors.cli.commands import COMMANDS, COMPLETE_VARIABLE, EXAMPLES
from perstack.doors.cli.terminal import (
    confirm,
    discard_stdout,
    finish_stderr,
    finish_stdout,
    guard_streams,
    is_attended,
    print_err,
)
from perstack.doors.shared.screen import is_terminal
from perstack.errors import DefinitionError, NotAgreed, PerstackError
from perstack.system.files import system_reason
from perstack.version import VERSION

# Hide the keys in the host's environment from the programs that it starts, which run as the same user. Linux shows a
# process's initial environment in /proc/PID/environ, and its memory, to all processes of its user. Other systems do
# not, and nothing is done there.

_PR_SET_DUMPABLE = 4
_ENV_START, _ENV_END = 47, 48  # indices after the name in /proc/PID/stat: bounds of the initial environment


def keep_environment_private() -> None:
    """Hide this process's environment from other processes of its user; `os.environ` stays.

    Call it before any thread.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError, ValueError, IndexError):
        _erase_initial_environment()
    with suppress(OSError, AttributeError, ImportError):
        _forbid_memory_access()


def _erase_initial_environment() -> None:
    """Overwrite the environment in /proc/self/environ with zeros, after moving each variable to other memory."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    if not 0 < start < end:
        return
    # setting a variable again moves it to new memory; the C library must not refer to what is erased below
    for name, value in os.environb.items():
        os.putenv(name, value)
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(bytes(end - start))


def _forbid_memory_access() -> None:
    """Mark this process as not dumpable: other processes of its user can then not read its memory."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


_FREE_TEXT_ARGUMENTS = (
    "query",
    "text",
    "value",
    "error",
    "fields",
    "args",
    "command",
    "tool",
)  # arguments that may be empty
MAX_HELP_COLUMNS = 120  # maximum columns of the help on a wide terminal


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        from perstack.doors.cli.plugin_commands import listed_commands

        return list(listed_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = _built_in_command(cmd_name) if cmd_name in COMMANDS else _plugin_command(cmd_name)
        if command is not None:
            _refuse_empty_values(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from perstack.doors.cli.plugin_commands import listed_commands, listed_groups

        width = max(map(len, listed_commands()))
        for title, commands in listed_groups().items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("`perstack COMMAND --help` shows a command's options, with examples.")


def _built_in_command(name: str) -> click.Command:
    module = importlib.import_module(f"perstack.doors.cli.{COMMANDS[name].module}")
    command = getattr(module, f"{name}_command")
    if not isinstance(command, click.Command):
        raise TypeError(f"{module.__name__}.{name}_command is not a command")
    _set_examples(command, name)
    return command


def _plugin_command(name: str) -> click.Command | None:
    from perstack.doors.cli.plugin_commands import find_command, import_command

    found = find_command(name)
    if found is None:
        return None
    command = import_command(found)
    if found.entry.examples:
        command.epilog = _examples_text(found.entry.examples)
    return command


def _examples_text(examples: Sequence[str]) -> str:
    lines = "\n".join(f"  {line}" for line in examples)
    return f"\b\nExamples:\n{lines}"


def _set_examples(command: click.Command, name: str) -> None:
    command.epilog = _examples_text(EXAMPLES[name]) if name in EXAMPLES else None
    if isinstance(command, click.Group):
        for subcommand, inner in command.commands.items():
            _set_examples(inner, f"{name} {subcommand}")


def _refuse_empty_values(command: click.Command) -> None:
    """Refuse empty values: a script whose variable is unset must not start another Job or use the latest."""
    for option in command.params:
        is_flag = isinstance(option, click.Option) and option.is_flag
        if not is_flag and option.name not in _FREE_TEXT_ARGUMENTS and option.callback is None:
            option.callback = _not_empty
    for subcommand in command.commands.values() if isinstance(command, click.Group) else ():
        _refuse_empty_values(subcommand)


def _not_empty(context: click.Context, option: click.Parameter, value: object) -> object:
    values = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
    is_typed = context.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
    if is_typed and "" in values:
        raise click.BadParameter("it is empty: give a value, or leave it out", context, option)
    return value  # pyright: ignore[reportUnknownVariableType]  # isinstance narrowed an object


def _print_usage_error(error: click.ClickException) -> None:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    from perstack.doors.cli.usage_errors import usage_error

    print_err(one_line(usage_error(error, sys.argv[1:])))


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MAX_HELP_COLUMNS},
)
@click.version_option(VERSION, prog_name="perstack")
@click.pass_context
def perstack(context: click.Context) -> None:
    """Run Experts: small LLM agents declared in perstack.toml, with state that is never lost.

    Exit status: 0 completed, 1 failed, 2 wrong usage or definition, 3 waiting for a person,
    4 a limit: steps, or the budget, 75 paused for a provider's rate limit, 130 interrupted.
    """
    if context.invoked_subcommand is None:
        from perstack.doors.cli.overview import show_overview

        show_overview()


_MAX_AGREEMENTS = 3  # one for the definition, one for the state, one for a change during a question


def _run_command() -> None:
    """Run the command; if it needs an agreement, ask for it at a terminal and run the command again.

    A command checks its agreements before it does anything, so nothing is done twice.
    """
    for _ in range(_MAX_AGREEMENTS):
        try:
            perstack.main(prog_name="perstack", standalone_mode=False)
            return
        except NotAgreed as error:
            if "--no-input" in sys.argv or not (is_terminal(sys.stdin) and is_attended()):
                raise
            for line in (error.message, *error.page):
                print_err(one_line(line))
            if not confirm("Agree to all of this?"):
                raise
            error.agree()
    perstack.main(prog_name="perstack", standalone_mode=False)


def run_command_line() -> None:
    """Run the command line, and end the process with an exit status of EXIT_CODES."""
    keep_environment_private()
    gc.freeze()  # imported objects stay, so collections need not visit them
    guard_streams()
    if COMPLETE_VARIABLE in os.environ:
        from perstack.doors.cli.completion import answer_shell

        answer_shell(perstack)
        return
    try:
        try:
            _run_command()
        finally:
            finish_stdout()  # here, where a failure can still be reported
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _print_usage_error(error)
        sys.exit(2)
    except click.Abort:
        sys.exit(130)
    except DefinitionError as error:
        for problem in error.problems:
            print_err(one_line(f"{problem.severity}: {problem}"))
        sys.exit(error.exit_code)
    except PerstackError as error:
        from perstack.doors.shared.next_step_phrases import cli_phrase

        print_err(one_line(f"error: {error.text_for(cli_phrase)}"))
        sys.exit(error.exit_code)
    except OSError as error:
        discard_stdout()  # writing the rest at exit would fail again
        if error.errno != errno.EPIPE:  # no message if the reader stopped early
            target = error.filename or "the output cannot be written"
            print_err(one_line(f"error: {target}: {system_reason(error)}"))
        sys.exit(1)
    finally:
        finish_stderr()
        # everything is written: another Ctrl-C must not cause a traceback
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    run_command_line()
