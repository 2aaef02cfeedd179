"""What programs in a sandbox make does not become a command of a person's git, nor a definition of perstack."""

from __future__ import annotations

import asyncio
import os
import subprocess
from asyncio.subprocess import DEVNULL, Process
from dataclasses import replace
from pathlib import Path

import pytest
from hosts import Seen, expert, results, wait_for
from sandbox_programs import Box, host
from terminal import Terminal, reply

from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.errors import UsageError
from perstack.ports.runtime import Surroundings
from perstack.system.processes import await_start, end_with_block
from perstack.testing.scripted import text, tool, turn
from perstack_bubblewrap.file_view import FileViewBuilder
from perstack_bubblewrap.plugin import BubblewrapFactory

EVIL = "[core]\\n\\tbare = {bare}\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = touch {ran};\\n"
PARTS = "mkdir -p {0}/objects {0}/refs && printf 'ref: refs/heads/x\\n' > {0}/HEAD && printf '{1}' > {0}/config"


def script(line: str, ran: Path) -> str:
    """A line in which `REPO folder` makes a repository that executes `touch ran`, and `BARE folder` a bare one."""
    words = []
    for part in line.split("; "):
        for name, bare in (("REPO ", "false"), ("BARE ", "true")):
            if part.startswith(name):
                part = PARTS.format(part.removeprefix(name), EVIL.format(bare=bare, ran=ran))
        words.append(part)
    return "; ".join(words)


def executes(workspace: Path, ran: Path) -> list[str]:
    """The folders in which a person's `git status` executes what was planted."""
    found = []
    for folder in [workspace, *(path for path in workspace.rglob("*") if path.is_dir() and not path.is_symlink())]:
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CEILING_DIRECTORIES": str(folder.parent)}
        for where in ((), ("--work-tree=.",)):
            subprocess.run(["git", *where, "status"], cwd=folder, env=env, capture_output=True, timeout=30, check=False)
            if ran.exists():
                found.append(str(folder.relative_to(workspace)))
                ran.unlink()
    return sorted(set(found))


PLANTED = [
    "REPO .git",
    "mkdir -p a/b; REPO a/b/.git",
    "REPO elsewhere; echo 'gitdir: elsewhere' > .git",
    "REPO elsewhere; mkdir sub; echo 'gitdir: ../elsewhere' > sub/.git",
    "REPO elsewhere; mkdir sub; ln -s ../elsewhere sub/.git",
    "BARE bare",
    "BARE deep/er/x.git",
    "BARE common; mkdir linked; printf '../common' > linked/commondir; cp common/HEAD linked/; rm common/HEAD",
    "BARE bare; ln -sf refs/heads/x bare/HEAD",
    "REPO .git; REPO .git/.git; BARE .git/inner; REPO .git/sub/.git/.git",
    "BARE .hidden/.x; mkdir -p a/.git; BARE a/.git/y",
    "REPO sub/.git; touch -d 2001-01-01 sub . ; REPO other/.git",
]


@pytest.mark.parametrize("line", PLANTED)
def test_git_executes_nothing_of_a_repository_that_a_program_made(box: Box, line: str) -> None:
    ran = box.elsewhere / "ran"
    made = box.run(script(line, ran))
    assert made.status == 0, made.output
    assert made.ending.refused
    assert all("git or perstack would execute" in refused for refused in made.ending.refused)
    assert executes(box.workspace, ran) == []
    assert [path for path in box.workspace.rglob("config") if path.is_file()], "nothing is lost"
    for path in [*box.workspace.iterdir()]:
        if path.name not in ("perstack", "perstack.toml"):
            subprocess.run(["rm", "-rf", str(path)], check=True)
    box.run(script(line, ran), inside=False)
    assert executes(box.workspace, ran), "the control: it is executed"


def test_repositories_of_a_person_stay_wherever_a_program_moves_them(box: Box) -> None:
    for args in (["sub"], ["--bare", "bare.git"]):
        subprocess.run(["git", "init", "-q", *args], cwd=box.workspace, check=True)
    (box.workspace / "linked").symlink_to("sub")
    ran = box.run("mkdir vendor && mv sub vendor/sub && mv linked vendor/linked && touch vendor/sub/made")
    assert (ran.status, ran.ending.refused) == (0, ())
    assert (box.workspace / "vendor/sub/.git/HEAD").exists()
    for line in (
        "echo x >> bare.git/config",
        "mv bare.git moved",
        "rm -rf bare.git",
        "touch bare.git/hooks/post-update",
    ):
        assert box.run(line).status != 0
    assert (box.workspace / "bare.git/HEAD").exists()


