"""Recognise programs that run other programs, by name and arguments: a rule for their names is not enough."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from perstack.core.permissions.shell_syntax import Part, Redirect, ShellCommand, split_names

# The tables name programs that run others, and the arguments that make them do so.


SHELLS = split_names("sh bash dash ash ksh mksh")

OTHER_SHELLS = split_names(
    """
    zsh yash fish csh tcsh rbash rsh elvish nu pwsh powershell busybox toybox ksh93 rksh rksh93 lksh oksh pdksh posh
    hush sash osh ysh xonsh es rc bash-static zsh-static mksh-static ksh2020
    """
)

RUNNERS = split_names(  # programs that run what their arguments name or what a person types
    """
    env xargs sudo doas su runuser pkexec nohup nice ionice timeout gtimeout time setsid stdbuf unbuffer chroot unshare
    nsenter flock watch entr parallel strace ltrace gdb lldb valgrind perf script expect ssh sshpass mosh chrt taskset
    numactl prlimit setpriv capsh systemd-run at batch crontab xvfb-run faketime tmux screen firejail bwrap proot
    fakeroot caffeinate arch setarch linux32 linux64 start-stop-daemon run-parts daemonize rlwrap ssh-agent
    dbus-run-session dbus-launch catchsegv eatmydata cpulimit chronic ifne
    vi vim nvim vimdiff view ex ed emacs osascript tclsh wish socat nc ncat netcat ld.so ld-linux-x86-64.so.2
    eval source . exec command builtin trap alias coproc enable hash bind complete compgen mapfile readarray fc let
    """
)

_NODE = r"-(?:[a-z]*[ep][a-z]*|r)|--(?:eval|print|require|import|loader|experimental-loader)(?:=.*)?"
_AWK = r".*(?:system|getline|\||@load|@include).*|-[lif].*|--(?:load|include|file).*"
_MAKE = r"SHELL=.*|\.SHELLFLAGS=.*|-E.*|--eval.*"
_FD = r"-x|-X|--exec.*|--exec-batch.*"
_GCC = r"-wrapper|-fplugin.*|-specs.*"

INTERPRETERS: Mapping[str, str] = {  # patterns of interpreters' arguments that are programs
    "python": r"-[A-Za-z]*c.*",
    "pypy": r"-[A-Za-z]*c.*",
    "ipython": r"-c.*",
    "perl": r"-[A-Za-z0-9]*[eE].*",
    "ruby": r"-[A-Za-z0-9]*e.*|-r.*",
    "node": _NODE,
    "nodejs": _NODE,
    "deno": r"eval|repl|-",
    "bun": r"-e|--eval|-p|--print|repl",
    "php": r"-[a-zA-Z]*[rBREF].*",
    "lua": r"-[a-z]*e.*",
    "luajit": r"-[a-z]*e.*",
    "R": r"-e.*",
    "Rscript": r"-e.*",
    "julia": r"-[eEL].*|--eval.*|--print.*",
    "groovy": r"-[a-z]*e.*",
    "scala": r"-e.*",
    "elixir": r"-e.*|--eval",
    "erl": r"-eval|-run|-s",
    "sqlite3": r".*\.(?:shell|system|load)\b.*|-cmd|-init",
    "psql": r".*\\!.*",
}

AWKS = split_names("awk gawk mawk nawk")

INPUT_INTERPRETERS = split_names(
    "python pypy ipython perl ruby node nodejs php lua luajit julia groovy deno bun sqlite3"
)
"""Interpreters that run their standard input if no argument names a file."""

# patterns of arguments that make a program run another one, or change which one it runs
RISKY_ARGUMENTS: Mapping[str, str] = {
    "find": r"-(?:exec|execdir|ok|okdir)",
    "fd": _FD,
    "fdfind": _FD,
    "git": r"-c.*|--config-env.*|--exec-path=.*|--upload-pack.*|--receive-pack.*|--exec(?:=.*)?|-x|--extcmd.*|-O.*"
    r"|--open-files-in-pager.*|bisect|submodule|filter-branch|difftool|mergetool|.*ext::.*|--ext-diff|--textconv|-u.*",
    "tar": r"--checkpoint-action.*|--to-command.*|-I.*|--use-compress-program.*|--info-script.*|--new-volume-script.*"
    r"|--rsh-command.*|--rmt-command.*|-F.*|-[a-zA-Z]*[IF]",
    "rsync": r"-[a-zA-Z]*e.*|--rsh.*|--rsync-path.*",
    "scp": r"-S.*|-o.*",
    "sftp": r"-S.*|-o.*|-b.*",
    "man": r"-P.*|--pager.*|-H.*|--html.*",
    "less": r"\+.*",
    "more": r"\+.*",
    "zip": r"-T.*|--unzip-command.*|-[a-zA-Z]*T[a-zA-Z]*",
    "sort": r"--compress-program.*",
    "split": r"--filter.*",
    "tcpdump": r"-z.*",
    "make": _MAKE,
    "gmake": _MAKE,
    "wget": r"--use-askpass.*|-e.*|--execute.*",
    "curl": r"-K.*|--config.*",
    "gcc": _GCC,
    "cc": _GCC,
    "go": r"-exec.*|-toolexec.*",
    "cargo": r"--config.*",
    "sed": r"(?:.*[;{}\n!/\d$])?\s*e(?:\s.*)?|s(.).*\1.*\1[a-zA-Z0-9]*[em].*|.*[;{}\n]\s*s(.).*\2.*\2\w*e.*",
    "awk": _AWK,
    "gawk": _AWK,
    "mawk": _AWK,
    "nawk": _AWK,
    "printf": r"-v.*",
    "read": r".*\[.*",
    "unset": r".*\[.*",
    "test": r"-[vR]",
    "[": r"-[vR]",
    "wait": r"-[a-z]*p.*",
    "jobs": r"-[a-z]*x.*",
    "set": r"-[a-zA-Z]*[ak].*|.*allexport|.*keyword",
    "shopt": r".*(?:aliases|promptvars).*",
    "export": r"(?!(?:CI|LANG|LC_ALL|TZ|NO_COLOR|FORCE_COLOR|NODE_ENV|TERM)=).*=.*|-[a-z]*[fn].*",
    "declare": r".*",
    "typeset": r".*",
    "readonly": r".*=.*",
    "local": r".*=.*",
}

WRAPPERS = split_names(
    """
    npx bunx pnpx uvx uv poetry pipx pdm hatch rye npm pnpm yarn bun docker podman kubectl nix direnv mise asdf bundle
    rake cargo go dotenv op aws-vault conda mamba
    """
)
"""Wrappers that plainly run the command after them: rules that deny that command or ask about it apply."""


SETS_VARIABLES = "it sets variables that can change which program runs"

_MAX_WORDS = 60
_MAX_WORD_CHARS = 2_000
_MAX_DEPTH = 6
_VERSION = re.compile(r"python[\d.]*|pypy[\d.]*|perl[\d.]+|ruby[\d.]+|lua[\d.]+|php[\d.]+|g?awk[\d.]+|gcc-\d+")
_OPTIONS = re.compile(r"-[cefluvxnC]+|\+[efuvxnC]+|[-+][efuvxnC]*o")
_HARMLESS_SHELL_OPTIONS = frozenset(
    {"errexit", "nounset", "noglob", "noclobber", "pipefail", "posix", "xtrace", "verbose"}
)
"""Shell options, and names after `-o`, that change neither how a script is parsed nor which program runs."""
_SYSTEM_PROGRAM = re.compile(r"(?:(?:/usr(?:/local)?|/opt/homebrew)?/bin/)?[^/]+")
"""Program found through PATH or in a folder that only administrators write. Any other, such as `./sh`, is unknown."""
_INFO_OPTIONS = frozenset({"--version", "-V", "--help", "-h", "-v"})


def parts_of(command: ShellCommand, depth: int = 0) -> Iterator[Part]:
    """Yield a simple command and the commands that it runs, as far as its words tell."""
    words = command.known
    if command.is_wrapper:  # it comes from a guess, so what is found in it is a guess, too
        yield from _as_guesses(parts_of(replace(command, is_wrapper=False), depth))
        return
    if not words:
        yield replace(command, reason="which program it runs is known when it runs")
        return
    name = program_name(words[0])
    if depth > _MAX_DEPTH:
        yield replace(command, reason=f"{name} runs other programs")
        return
    script = _script_argument(name, command) if name in SHELLS else None
    if script is not None and _SYSTEM_PROGRAM.fullmatch(words[0]):
        yield replace(command, is_wrapper=True)
        if command.assignments:
            yield replace(command, reason=SETS_VARIABLES)
        for part in _parts_of_script(script, is_bash=name == "bash"):
            inner = _with_unknown_folder(part) if command.has_unknown_folder else part
            yield from parts_of(inner, depth + 1) if isinstance(inner, ShellCommand) else (inner,)
        return
    reason = _reason_to_ask(name, command)
    yield replace(command, reason=reason or command.reason, is_by_option=_is_by_option(name, words[1:]))
    if reason or name in WRAPPERS:
        yield from _commands_in_arguments(words, depth)


def _parts_of_script(script: str, *, is_bash: bool = False) -> Iterator[Part]:
    from perstack.core.permissions.shell import parts_of_script  # imported late, because few calls need the grammar

    return iter(parts_of_script(script, is_bash=is_bash))


def _with_unknown_folder(part: Part) -> Part:
    from perstack.core.permissions.shell import with_unknown_folder  # imported late, because few calls need the grammar

    return with_unknown_folder(part)


def redirects_of(words: Sequence[str], depth: int = 0) -> Iterator[Redirect]:
    """Yield the files that shells open themselves, for shells at any position, as far as scripts can be parsed."""
    if depth > _MAX_DEPTH:
        return
    for index in range(min(len(words), _MAX_WORDS)):
        name = program_name(words[index])
        script = _script_argument(name, ShellCommand(tuple(words[index:]))) if name in SHELLS else None
        for part in _parts_of_script(script, is_bash=name == "bash") if script is not None else ():
            if isinstance(part, Redirect):
                yield part
            elif isinstance(part, ShellCommand):
                yield from redirects_of(part.known, depth + 1)


def program_name(word: str) -> str:
    """Return the name of a program without its folder and without a version such as that of `python3.12`."""
    name = word.rpartition("/")[2]
    if _VERSION.fullmatch(name):
        return re.sub(r"[\d.-]+$", "", name) or name
    return name


def _script_argument(name: str, command: ShellCommand) -> str | None:
    """Return the script that a shell gets with `-c`; None without `-c`, or with an option that is not understood."""
    words = list(command.words[1:])
    has_script = False
    while words and (words[0] or "").startswith(("-", "+")):
        option = words.pop(0) or ""
        if option in ("-", "--"):
            break
        if option.startswith("--"):
            if option in ("--norc", "--noprofile", "--posix", "--login"):
                continue
            return None
        if not _OPTIONS.fullmatch(option):
            return None
        has_script = has_script or (option.startswith("-") and "c" in option)
        if option.endswith("o") and (not words or words.pop(0) not in _HARMLESS_SHELL_OPTIONS):
            return None
    return words[0] if has_script and words else None


def _reason_to_ask(name: str, command: ShellCommand) -> str:
    """Return why a program may run other programs; empty if it does not."""
    words = command.known[1:]
    if name in SHELLS or name in OTHER_SHELLS:
        return _reason_of_shell(name, words, is_known=command.is_known)
    if name in RUNNERS:
        return "" if command.is_known and _runs_nothing(name, words) else f"{name} runs other programs"
    if name in INTERPRETERS:
        return _reason_of_interpreter(name, words, is_known=command.is_known)
    pattern = RISKY_ARGUMENTS.get(name)
    if pattern is None:
        return ""
    argument = next((word for word in words if _matches_or_is_long(pattern, word)), None)
    if argument is not None:
        return f"{name} may run another program because of {argument[:60]}"
    if command.is_known or (name == "printf" and words and not words[0].startswith("-")):
        return ""
    return f"what {name} is given is known when it runs"


def _is_by_option(name: str, words: Sequence[str]) -> bool:
    """Return True if only options make the program run others: a rule that names these options can allow it."""
    pattern = INTERPRETERS.get(name) or RISKY_ARGUMENTS.get(name)
    if pattern is None:
        return False
    arguments = [word for word in words if _matches_or_is_long(pattern, word)]
    return bool(arguments) and all(word.startswith(("-", "+")) for word in arguments)


def _matches_or_is_long(pattern: str, word: str) -> bool:
    """Match a word; a long word counts as a match, because matching it costs too much."""
    return len(word) > _MAX_WORD_CHARS or re.fullmatch(pattern, word, re.DOTALL) is not None


def _reason_of_interpreter(name: str, words: Sequence[str], *, is_known: bool) -> str:
    """Return why an interpreter may run other programs; empty if it runs a script file only."""
    if any(_matches_or_is_long(INTERPRETERS[name], word) for word in words):
        return f"{name} is given a program as an argument"
    if any(not word.startswith("-") for word in words) and "-" not in words:
        return ""
    if not is_known:
        return f"what {name} is given is known when it runs"
    if name not in INPUT_INTERPRETERS or _INFO_OPTIONS.intersection(words):
        return ""
    return f"{name} runs what it reads from its input"


def _reason_of_shell(name: str, words: Sequence[str], *, is_known: bool) -> str:
    if name in SHELLS and words and not words[0].startswith(("-", "+")):
        return ""  # a script file, like any program that is called by its name
    if is_known and words and _INFO_OPTIONS.issuperset(words):
        return ""
    return f"{name} runs commands that are not read"


def _runs_nothing(name: str, words: Sequence[str]) -> bool:
    if name == "exec":
        return not words
    return name == "command" and bool(words) and words[0] in ("-v", "-V")


def _commands_in_arguments(words: Sequence[str], depth: int) -> Iterator[Part]:
    """Yield possible commands among the arguments, so that rules that deny them or ask about them apply."""
    for index in range(1, min(len(words), _MAX_WORDS)):
        rest = tuple(words[index:])
        yield ShellCommand(rest, is_wrapper=True)
        if program_name(rest[0]) in SHELLS:
            yield from _as_guesses(parts_of(ShellCommand(rest), depth + 1))
        if re.search(r"[\s;&|]", words[index]):
            yield from _as_guesses(
                inner_part
                for part in _parts_of_script(words[index])
                if isinstance(part, ShellCommand)
                for inner_part in parts_of(part, depth + 1)
            )


def _as_guesses(parts: Iterator[Part]) -> Iterator[Part]:
    for part in parts:
        if isinstance(part, ShellCommand):
            yield replace(part, is_wrapper=True, reason="")
        elif isinstance(part, Redirect):
            yield replace(part, is_guess=True)
