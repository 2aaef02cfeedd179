"""Scripts that look harmless to a rule checker but run something else, and the shells that run them.

Each script comes from a grammar of constructs that shells read differently, with texts that become programs if a quote,
a brace or a line end is misread; most are then edited. Each run has its own folder, in which every program that no rule
allows only leaves a mark.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

ALLOWED = ("echo", "ls", "cat", "true", "false", "test", "[", "printf", "read", "cd", "exit", "shift", "set", "unset",
    "return", "wait", "pwd", ":", "fun", "export", "break")  # fmt: skip
"""Programs that the rules allow with any arguments. Without `kill`, since tests may run as root."""

_ELSE = (
    "ev", "a", "b", "x", "y", "f", "in", "do", "done", "fi", "then", "{", "}", "!", "[[", "]]", "((", "EOF", "time",
    "function", "select", "coproc", "[a]", "a]", "-l", "é", "à", "\u00a0ev",
)  # fmt: skip
_PROGRAMS = ("ls", "cat", "true", "false", "test", "printf", "pwd", "echo", "fun")
_SECONDS = 2

_EVIL = (
    "./ev", "ev", "ev x", "; ./ev", ";./ev;", "$(./ev)", "`./ev`", "| ./ev", "\n./ev\n", ")./ev", "} ./ev",
    "<(./ev)", "a[$(./ev)]", "\x27; ./ev; \x27", '"; ./ev; "', "& ./ev &", "&& ./ev", "$'\\x60./ev\\x60'",
    "${x:-$(./ev)}", "]]; ./ev", "; fi; ./ev", ";; esac; ./ev", "EOF\n./ev\n", "> >(./ev)", "((./ev))", "( ./ev )",
    "{ ./ev; }", "\\\n./ev",
)  # fmt: skip
_BITS = (
    "a", "b", "x", "-l", "-n", "--", "a.txt", "a/b", "in", "do", "done", "if", "fi", "esac", "{", "}", "{}", "[",
    "]", "[[", "]]", "!", "!x", "#", "#x", "a#b", "~", "~/a", "*", "?", "[ab]", "a[1]", "a[1]=2", "{a,b}", "{a,$x}",
    "1", "-eq", "-v", "-o", "-a", "=", "==", "=~", "x=1", "PATH=.", "IFS=x", "x+=1", "\\;", "\\ ", "\\\\", "\\$x",
    "\\`", "\\'", '\\"', "\\\n", "é", "à", "\u00a0", "\r", "$", "$x", "$y", "$1", "$@", "$*", "$#", "$?", "$$", "$!",
    "$-", "$0", "^", "%1", "@", ",", ":", "+", "$[1]", "$((1))", "$(( 1 + 2 ))", "$((x))", "((x))", "@(a)", "?(a)",
    "*(a)", "!(a)", "+(a)", "EOF", "time",
)  # fmt: skip
_OPERATORS = (
    "; ", ";", "\n", " & ", " && ", " || ", " | ", "|", "&&", "\n\n", " |& ", " ; ", "&\n", " |\n", " &&\n", ";;",
    " \\\n", "; # c\n", " # c ' \n", " # \\\n",
)  # fmt: skip
_MILD_OPERATORS = ("; ", "\n", " && ", " || ", " | ", " &\n", " \\\n", " |\n", "\n# c\n")
_REDIRECTS = (
    "> out", ">out", ">> out", "2>&1", "2> /dev/null", "> /dev/null", "&> /dev/null", "&>/dev/null", ">& out", ">&2",
    "<&-", "< /dev/null", "<> out", ">| out", "<<< x", "<<<'a b'", "{x}> out", "12> out", "2>&1- ", "&>> out",
)  # fmt: skip
_SNIPPETS = (
    "[[ a || ./ev ]]", "[[ a > f ]]", "echo ${a#b{c}; ./ev x; echo y}", "echo \"${a:-$'\\x60./ev\\x60'}\"",
    "echo ${a:-<(ev)}", "echo $'\\'; ./ev; \\''", "echo \"$'\"; ./ev; echo \"'\"", "cat <<E\nE \n./ev\nE",
    "unset PATH", "read PATH", "export x=$y", "export PATH", "PATH=.", "x=1 PATH=. ls", "echo a\\\n;./ev",
    "echo a #\\\n./ev", "set -k", "set -o posix", "shopt -s extglob", "alias ls=./ev", "a[$(./ev)]=1",
    "for x in a; { ./ev; }", "echo $[ev]", "let x=1", "case a in (a) ls;; esac", "case a in a) ls;& b) ./ev;; esac",
    "f() ./ev", "function f { ./ev; }", "select x in a; do ls; done", "coproc ./ev", "time ./ev", "! ./ev",
    "{ ls; } > out", "echo `echo \\`./ev\\``", "echo \"`echo \"a\"`\"", "echo \"${x:-'}\"'; ./ev; '",
    "echo \"${x#'}\"}'\"; ./ev", "echo ${x:-'}'}; ls", "echo ${x:-\"}\"}; ls", "echo ${x:-\\}}; ls",
    "echo $(case a in a) ls;; esac)", "echo $(ls # )\n)", "cat <<'E'\n$(./ev)\nE", "cat <<\\E\n`./ev`\nE",
    "cat <<E; ls\n$(ls)\nE", "cat <<-E\n\ta\n\tE", "echo \"$(cat <<'E'\na\nE\n)\"", "echo $(cat <<'E'\n)\nE\n)",
    "x=(a b)", "x[0]=1", "[ $y ]", "test $y", '[ "$y" "$x" ]', '[ "$x" -eq 1 ]', '[[ $x -eq 1 ]]',
    "printf %d \"$x\"", "exit $x", "shift \"$x\"", "echo $((x))", "kill $y", "cd $y", "fun() { ls; }",
    "fun() { echo \"$@\"; }; fun ./ev", "echo ${x@P}", "echo ${!x}", "echo ${x^}", "echo ${x:1:2}", "echo ${x/a/b}",
    "typeset -i x", "readonly x=1", "local x=$y", "declare x=$y", "trap ./ev EXIT", "cat <(ls)", "ls > >(ls)",
    "exec ./ev", ". ./ev", "eval ./ev", "command ./ev", "echo {a,b}", "echo {a,./ev}", "{ ls,./ev; }", "{ls,./ev}",
    "echo ~", "printf -v x a",
)  # fmt: skip
_LINES = ("a", "$x", "`./ev`", "$(./ev)", "E x", " E", "\tE", "'", '"', ")", "$(ls)", "# '", "\\", "${x:-a}")
_MILD = (
    "a", "-l", "--x=1", "a.txt", "a/b", "$x", '"$x"', '"$@"', "${x:-a}", "${#x}", "${x%/*}", "$((1 + 2))", "*.txt",
    "{a,b}", "[ab]", "~/a", "\\;", "\\$x", "é", "in", "'#'", "a#b", "2>&1", "> /dev/null", "< a.txt", ">> out", "> out",
)  # fmt: skip
"""Words that all shells read alike, so that also long scripts of them are allowed and run."""
_EXPANDS = (":-", "-", "#", "##", "%", "%%", "/", "//", ":", "^", ",", "@", ":+", "=", ":?", ":=")
_EXPANDED = ("a", "", "a b", "*/", "{", "'", '"', "\\", "$y", "a/b", "1:2", "P", "(", "`ev`", "$(ev)")
_JOINS = ("\\\n", "\\\\\n", "\\\\\\\n", "\\\n\\\n")
_NASTY = "'\"`$(){}[]<>|&;#!~*?\\\n\t =a.x-^%@:,1"
_SETS = (
    "x='a[$(./ev)]'", "y='-v a[$(./ev)]'", "x='$(./ev)'", "y='a PATH=.'", "x=./ev", "y='; ./ev'", "x=", "x=ls",
    "PATH=.", "path=.", "for PATH in .; do ls; done", "read -r PATH <<E\n.\nE\n", "export LANG=$x",
)  # fmt: skip
_USES = (
    "ls", "$x", '"$x"', "[ $y ]", "test $y", '[ "$y" "$x" ]', '[ "$x" -eq 1 ]', "[[ $x -eq 1 ]]", "[[ -v $x ]]",
    "[ 1 -gt $x ]", 'printf %d "$x"', "echo $((x))", "echo ${y:x}", "exit $x", 'shift "$x"', "export $y", "export x=$y",
    'read "$x"', 'unset "$x"', "cd $x", "echo $x", 'echo "${x@P}"', "set $y; ls", "wait $x", "fun() { $1; }; fun $x",
)  # fmt: skip
"""Commands that some shell may evaluate once more, after a variable was set to a program."""

_OPERANDS = ("$x", '"$x"', "$y", "${x:-1}", "1", "a", "x", "$#", "'a[$(./ev)]'", '"a[$(./ev)]"', "a[$x]", "!", "out")
_TESTS = (
    "-eq", "-lt", "-ge", "=", "==", "!=", "=~", "-v", "-n", "-z", "-R", "-t", "-o", "-a", "<", ">", "||", "&&", "-nt",
)  # fmt: skip
"""Operators of `[`, `test` and `[[`. Some evaluate an operand as arithmetic, which runs what an index contains."""


class Scripts:
    """An endless sequence of scripts, determined by the random generator."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._last = "ls"
        self._is_mild = False

    def script(self) -> str:
        """Return the next script."""
        self._is_mild = self._chance.random() < 0.2
        text = self._tested() if self._chance.random() < 0.05 else self._list(3)
        if self._chance.random() < 0.3:
            text = f"{self._chance.choice(_SETS)}\n{self._chance.choice((text, self._chance.choice(_USES)))}"
        for _ in range(self._chance.choice((0, 1) if self._is_mild else (0, 0, 1, 1, 2, 4))):
            text = self._edited(text)
        if self._chance.random() < 0.05:  # a parser that joins lines may join too many
            for at in sorted(self._chance.choices(range(len(text) + 1), k=3), reverse=True):
                text = text[:at] + self._chance.choice(_JOINS) + text[at:]
        self._last = text
        return text

    def _join_several(self, most: int, each: Callable[[], str], separator: str) -> str:
        return separator.join(each() for _ in range(self._chance.randrange(1, most + 1)))

    def _edited(self, text: str) -> str:
        at = self._chance.randrange(len(text) + 1)
        end = at + self._chance.randrange(4)
        match self._chance.randrange(6):
            case 0:
                return text[:at] + text[end:]
            case 1:
                return text[:at] + self._chance.choice(_EVIL) + text[at:]
            case 2:
                other = self._chance.randrange(len(self._last) + 1)
                return text[:at] + self._last[other : other + self._chance.randrange(20)] + text[end:]
            case 3:
                return text[:at] + self._chance.choice(_BITS) + text[at:]
            case _:
                return text[:at] + self._chance.choice(_NASTY) + text[end if self._chance.random() < 0.3 else at :]

    def _list(self, depth: int) -> str:
        chance = self._chance
        text = self._command(depth)
        operators = _MILD_OPERATORS if self._is_mild else _OPERATORS
        while chance.random() < 0.4:
            text += (chance.choice(operators) if chance.random() < 0.7 else "; ") + self._command(depth)
        return text

    def _command(self, depth: int) -> str:
        kind = self._chance.randrange(20)
        if depth > 0 and kind < 5:
            return self._compound(depth - 1)
        if kind < 8 and not self._is_mild:
            return self._chance.choice(_SNIPPETS)
        some = ("echo", "ls", "cat", "echo", "ls")
        words = [self._chance.choice(some if self._is_mild else (*ALLOWED, *some))]
        words += [self._word(depth) for _ in range(self._chance.randrange(4))]
        if words[0] == "[" and self._chance.random() < 0.8:
            words.append("]")
        if not self._is_mild and self._chance.random() < 0.1:
            words.insert(0, self._chance.choice(("x=1", "CI=1", "x=$y", "!", "PATH=.", *_SETS)))
        if not self._is_mild and self._chance.random() < 0.2:
            words.insert(self._chance.randrange(len(words) + 1), self._chance.choice(_REDIRECTS))
        if self._chance.random() < 0.06:
            words.append(self._heredoc())
        return " ".join(words)

    def _tested(self) -> str:
        """Return a test of a variable that was set to a program, or an operand that contains one."""
        chance = self._chance
        words = [chance.choice((_OPERANDS, _TESTS)[number % 2]) for number in range(chance.choice((1, 3, 3, 3, 5)))]
        if chance.random() < 0.3:
            words.insert(0, chance.choice(_TESTS))
        begin, end = chance.choice((("[[", " ]]"), ("[[", " ]]"), ("[", " ]"), ("test", "")))
        return f"{chance.choice(_SETS[:4])}\n{begin} {' '.join(words)}{end}{chance.choice((' && ls', '; ls'))}"

    def _compound(self, depth: int) -> str:
        def nested_list() -> str:
            return self._list(depth)

        match self._chance.randrange(11):
            case 0:
                return f"if {nested_list()}; then {nested_list()}; else {nested_list()}; fi"
            case 1:
                return f"for x in {self._word(depth)} {self._word(depth)}; do {nested_list()}; done"
            case 2:
                return f"while false && {{ {nested_list()}; }}; do {nested_list()}; done"
            case 3:
                return f"case {self._word(depth)} in {self._word(0)}) {nested_list()};; *) {nested_list()};; esac"
            case 4:
                return f"( {nested_list()} )"
            case 5:
                return f"{{ {nested_list()}; }}"
            case 6:
                return f"fun() {{ {nested_list()}; }}; fun {self._word(depth)}"
            case 7:
                return f"[[ {self._join_several(3, lambda: self._word(depth), ' ')} ]]"
            case 8:
                return f"({nested_list()})"
            case 9:
                return f"if [ {self._join_several(3, lambda: self._word(depth), ' ')} ]\nthen\n{nested_list()}\nfi"
            case _:
                return f"echo $({nested_list()})"

    def _heredoc(self) -> str:
        mark = self._chance.choice(("<<E", "<<'E'", '<<"E"', "<<-E", "<<\\E", "<< E"))
        line, after = self._chance.choice(_LINES), self._chance.choice(("", "; ls", " | cat", " &&", " # c"))
        return f"{mark}{after}\n{line}\n{self._chance.choice(_EVIL)}\nE\n"

    def _word(self, depth: int) -> str:
        chance = self._chance
        if self._is_mild:
            return self._mild_word(depth)
        text = ""
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            kind = chance.randrange(16)
            if kind < 7:
                text += chance.choice(_BITS)
            elif kind < 9:
                text += "'" + chance.choice(_EVIL).replace("'", "") + "'"
            elif kind < 12:
                text += '"' + self._inside_quotes(depth) + '"'
            elif kind < 14:
                text += self._expansion(depth)
            elif kind == 14 and depth > 0:
                text += chance.choice(("$({})", "`{}`", "$( {} )", "<({})", ">({})")).format(self._list(depth - 1))
            else:
                text += chance.choice(("$'{}'", '$"{}"', "'{}'")).format(chance.choice(_EVIL))
        return text

    def _mild_word(self, depth: int) -> str:
        match self._chance.randrange(8):
            case 0:
                return "'" + self._chance.choice(_EVIL).replace("'", "") + "'"
            case 1:
                return '"' + re.sub(r'["`$\\]', "", self._chance.choice(_EVIL)) + '"'
            case 2 if depth > 0:
                return self._chance.choice(("$({})", '"$({})"')).format(self._list(depth - 1))
            case _:
                return self._chance.choice(_MILD)

    def _inside_quotes(self, depth: int) -> str:
        def random_word() -> str:
            kind = self._chance.randrange(6)
            if kind < 2:
                return self._chance.choice(_BITS)
            if kind == 2:
                return self._chance.choice(_EVIL).replace('"', "")
            if kind == 3 and depth > 0:
                return f"$({self._list(depth - 1)})"
            return self._expansion(depth)

        return self._join_several(3, random_word, self._chance.choice(("", " ")))

    def _expansion(self, depth: int) -> str:
        chance = self._chance
        name = chance.choice(("x", "y", "x", "1", "@", "#", "?", "x[1]", "!x", "x[@]", "#x", "-", "*", "10", "12x"))
        operator = chance.choice(("", "", *_EXPANDS))
        rest = chance.choice(_EXPANDED) if operator else ""
        if chance.random() < 0.1 and depth > 0:
            rest = self._word(depth - 1)
        return f"${{{name}{operator}{rest}}}"