def test_a_link_to_a_repository_is_not_exchanged_for_a_repository(box: Box) -> None:
    subprocess.run(["git", "init", "-q", str(box.elsewhere / "real")], check=True)
    (box.workspace / ".git").symlink_to(box.elsewhere / "real" / ".git")
    ran = box.elsewhere / "ran"
    assert box.run(script("rm .git; REPO .git", ran)).status == 0
    assert executes(box.workspace, ran) == []


HOOKS = "printf '#!/bin/sh\\ntouch {ran}\\n' > {at} && chmod +x {at}"
POINTED_AT = [
    ("core.hooksPath", ".githooks", "mkdir -p .githooks; HOOK .githooks/post-commit"),
    ("core.hooksPath", ".husky/_", "mkdir -p .husky/_; HOOK .husky/_/post-commit"),
    ("core.hooksPath", ".husky/_", "mkdir -p x/_; HOOK x/_/post-commit; rm -rf .husky; mv .husky y; mv x .husky"),
    ("include.path", "../shared", "printf '[core]\\n\\thooksPath = h\\n' > shared; mkdir -p h; HOOK h/post-commit"),
    ("core.fsmonitor", "tools/monitor", "mkdir -p tools; HOOK tools/monitor"),
    (
        "core.fsmonitor",
        "tools/present",
        "HOOK tools/present; mv tools/present x; mv tools y; mkdir -p tools; mv x tools/present",
    ),
    ("core.hooksPath", "linked", "rm linked; mkdir linked; HOOK linked/post-commit"),
    ("core.hooksPath", "linked", "HOOK kept/post-commit"),
]


@pytest.mark.parametrize(("key", "value", "line"), POINTED_AT)
def test_what_the_configuration_of_git_names_cannot_be_made_or_changed(
    box: Box, key: str, value: str, line: str
) -> None:
    ran, git = box.elsewhere / "ran", ["git", "-C", str(box.workspace), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "config", key, value], check=True)
    for folder in ("tools", "kept"):
        (box.workspace / folder).mkdir()
    (box.workspace / "tools/present").write_text("#!/bin/sh\n")
    (box.workspace / "linked").symlink_to("kept")
    steps = (
        HOOKS.format(ran=ran, at=step.removeprefix("HOOK ")) if step.startswith("HOOK ") else step
        for step in line.split("; ")
    )
    script = "; ".join(steps)
    commit = [*git, "commit", "-q", "--allow-empty", "-m", "x"]
    box.run(script)
    subprocess.run(commit, check=True, capture_output=True)
    assert not ran.exists()
    assert box.run("mkdir -p ordinary && touch ordinary/made tools/other").status == 0
    subprocess.run(["rm", "-rf", *(str(box.workspace / name) for name in (".husky", "linked"))], check=True)
    (box.workspace / "linked").symlink_to("kept")
    (box.workspace / ".githooks").mkdir(exist_ok=True)
    box.run(script, inside=False)
    subprocess.run(commit, check=False, capture_output=True)
    assert ran.exists(), "the control: it is executed"


def test_what_the_configuration_of_the_user_names_cannot_be_made(box: Box) -> None:
    subprocess.run(["git", "init", "-q", str(box.workspace)], check=True)
    (box.home / ".gitconfig").write_text("[core]\n\thooksPath = .githooks\n")
    assert box.run("mkdir -p .githooks && touch .githooks/pre-commit").status != 0
    assert list((box.workspace / ".githooks").iterdir()) == []


@pytest.mark.parametrize("name", ["perstack.toml", "sub/perstack.toml", "sub/PERSTACK.TOML", "perstack.lock"])
def test_a_program_makes_no_definition(box: Box, name: str) -> None:
    (box.workspace / "perstack.toml").unlink()
    lock = box.workspace / "perstack.lock"
    named = replace(box, around=replace(box.around, protected=(box.workspace / "perstack.toml", lock)))
    ran = named.run(f"mkdir -p sub && echo 'runtime = \"local\"' > {name}")
    assert ran.status == 0
    assert [str(box.workspace / name) in line for line in ran.ending.refused] == [True]
    assert not (box.workspace / name).exists()


