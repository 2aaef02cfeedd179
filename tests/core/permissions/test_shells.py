"""What rules decide about command lines: never milder than what running them shows."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from shell_lines import ALLOWED, ASK, ASKED, DENIED, DENY, OF_BASH, OF_ONE_SHELL

from perstack.core.definitions.permissions import Permissions, RuleSet
from perstack.core.permissions.decide_call import decide_call
from perstack.core.permissions.policy_calls import PolicyCall, policy_call
from perstack.engine.permissions.rulings import path_resolver
from perstack_base.tools import SPECS

BASE = {spec.name: spec for spec in SPECS}
STRICTNESS = ["allow", "ask", "deny"]


def rules(**lists):
    return RuleSet(source="perstack.toml [permissions]", permissions=Permissions(**lists))


SOME = rules(deny=DENY, ask=ASK)
FEW = rules(
    default="ask",
    deny=("exec(rm *)", "writeTextFile(secrets/**)"),
    allow=("exec(echo *)", "exec(ls*)", "exec(cat *)", "exec(true)", "exec(pwd)", "writeTextFile(out*)"),
)


def run(*words, **more):
    return policy_call(BASE["exec"], "exec", {"command": words[0], "args": list(words[1:]), **more})


def line(text):
    return run("bash", "-c", text)


@pytest.mark.parametrize("text", ALLOWED)
def test_a_line_that_no_rule_is_about_runs(text):
    ruling = decide_call([SOME], line(text))
    assert ruling.decision == "allow", ruling


@pytest.mark.parametrize("text", DENIED)
def test_a_denied_command_is_found_wherever_it_stands(text):
    ruling = decide_call([SOME], line(text))
    assert (ruling.decision, ruling.list) == ("deny", "deny"), ruling


@pytest.mark.parametrize("text", ASKED)
def test_what_cannot_be_told_is_asked_about(text):
    ruling = decide_call([SOME], line(text))
    assert ruling.decision == "ask", ruling
    assert ruling.reason or ruling.rule == ASK[0]


def test_there_are_enough_tricks():
    assert len(ALLOWED) + len(DENIED) + len(ASKED) >= 200


@pytest.mark.parametrize("text", [*ALLOWED, *DENIED, *ASKED])
def test_nothing_of_it_applies_where_no_rule_asks_about_programs_or_denies_them(text):
    for harmless in (rules(), rules(deny=("deleteFile",), ask=("writeTextFile",), allow=("exec(ls)",))):
        assert decide_call([harmless], line(text)).decision == "allow"


def test_a_rule_that_is_the_very_line_allows_what_would_be_asked_about():
    asks = rules(ask=("exec",), allow=(r"exec(bash -c 'ls | xargs wc')", "exec(sudo apt update)"))
    assert decide_call([asks], line("ls | xargs wc")).decision == "allow"
    assert decide_call([asks], line("ls | xargs wc -l")).decision == "ask"
    assert decide_call([asks], run("sudo", "apt", "update")).decision == "allow"
    assert decide_call([asks], line("sudo apt update")).decision == "allow"
    assert decide_call([asks], run("sudo", "apt", "upgrade")).decision == "ask"
    wide = rules(ask=("exec",), allow=("exec(sudo *)", "exec(*)"))
    assert decide_call([wide], run("sudo", "apt", "update")).decision == "ask"
    assert decide_call([wide], run("ls")).decision == "allow"
    denies = rules(deny=("exec(wc*)",), allow=("exec(bash -c 'ls | wc')",))
    assert decide_call([denies], line("ls | wc")).decision == "deny"


def test_a_default_of_deny_is_not_softened_to_a_question():
    only = rules(default="deny", allow=("exec(ls {-l})",))
    assert decide_call([only], line("ls -l; ls")).decision == "allow"
    assert decide_call([only], line("ls; eval $x")).decision == "deny"
    assert decide_call([only], line("sudo ls")).decision == "deny"
    assert decide_call([only], line("ls > out")).decision == "deny"


READ = rules(deny=("exec(./ev*)", "exec(x/ev*)"))
"""With these, only how a line is read can have it asked about, or denied where `./ev` is found in it."""

WIDE = rules(default="deny", allow=("exec(ls *)", "exec(echo *)"))


@pytest.mark.parametrize("shell", ["sh", "dash", "ash", "ksh", "mksh", "bash", "/usr/bin/sh"])
@pytest.mark.parametrize("text", OF_ONE_SHELL)
def test_what_shells_read_in_different_ways_is_not_allowed_in_any(shell, text):
    assert decide_call([READ], run(shell, "-c", text)).decision in ("ask", "deny")
    assert decide_call([SOME], run(shell, "-c", text)).decision in ("ask", "deny")


@pytest.mark.parametrize("text", OF_BASH)
def test_the_grammar_of_bash_holds_for_bash_alone(text):
    assert decide_call([READ], run("bash", "-c", text)).decision == "allow"
    for shell in ("sh", "dash", "ash", "ksh", "mksh"):
        assert decide_call([READ], run(shell, "-c", text)).decision == "ask"


@pytest.mark.parametrize(
    "text",
    [
        "ls -la | cat && echo \"a $x\" 'b' 2>&1",
        'if [ -f a ]; then ls; elif [ "$x" = b ]; then echo; else cat a; fi',
        'for f in *.txt; do echo "$f"; done',
        "echo \"$(cat <<'EOF'\nfirst line\nEOF\n)\"",
        "set -euo pipefail\nexport LANG=C\nls ${HOME:-x} ${x%/*} ${#x}",
        "case \"$x\" in a|'b c') ls ;; *) echo ;; esac",
        'x=$(ls); echo "$x" $((1 + 2)) > /dev/null',
        "cat <<EOF | cat\n$x and ${y}\nEOF\nls",
        'while read -r line; do echo "$line"; done',
        "printf '%s\\n' \"$x\"; exit 1",
    ],
)
def test_plain_scripts_are_read_in_every_shell(text):
    for shell in ("sh", "dash", "ksh", "bash"):
        assert decide_call([READ], run(shell, "-c", text)).decision == "allow", shell


@pytest.mark.parametrize(
    "options", ["-ic", "-sc", "-kc", "-ac", "-Hc", "-O extglob -c", "-o history -c", "-o allexport -c"]
)
def test_an_option_that_changes_what_a_script_means_is_not_allowed(options):
    with_shell = rules(default="deny", allow=("exec(ls *)",))
    assert decide_call([with_shell], run("bash", *options.split(), "ls")).decision == "deny"
    assert decide_call([with_shell], run("bash", "-euo", "pipefail", "-c", "ls")).decision == "allow"


@pytest.mark.parametrize(
    "shell", ["./sh", "sub/bash", "/work/sh", "/tmp/dash", "../bin/sh", "/usr/bin/../../tmp/sh", "/bin/./sh"]
)
def test_a_program_that_is_only_called_like_a_shell_is_decided_by_its_own_name(shell):
    assert decide_call([WIDE], run(shell, "-c", "ls")).decision == "deny"
    assert decide_call([WIDE], line(f"{shell} -c ls")).decision == "deny"
    assert decide_call([SOME], run(shell, "-c", "ls; rm a")).decision == "deny"


@pytest.mark.parametrize(
    "text", ["echo a\\\nb\necho c\\\\\n./ev", "ls\\\n-l; echo \\\\\n./ev", "echo \\\\\\\n./ev; l\\\ns"]
)
def test_a_backslash_that_is_escaped_continues_no_line(text):
    for shell in ("sh", "bash"):
        assert decide_call([WIDE], run(shell, "-c", text)).decision == "deny"


@pytest.mark.parametrize(
    "text",
    ["echo \u4e2d\\; ./ev", 'echo "\u4e2d\\"; ./ev; echo \\""', "export LC_ALL=zh_CN.GBK\necho \u20ac\\; ./ev",
     'ls "a\u00e9\\"; ./ev; ls \\""'],
)  # fmt: skip
def test_a_backslash_that_a_locale_reads_as_half_a_character_escapes_nothing(text):
    for shell in ("sh", "bash", "ksh"):
        assert decide_call([READ], run(shell, "-c", text)).decision == "ask"
        assert decide_call([READ], run(shell, "-c", f"echo '{text[5:9]}' \u4e2d")).decision == "allow"


@pytest.mark.parametrize("shell", ["ksh93", "lksh", "oksh", "pdksh", "posh", "hush", "osh", "xonsh", "bash-static"])
def test_the_scripts_of_other_shells_are_not_read(shell):
    assert decide_call([SOME], run(shell, "-c", "ls")).decision == "ask"
    assert decide_call([SOME], run(shell, "-c", "rm a")).decision == "deny"


def test_a_ruling_says_what_of_the_line_it_is_about():
    ruling = decide_call([SOME], line("ls && cd sub && rm -f a"))
    assert ruling.subject == "rm -f a"
    ruling = decide_call([SOME], line("ls && sudo ls"))
    assert ruling.subject == "sudo ls"
    assert ruling.reason_text == "sudo runs other programs (perstack.toml [permissions])"


def test_a_rule_about_the_shell_itself_holds_for_its_lines():
    assert decide_call([rules(deny=("exec(bash *)",))], line("ls")).decision == "deny"
    assert decide_call([rules(ask=("exec(bash *)",))], line("ls")).decision == "ask"
    assert decide_call([rules(ask=("exec(command=bash)",))], line("ls")).decision == "ask"
    assert decide_call([rules(ask=("exec",), allow=("exec(ls*)",))], line("ls")).decision == "allow"


def test_variables_that_a_call_sets_count_like_those_of_a_line():
    asks = rules(ask=("exec",), allow=("exec(git fetch*)", "exec(ls)"))
    assert decide_call([asks], run("git", "fetch", env={"GIT_SSH_COMMAND": "x"})).decision == "ask"
    assert decide_call([asks], run("ls", env={"CI": "1"})).decision == "allow"
    assert decide_call([asks], run("sh", "-c", "ls", env={"ENV": "x"})).decision == "ask"


@pytest.mark.parametrize(
    "text", ["(" * 500 + "ls" + ")" * 500, "$(" * 200 + "ls" + ")" * 200, "ls;" * 20_000, "'" * 9999]
)
def test_a_line_that_is_made_to_cost_much_is_asked_about(text):
    assert decide_call([SOME], line(text)).decision == "ask"


def _can_trace() -> bool:
    if shutil.which("strace") is None or shutil.which("bash") is None:
        return False
    done = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, timeout=30, check=False)
    return done.returncode == 0


_EXECVE = re.compile(r'^(\d+) +execve\("((?:[^"\\]|\\.)*)", \[(.*)\], 0x')
_OPEN = re.compile(r'^(\d+) +openat\(AT_FDCWD, "((?:[^"\\]|\\.)*)", ([A-Z_|]+)')
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')
_HARMLESS = ["rm", "git", "sudo", "ssh", "npx", "curl", "make", "rsync", "vim", "watch", "nohup", "zsh", "busybox"]


def _text(quoted: str) -> str:
    return quoted.encode().decode("unicode_escape").encode("latin-1").decode("utf-8", "replace")


def traced(text: str, folder: Path) -> list[PolicyCall]:
    """What a line runs and writes, as calls of their own. Programs that change things do nothing."""
    work, shims = folder / "work", folder / "shims"
    (work / "sub").mkdir(parents=True)
    (work / "secrets").mkdir()
    shims.mkdir()
    for name in _HARMLESS:
        (shims / name).symlink_to("/bin/true")
    for name in ("a", "b", "x", "script"):
        (work / name).write_text("ls\n")
    log = folder / "log"
    env = {"PATH": f"{shims}:/usr/bin:/bin", "HOME": str(work), "LANG": "C.UTF-8"}
    words = ["strace", "-f", "-qq", "-s", "9999", "-e", "trace=execve,openat", "-o", str(log), "bash", "-c", text]
    subprocess.run(words, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    calls: list[PolicyCall] = []
    resolve = path_resolver(work)
    programs: dict[str, str] = {}
    for entry in log.read_text(errors="replace").splitlines():
        found = _EXECVE.match(entry)
        if found is not None:
            argv = [_text(word) for word in _WORD.findall(found[3])]
            if argv != ["bash", "-c", text] and argv:
                called = [_text(found[2]), *argv[1:]] if "/" in argv[0] else argv
                calls.append(run(*called))
            programs[found[1]] = argv[0].rpartition("/")[2]
        opened = _OPEN.match(entry)
        is_shell = opened is not None and programs.get(opened[1], "bash") in ("bash", "sh", "dash")
        if opened is not None and is_shell and re.search("O_WRONLY|O_RDWR", opened[3]):
            path = _text(opened[2])
            if not path.startswith("/dev/"):
                spec = BASE["writeTextFile"]
                calls.append(policy_call(spec, "writeTextFile", {"path": path, "text": ""}, resolve))
    return calls


@pytest.mark.skipif(not _can_trace(), reason="needs strace, and the right to trace")
@pytest.mark.parametrize("text", [*ALLOWED, *DENIED, *ASKED])
def test_the_verdict_is_never_milder_than_what_runs(text, tmp_path):
    """A deny that runs under a question is one that the question said it could not see."""
    if "\0" in text or "/bin/r" in text:
        pytest.skip("would really delete")
    calls = traced(text, tmp_path)
    for some in (SOME, FEW):
        ruling = decide_call([some], line(text))
        for one in calls:
            ran = decide_call([some], one)
            is_milder = STRICTNESS.index(ruling.decision) < STRICTNESS.index(ran.decision)
            assert not is_milder or (ruling.decision == "ask" and ruling.reason), (ruling, ran)


def test_the_tracer_sees_what_a_line_runs_and_writes(tmp_path):
    if not _can_trace():
        pytest.skip("needs strace")
    seen = traced("x=rm; $x a; echo hi > out", tmp_path)
    assert [one.args.get("args", one.args.get("path")) for one in seen] == [["a"], "out"]
    assert (tmp_path / "work" / "a").exists()