class Shell:
    """A shell that runs scripts in its own folder and records what they ran."""

    def __init__(self, name: str, argv: tuple[str, ...], folder: Path) -> None:
        self.name = name
        self._argv = argv
        self._folder = folder / f"in-{name}"

    @cached_property
    def _work(self) -> Path:
        """The folder, with a marking program for each name; allowed programs do nothing."""
        work, programs = self._folder / "work", self._folder / "bin"
        mark = f"#!/bin/sh\necho \"$0\" >> '{self._folder / 'ran'}'\n"
        for folder, names in ((work, (*_ELSE, *_PROGRAMS)), (work / "in", ()), (programs, _ELSE)):
            folder.mkdir(parents=True, exist_ok=True)
            for name in names:
                if name not in ("in", "do"):
                    (folder / name).write_text(mark)
                    (folder / name).chmod(0o755)
        for name in _PROGRAMS:
            (programs / name).symlink_to("/bin/true")
        return work

    def ran(self, script: str) -> str:
        """Return the programs that ran or were looked for and are not allowed; empty if none."""
        mark = self._folder / "ran"
        env = {"PATH": str(self._work.parent / "bin"), "HOME": str(self._work), "LC_ALL": "C.UTF-8"}
        with subprocess.Popen(
            [*self._argv, "-c", script], cwd=self._work, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                said = process.communicate(timeout=_SECONDS)[1]
            except subprocess.TimeoutExpired:
                said = b""
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if mark.exists():
            found = mark.read_text()
            mark.unlink()
            return found
        lost = re.search(rb".*(?:not found|no such command).*", said)
        return "" if lost is None else lost[0].decode(errors="replace")


def is_safe_to_run(script: str) -> bool:
    """Return whether a script certainly ends: recursive functions and endless loops are not run."""
    names = set(re.findall(r"([^\s;&|(){}]+)\s*\(\s*\)", script))
    return (
        names <= {"fun"}
        and script.count("fun") <= 2
        and "function" not in script
        and re.search(r"(?:while|until)(?! false && \{)", script) is None
    )


def shells(folder: Path) -> Iterator[Shell]:
    """Yield each supported shell that is installed; bash also as `sh`, which is another grammar."""
    seen: set[str] = set()
    for name in ("bash", "dash", "sh", "ash", "ksh", "ksh93", "mksh", "lksh", "posh", "yash", "busybox"):
        found = shutil.which(name)
        path = "" if found is None else os.path.realpath(found)
        if path and path not in seen:
            seen.add(path)
            yield Shell(name, (path, "ash") if name == "busybox" else (path,), folder)
    if (bash := shutil.which("bash")) is not None:
        (folder / "sh").symlink_to(bash)
        yield Shell("bash-as-sh", (str(folder / "sh"),), folder)