@pytest.mark.parametrize("name", ["check.py", "tools/check.py"])
def test_a_program_of_the_host_can_be_read_and_is_neither_changed_nor_made(box: Box, name: str) -> None:
    path = box.workspace / name
    named = replace(box, around=replace(box.around, protected=(*box.around.protected, path)))
    assert named.run(f"mkdir -p $(dirname {name}) && echo evil > {name}").ending.refused
    assert not path.exists()
    path.write_text("exit 0")
    ran = named.run(f"cat {name}; echo evil > {name}; rm -f {name}; mv {name} x; mv tools moved; true")
    assert ran.output.startswith("exit 0")
    assert path.read_text() == "exit 0"


@pytest.mark.parametrize("name", ["sub/perstack", "a/b/perstack", "plain/perstack/jobs"])
def test_the_state_of_another_project_is_absent(box: Box, name: str) -> None:
    state = box.workspace / name
    state.mkdir(parents=True)
    (state / "job.json").write_text("SECRET")
    if not name.startswith("plain"):
        (state.parent / "perstack.toml").touch()
    ran = box.run(
        f"cat {name}/job.json; echo evil > {name}/job.json; mkdir {name}/x; mv {name} moved; cat moved/*; true"
    )
    assert "SECRET" not in ran.output
    assert (state / "job.json").read_text() == "SECRET"
    assert [path.name for path in state.iterdir()] == ["job.json"]


def evil(name: str) -> str:
    return f"mkdir -p $(dirname {name}); printf '[experts.worker]\\nruntime = \"local\"\\n' > {name}"


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("experts/*.toml", evil("experts/x.toml")),
        ("experts/*", evil("experts/x")),
        ("**/team.toml", evil("deep/er/team.toml")),
        ("*.toml", evil("x.toml")),
        ("experts/.*", evil("experts/.x")),
        ("experts/**/*", evil("experts/a/b/c/x")),
        ("experts/[.x]*", evil("experts/.x") + "; " + evil("experts/x")),
        ("more/*.toml", evil("planted/x.toml") + "; ln -s planted more"),
        (
            "experts/*.toml",
            "mkdir -p planted; mv experts/kept.toml . ; " + evil("planted/y.toml") + "; mv planted/y.toml experts",
        ),
        ("more/*.toml", evil("planted/x") + "; mkdir -p more; ln planted/x more/hard.toml"),
        ("more/*.toml", evil("planted/x") + "; mkdir -p more; ln -s ../planted/x more/soft.toml"),
    ],
)
def test_a_program_adds_no_definition_that_a_pattern_of_include_means(
    usable: None, terminal: Terminal, pattern: str, line: str
) -> None:
    work = terminal.workspace
    (work / "experts").mkdir()
    (work / "experts" / "kept.toml").write_text("[experts.kept]\ninstruction = 'x'\n")
    terminal.project(
        f'include = ["{pattern}"]\nruntime = "bubblewrap"\n[experts.a]\ninstruction = "x"\n', a=[reply("ok")]
    )
    terminal.run("sandbox", "a", "--", "sh", "-c", line)
    found = terminal.run("validate", "--json")
    assert "worker" not in found.out
    assert list(work.rglob("*set-aside*"))


def test_what_a_program_makes_while_another_one_runs_is_set_aside_too(box: Box) -> None:
    async def scene() -> tuple[list[str], bool]:
        said: list[str] = []
        runtime = await BubblewrapFactory().prepare(box.policy, replace(box.around, on_notice=said.append))

        async def start(line: str) -> Process:
            return await await_start(asyncio.create_task(runtime.start(replace(box.program(line), stdin=DEVNULL))))

        server = await start(
            "mkdir -p one/.git; touch ready; while [ ! -e go ]; do sleep 0.02; done; mkdir -p two/.git"
        )
        async with end_with_block(server):
            while not (box.workspace / "ready").exists():
                await asyncio.sleep(0.01)
            other = await start("true")
            async with end_with_block(other):
                await other.wait()
            seen = (box.workspace / "one/.git").exists()
            (box.workspace / "go").touch()
            await server.wait()
        await runtime.close()
        return said, seen

    said, seen = wait_for(scene())
    assert not seen, "it is gone before another program starts"
    assert [str(box.workspace / name) in line for name, line in zip(("one/.git", "two/.git"), said, strict=True)]
    assert not (box.workspace / "two/.git").exists()


def test_a_process_that_outlives_its_program_makes_nothing_afterwards(box: Box) -> None:
    line = "setsid sh -c 'while :; do mkdir -p late/.git sub/.git; done' > /dev/null 2>&1 & touch started"
    for _ in range(10):
        assert box.run(line).status == 0
        assert not (box.workspace / "late/.git").exists()
        assert not (box.workspace / "sub/.git").exists()


