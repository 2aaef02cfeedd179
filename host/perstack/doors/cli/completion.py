"""Shell completion of commands, options and stored names, and the command `perstack completion`.

Click parses the line and knows each shell's protocol. The scripts are our own, since completed values may come from
untrusted files: they run only `perstack` of the PATH, evaluate none of its output, and hide its errors.
"""

from __future__ import annotations

import os
import re
import signal
from types import FrameType

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    split_arg_string,
)

from perstack.doors.cli.commands import COMPLETE_VARIABLE
from perstack.doors.cli.completion_values import StoredName, kind_of
from perstack.doors.cli.plugin_commands import listed_commands
from perstack.doors.cli.terminal import print_out, write_bytes
from perstack.doors.shared.text import shorten

MAX_WAIT_S = 20  # maximum seconds that the user waits at the prompt; then no completion is offered

_PLAIN = re.compile(r"[\w@.~/+:,=-]+", re.ASCII)  # text that every shell takes without quotes
_DESCRIPTION_CELLS = 60  # maximum cells of a description

_BASH = """\
# completion of perstack for bash
%(complete_func)s() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            plain,*) COMPREPLY+=("${line#plain,}") ;;
            file,*) compopt -o default 2>/dev/null ;;
            dir,*) compopt -o dirnames 2>/dev/null ;;
        esac
    done < <(
        _PERSTACK_LINE="${COMP_LINE:0:COMP_POINT}" _PERSTACK_WORD="${COMP_WORDS[COMP_CWORD]}" \\
            %(complete_var)s=bash_complete command %(prog_name)s 2>/dev/null
    )
}
complete -o nosort -F %(complete_func)s %(prog_name)s 2>/dev/null ||
    complete -F %(complete_func)s %(prog_name)s
"""

_ZSH = """\
#compdef %(prog_name)s
# completion of perstack for zsh
%(complete_func)s() {
    local -a words_alone described answer
    local kind value about
    answer=("${(@f)$(COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \\
        %(complete_var)s=zsh_complete command %(prog_name)s 2>/dev/null)}")
    for kind value about in "${answer[@]}"; do
        case $kind in
            plain)
                if [[ $about == _ ]]; then words_alone+=("$value"); else described+=("$value:$about"); fi ;;
            file) _files ;;
            dir) _files -/ ;;
        esac
    done
    if (( $#described )); then _describe -V perstack described; fi
    if (( $#words_alone )); then compadd -V perstack -a words_alone; fi
}
if [[ $funcstack[1] == %(complete_func)s ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""

_FISH = """\
# completion of perstack for fish
function %(complete_func)s
    set -l answer (COMP_WORDS=(commandline -cp) COMP_CWORD=(commandline -t) \\
        %(complete_var)s=fish_complete command %(prog_name)s 2>/dev/null)
    for line in $answer
        set -l parts (string split -m 1 , -- $line)
        switch $parts[1]
            case dir
                __fish_complete_directories (commandline -ct)
            case file
                __fish_complete_path (commandline -ct)
            case plain
                printf '%%s\\n' $parts[2]
        end
    end
end
complete --no-files --keep-order --command %(prog_name)s --arguments '(%(complete_func)s)'
"""


class _Bash(BashComplete):
    source_template = _BASH

    @staticmethod
    def _check_version() -> None:
        """Do nothing: the script itself avoids features that an older bash lacks."""

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["_PERSTACK_LINE"]
        words = split_arg_string(line)[1:]
        if not words or line[-1:].isspace():
            return words, ""
        return words[:-1], words[-1]

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return the part left to insert: bash starts a new word after `=` and `:`, and replaces only that."""
        items = super().get_completions(args, incomplete)
        word = os.environ.get("_PERSTACK_WORD", "")
        typed = incomplete.partition("=")[2] if incomplete.startswith("--") and "=" in incomplete else incomplete
        skipped = len(typed) if word in ("=", ":") else max(0, len(typed) - len(word))
        if typed[:skipped].endswith("@"):
            skipped -= 1  # @ starts a word too, but is replaced with it
        return [CompletionItem(item.value[skipped:], item.type) if skipped else item for item in items]


class _WholeWord(ShellComplete):
    """A shell that replaces the whole word, including its `--option=`."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        items = super().get_completions(args, incomplete)
        option, sign, _ = incomplete.partition("=")
        if not (sign and option.startswith("--")):
            return items
        return [CompletionItem(f"{option}={item.value}", item.type, item.help) for item in items]


class _Zsh(_WholeWord, ZshComplete):
    source_template = _ZSH

    @property
    def func_name(self) -> str:
        """The name of the function, equal to the file's name in `fpath`: zsh calls it from the second use on."""
        return f"_{self.prog_name}"


class _Fish(_WholeWord, FishComplete):
    source_template = _FISH


SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


class _CompletingGroup(click.Group):
    """A group whose commands have parameters that complete stored names."""

    def __init__(self, inner: click.Group) -> None:
        super().__init__(inner.name, params=inner.params)
        self._inner = inner

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self._inner.list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = self._inner.get_command(ctx, cmd_name)
        if isinstance(command, click.Group):
            return _CompletingGroup(command)
        for param in () if command is None else command.params:
            kind = kind_of(cmd_name, param)
            if kind is not None:
                param.type = StoredName(kind)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        if ctx.parent is not None:
            return super().shell_complete(ctx, incomplete)
        # completing command names imports no command
        items = [
            CompletionItem(name, help=text) for name, text in listed_commands().items() if name.startswith(incomplete)
        ]
        return items or super().shell_complete(ctx, incomplete)


def answer_shell(cli: click.Group) -> None:
    """Print the completions of a shell's line. After any error, print nothing."""
    previous_handler = signal.signal(signal.SIGALRM, _exit_on_timeout)
    signal.alarm(MAX_WAIT_S)
    try:
        lines = _completion_lines(cli)
    except Exception:  # noqa: BLE001  # at a prompt a traceback would only disturb
        return
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous_handler)
    write_bytes("".join(f"{line}\n" for line in lines).encode())


def _exit_on_timeout(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)


def _completion_lines(cli: click.Group) -> list[str]:
    shell = SHELLS[os.environ[COMPLETE_VARIABLE].removesuffix("_complete")]
    completer = shell(_CompletingGroup(cli), {}, "perstack", COMPLETE_VARIABLE)
    items = completer.get_completions(*completer.get_completion_args())
    return [completer.format_completion(_shorten_help(item)) for item in items if _is_insertable(item)]


def _is_insertable(item: CompletionItem[str]) -> bool:
    return item.type != "plain" or _PLAIN.fullmatch(item.value) is not None


def _shorten_help(item: CompletionItem[str]) -> CompletionItem[str]:
    return CompletionItem(item.value, item.type, shorten(item.help, _DESCRIPTION_CELLS) if item.help else None)


@click.command("completion")
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion_command(shell: str) -> None:
    """Print a script for shell completion of commands, options, Experts, Jobs, tasks and checkpoints.

    The shell reads the script when it starts. Tab then asks `perstack` for the matching words.
    """
    print_out(SHELLS[shell](click.Group(), {}, "perstack", COMPLETE_VARIABLE).source().rstrip("\n"))
