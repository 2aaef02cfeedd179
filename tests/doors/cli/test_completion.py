"""`perstack completion`: the suggestions in each shell, and that no suggested text is ever executed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from terminal import SECONDS, Terminal, reply
from tmux import Tmux, tmux

from perstack.doors.cli.completion_values import kind_of
from perstack.doors.cli.main import perstack
from perstack.doors.cli.plugin_commands import listed_commands

PLACE = (
    '[experts.writer]\ndescription = "Writes, $(touch pwned)"\ninstruction = "x"\n[experts.guest]\ninstruction = "x"\n'
)
HOSTILE = "first, $(touch pwned) `touch pwned`\n\"second' %F{red}\x1b[31m\\ ; touch pwned\tplain,rm"


@pytest.fixture
def place(terminal: Terminal) -> Terminal:
    """Return a project with two Jobs and a task, and `perstack` in PATH."""
    terminal.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{terminal.env['PATH']}"
    terminal.project(PLACE, writer=[reply("", ("think", {"thought": "hm"})), reply("done"), reply("done")])
    for job, query in (("haiku", HOSTILE), ("hat", "a hat")):
        assert terminal.call("run", "writer", query, "--provider", "scripted", "--job-id", job).code == 0
    assert terminal.call("task", "create", "house", "--name", "paint it").code == 0
    return terminal


def completion_lines(terminal: Terminal, line: str, shell: str = "bash") -> list[str]:
    """Return the lines that a shell gets for a command line with the cursor at its end."""
    words = line.split(" ")
    given = {
        "bash": {"_PERSTACK_LINE": line, "_PERSTACK_WORD": words[-1].rpartition("=")[2] or words[-1][-1:]},
        "zsh": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "fish": {"COMP_WORDS": line, "COMP_CWORD": words[-1]},
    }[shell]
    terminal.env |= {"_PERSTACK_COMPLETE": f"{shell}_complete", **given}
    try:
        result = terminal.call()
    finally:
        for name in ("_PERSTACK_COMPLETE", *given):
            del terminal.env[name]
    assert (result.code, result.err) == (0, "")
    return result.lines


def completions(terminal: Terminal, line: str) -> list[str]:
    return [completion_line.removeprefix("plain,") for completion_line in completion_lines(terminal, line)]


# --- what is offered ------------------------------------------------------------------------------------------------


def test_commands_and_options_are_offered_by_their_beginning(place: Terminal) -> None:
    assert completions(place, "perstack ") == list(listed_commands())
    assert completions(place, "perstack rep") == ["report", "replay"]
    assert completions(place, "perstack task ch") == ["checkpoint", "checkpoints"]
    assert completions(place, "perstack log --mes") == ["--messages"]
    assert completions(place, "perstack run writer --output ") == ["human", "jsonl", "text"]
    assert completions(place, "perstack jobs --status=com") == ["completed"]
    assert completions(place, "perstack --ver") == ["--version"]


def test_experts_and_what_plugins_bring_are_offered(place: Terminal) -> None:
    assert completions(place, "perstack run ") == ["writer", "guest"]
    assert completions(place, "perstack jobs --expert g") == ["guest"]
    assert completions(place, "perstack run writer --provider script") == ["scripted"]
    assert "local" in completions(place, "perstack run writer --runtime ")


def test_jobs_are_offered_newest_first_and_tasks_beside_them_where_both_fit(place: Terminal) -> None:
    assert completions(place, "perstack log ") == ["hat", "haiku"]
    assert completions(place, "perstack resume hai") == ["haiku"]
    assert completions(place, "perstack delete hat ") == ["hat", "haiku"]
    assert completions(place, "perstack task get ") == ["house"]
    assert completions(place, "perstack signal h") == ["hat", "haiku", "house"]
    assert completions(place, "perstack log @") == ["@last", "@last~1"]
    assert completions(place, "perstack run writer --job-id h") == [], "that of a new Job is not among them"


def test_runs_and_checkpoints_are_those_of_the_job_on_the_line(place: Terminal) -> None:
    of_haiku = completions(place, "perstack log haiku --checkpoint ")
    assert of_haiku
    assert all(checkpoint_id.startswith("haiku-1-") for checkpoint_id in of_haiku)
    assert completions(place, "perstack run writer --continue-job hai --resume-from ") == of_haiku
    assert completions(place, "perstack log --checkpoint haiku-1-") == of_haiku
    assert completions(place, "perstack log --run ") == ["hat-1"]
    assert all(place.call("log", "--checkpoint", one).code == 0 for one in of_haiku)


def test_a_value_after_the_sign_of_its_option_is_offered_as_each_shell_replaces_it(place: Terminal) -> None:
    assert completion_lines(place, "perstack log --job=hai") == ["plain,haiku"], "to bash that is a word of its own"
    assert completion_lines(place, "perstack log --job=hai", "zsh")[1] == "--job=haiku"
    assert completion_lines(place, "perstack log --job=hai", "fish")[0].startswith("plain,--job=haiku\t")


def test_files_and_folders_are_left_to_the_shell(place: Terminal) -> None:
    assert completion_lines(place, "perstack validate --config ") == ["file,"]
    assert completion_lines(place, "perstack jobs --workspace so") == ["dir,so"]


def test_the_place_that_the_line_names_is_looked_at(place: Terminal, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "perstack.toml").write_text('[experts.other]\ninstruction = "x"\n')
    assert completions(place, f"perstack run --workspace {elsewhere} ") == ["other"]
    assert completions(place, f"perstack log --workspace {elsewhere} ") == []
    assert completions(place, f"perstack log --storage file:{place.workspace}/perstack ") == ["hat", "haiku"]


def test_every_parameter_that_names_something_is_completed() -> None:
    words = re.compile(r"\[?(JOB|TASK|EXPERT|CHECKPOINT|FILE|PATH|DIR|JOB\|TASK)\]?(\.\.\.)?")
    names = {"ident", "series_id", "run_id", "checkpoint_id", "expert", "provider", "runtime"}
    left_out: list[str] = []

    def look(group: click.Group, ctx: click.Context) -> None:
        for name in group.list_commands(ctx):
            command = group.get_command(ctx, name)
            if isinstance(command, click.Group):
                look(command, click.Context(command, parent=ctx))
            for param in () if command is None else command.params:
                word = param.metavar or (param.name or "").upper()
                if (words.fullmatch(word) or param.name in names) and kind_of(name, param) is None:
                    left_out.append(f"{name} {param.name}")

    look(perstack, click.Context(perstack, **perstack.context_settings))
    assert left_out == ["iterate series_id", "create task_id"], "which name what is not there yet"


def test_tab_for_a_command_imports_none_of_them(place: Terminal) -> None:
    script = (
        "import sys, perstack.doors.cli.main as main\n"
        "main.run_command_line()\n"
        "print([one for one in ('pydantic', 'asyncio', 'perstack.doors.cli.log') if one in sys.modules])\n"
    )
    given = {"_PERSTACK_COMPLETE": "bash_complete", "_PERSTACK_LINE": "perstack l", "_PERSTACK_WORD": "l"}
    del place.env["PERSTACK_PLUGINS"]  # a module that it names may have commands, and is imported
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**place.env, **given},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert done.stdout.splitlines() == ["plain,log", "plain,login", "plain,logout", "[]"]


# --- what is hostile or damaged -------------------------------------------------------------------------------------


def test_a_description_is_one_line_without_anything_that_a_terminal_obeys(place: Terminal) -> None:
    for shell, lines in (("zsh", 3), ("fish", 1)):
        found = completion_lines(place, "perstack log hai", shell)
        assert len(found) == lines
        text = "".join(found)
        assert "haiku" in text
        assert "writer first, $(touch pwned)" in text
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)
        assert text.count("\t") == (1 if shell == "fish" else 0)


def test_an_id_that_a_shell_would_not_take_as_it_stands_is_not_offered(place: Terminal) -> None:
    for name in ("$(touch pwned)", "-rf", "a b", "*", ";ls", "x\ny"):
        (place.jobs() / name / "runs" / f"{name}-1").mkdir(parents=True)
    assert completions(place, "perstack log ") == ["hat", "haiku"]
    assert completions(place, "perstack log -r") == []


def test_what_is_damaged_is_completed_as_far_as_it_can_be_and_never_in_the_way(place: Terminal) -> None:
    (place.jobs() / "haiku" / "job.json").write_bytes(b'{"query": \xff' + b"[" * 100_000)
    log = place.log_of("hat-1")
    log.write_bytes(b"nonsense\n" + log.read_bytes())
    assert sorted(completions(place, "perstack log ")) == ["haiku", "hat"]
    assert completions(place, "perstack log hat --checkpoint ") == []
    (place.workspace / "perstack.toml").write_text("experts = [[[")
    assert completions(place, "perstack run ") == []
    assert sorted(completions(place, "perstack log ")) == ["haiku", "hat"]
    shutil.rmtree(place.workspace / "perstack")
    (place.workspace / "perstack").write_text("a file")
    assert completions(place, "perstack log ") == []


@pytest.mark.parametrize("line", ["perstack run --config nosuch ", "perstack log @9", "perstack run --job-id h"])
def test_a_line_that_means_nothing_is_completed_with_nothing(place: Terminal, line: str) -> None:
    assert completions(place, line) == []


def test_a_storage_elsewhere_is_not_asked(place: Terminal) -> None:
    (place.workspace / "perstack.toml").write_text(f'storage = "nosuch:somewhere"\n{PLACE}')
    assert completions(place, "perstack log ") == []
    assert completions(place, "perstack run w") == ["writer"]


# --- in the real shells ---------------------------------------------------------------------------------------------


@pytest.fixture
def window(place: Terminal) -> Iterator[Tmux]:
    with tmux(place, columns=100, env={"PATH": place.env["PATH"], "HOME": str(place.workspace)}) as window:
        yield window


def assert_nothing_was_run(place: Terminal) -> None:
    assert not (place.workspace / "pwned").exists()


def test_bash_completes_a_word_and_lists_what_there_is(place: Terminal, window: Tmux) -> None:
    window.type('eval "$(perstack completion bash)"; echo ready')
    window.sees("\nready")
    window.type_on("perstack log hai")
    window.press("Tab")
    window.sees("perstack log haiku ")
    window.press("C-u")
    window.type_on("perstack log @la")
    window.press("Tab")
    window.sees("perstack log @last")
    window.press("C-u")
    window.type_on("perstack log --job=hai")
    window.press("Tab")
    window.sees("perstack log --job=haiku")
    window.press("C-u")
    window.type_on("perstack resume ha")
    window.press("Tab", "Tab")
    window.sees("hat", "haiku  ")
    window.press("C-u")
    window.type_on("perstack validate --config perstack.to")
    window.press("Tab")
    window.sees("--config perstack.toml ")
    assert_nothing_was_run(place)


def test_zsh_completes_a_word_and_shows_descriptions(place: Terminal, window: Tmux) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    (place.workspace / "zfunc").mkdir()
    window.type("perstack completion zsh > zfunc/_perstack; exec zsh -f")
    window.type("PS1='% '; fpath=($PWD/zfunc $fpath); autoload -Uz compinit; compinit -u -D; echo ready")
    window.sees("\nready")
    window.type_on("perstack log hai")
    window.press("Tab")
    window.sees("perstack log haiku")
    window.press("C-u")
    window.type_on("perstack log ha")
    window.press("C-d")
    window.sees("haiku", "-- writer first, $(touch pwned) `touch pwned`", "-- writer a hat")
    window.press("C-u")
    window.type_on("perstack run w")
    window.press("Tab")
    window.sees("perstack run writer")
    assert_nothing_was_run(place)


def test_fish_completes_a_word_and_shows_descriptions(place: Terminal) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    lines = ("perstack log ", "perstack validate --config perstack.to")
    script = "; ".join(("perstack completion fish | source", *(f"complete -C '{line}'" for line in lines)))
    done = subprocess.run(
        ["fish", "--no-config", "-c", script],
        cwd=place.workspace,
        env={**place.env, "HOME": str(place.workspace)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    first, second, third = done.stdout.splitlines()
    assert first == "hat\twriter a hat"
    assert second.startswith("haiku\twriter first, $(touch pwned) `touch pwned`")
    assert third.split("\t")[0] == "perstack.toml"
    assert_nothing_was_run(place)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_runs_the_perstack_of_the_path_and_evaluates_nothing(place: Terminal, shell: str) -> None:
    script = place.call("completion", shell).out
    assert "command perstack" in script
    assert not re.search(r"\beval\b", script)