def test_what_a_person_makes_between_two_programs_stays(box: Box) -> None:
    async def scene() -> None:
        runtime = await BubblewrapFactory().prepare(box.policy, box.around)
        for number in range(3):
            process = await await_start(asyncio.create_task(runtime.start(box.program("true"))))
            async with end_with_block(process):
                await process.wait()
            assert runtime.ending(process).refused == ()
            (box.workspace / f"{number}/.git").mkdir(parents=True)
        await runtime.close()

    wait_for(scene())
    assert all((box.workspace / f"{number}/.git").is_dir() for number in range(3))


def test_more_folders_than_are_looked_at_hide_no_repository_near_the_top(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perstack_bubblewrap import file_view as keeping

    monkeypatch.setattr(keeping, "MAX_FOLDERS", 20)
    watch = FileViewBuilder(box.policy, box.around)
    watch.build()
    for number in range(40):
        (box.workspace / f"{number}/x/y").mkdir(parents=True)
    (box.workspace / "z.git").mkdir()
    (box.workspace / ".git").mkdir()
    said = watch.set_aside()
    assert str(box.workspace / ".git") in said[0]
    assert "too many folders" in said[-1]


def test_a_place_that_a_program_replaces_does_not_keep_others_from_being_looked_at(box: Box) -> None:
    (box.workspace / "vendor/models").mkdir(parents=True)
    named = box.with_policy(readable=(str(box.workspace / "vendor/models"),))
    ran = named.run(f"mv vendor aside; mkdir vendor; ln -s {box.elsewhere} vendor/models; mkdir .git")
    assert [str(box.workspace / ".git") in line for line in ran.ending.refused] == [True]


def test_the_model_is_told_what_was_set_aside_and_so_is_the_person(
    usable: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = Seen()
    make = turn(tool("exec", {"command": "git", "args": ["init", "-q", "made"]}))
    one = host(tmp_path, {"[[a]]": [make, text("ok")]}, expert("a"))
    assert wait_for(one.run("a", "q", on_event=seen)).status == "completed"
    assert "made/.git, which git or perstack would execute" in results(seen, "exec")[0]
    assert "made/.git, which git or perstack would execute" in capsys.readouterr().err
    assert not (tmp_path / "made/.git").exists()


@pytest.mark.parametrize("place", ["state.db", "data/state.db", "link.db"])
def test_a_database_in_the_workspace_itself_is_refused_before_anything_runs(
    usable: None, terminal: Terminal, place: str
) -> None:
    (terminal.workspace / "link.db").symlink_to("state.db")
    (terminal.workspace / "data").mkdir()
    terminal.project(
        f'storage = "sqlite:{place}"\nruntime = "bubblewrap"\n[experts.a]\ninstruction = "x"\n', a=[reply("ok")]
    )
    named = ("--storage", f"sqlite:{place}") if place == "link.db" else ()  # a link is followed where a person names it
    ended = terminal.run("run", "a", "q", *named)
    assert ended.code == 2
    assert "is in a folder that programs in a sandbox may change" in ended.err
    assert len(ended.err.strip().splitlines()) == 1
    assert not (terminal.workspace / "state.db").exists()
    assert terminal.run("run", "a", "q", "--runtime", "local", *named).code == 0


def test_a_database_in_the_state_folder_or_outside_is_kept_from_programs(usable: None, terminal: Terminal) -> None:
    for place in ("perstack/state.db", str(terminal.workspace.parent / "beside.db")):
        terminal.project(
            f'storage = "sqlite:{place}"\nruntime = "bubblewrap"\n[experts.a]\ninstruction = "x"\n', a=[reply("ok")]
        )
        assert terminal.run("run", "a", "q").code == 0
        tried = f"echo x > {place}-journal; echo x > {place}-wal; echo x > {place}"
        terminal.run("sandbox", "a", "--", "sh", "-c", tried)
        assert terminal.run("verify", "--all").code == 0
        assert not Path(terminal.workspace / f"{place}-journal").exists()


def test_a_database_in_a_writable_place_is_refused(usable: None, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    around = Surroundings(
        tmp_path / "work", "job", {}, hidden=(shared / "s.db", shared / "s.db-wal", shared / "s.db-journal")
    )
    (tmp_path / "work").mkdir()
    policy = SandboxPolicy(runtime="bubblewrap", writable=(str(shared),))
    with pytest.raises(UsageError, match="SQLite's files next to it"):
        wait_for(BubblewrapFactory().check(policy, around))
