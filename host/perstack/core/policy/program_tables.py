"""Which programs run others, and which of their arguments make them."""

from __future__ import annotations

from collections.abc import Mapping


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHELLS = _words("sh bash dash ash ksh mksh")
"""Those whose scripts are read."""

OTHER_SHELLS = _words("zsh yash fish csh tcsh rbash rsh elvish nu pwsh powershell busybox toybox")

RUNNERS = _words(
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
"""Those that run what their arguments name, or what somebody types."""

_NODE = r"-(?:[a-z]*[ep][a-z]*|r)|--(?:eval|print|require|import|loader|experimental-loader)(?:=.*)?"
_AWK = r".*(?:system|getline|\||@load|@include).*|-[lif].*|--(?:load|include|file).*"
_MAKE = r"SHELL=.*|\.SHELLFLAGS=.*|-E.*|--eval.*"
_FD = r"-x|-X|--exec.*|--exec-batch.*"
_GCC = r"-wrapper|-fplugin.*|-specs.*"

INTERPRETERS: Mapping[str, str] = {
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
"""Which of an interpreter's arguments are programs."""

READ_INPUT = _words("python pypy ipython perl ruby node nodejs php lua luajit julia groovy deno bun sqlite3")
"""Those that run what comes in, if no argument names a file."""

TRAPS: Mapping[str, str] = {
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
    "set": r"-[a-zA-Z]*[ak].*|.*allexport|.*keyword",
    "shopt": r".*(?:aliases|promptvars).*",
    "export": r"(?!(?:CI|LANG|LC_ALL|TZ|NO_COLOR|FORCE_COLOR|NODE_ENV|TERM)=).*=.*|-[a-z]*[fn].*",
    "declare": r".*",
    "typeset": r".*",
    "readonly": r".*=.*",
    "local": r".*=.*",
}
"""Arguments with which a program runs another one that they name, or changes which one is run."""

SEEN_THROUGH = _words(
    """
    npx bunx pnpx uvx uv poetry pipx pdm hatch rye npm pnpm yarn bun docker podman kubectl nix direnv mise asdf bundle
    rake cargo go dotenv op aws-vault conda mamba
    """
)
"""Those that plainly run what comes after: rules that deny it, or ask about it, hold here as well."""
