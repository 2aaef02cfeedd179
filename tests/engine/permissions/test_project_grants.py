"""«Always in this project»: an approval holds for later Jobs, is listed, and can be revoked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from approval_jobs import ME, answer, exec_, hosted
from hosts import Bench, Seen, expert, results, wait_for
from terminal import Terminal, reply

from perstack.config.grants import ProjectGrant, ProjectGrants
from perstack.core.definitions.permissions import Permissions
from perstack.doors.shared.consent import page_of
from perstack.errors import StorageError
from perstack.testing.scripted import text, tool
from perstack.trust.run_files import contents_of_rule

RULE = "exec(git status --short)"
STATUS = exec_("git", "status", "--short")
SCRIPT = [STATUS, STATUS, text("ok")]


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the user's state directory."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    return home


def host(bench: Bench, script=SCRIPT, rules: Permissions | None = None):
    return hosted(bench, script, rules=rules, open=False, attended=True)


def test_a_grant_holds_in_the_job_and_in_later_ones(bench: Bench) -> None:
    job = wait_for(host(bench).run("a", "q"))
    assert job.asking is not None
    assert job.asking.offers == (RULE,)
    assert answer(host(bench), job, f"always in this project: {RULE}").status == "completed"
    seen = Seen()
    there = host(bench)
    later = wait_for(there.run("a", "q", on_event=seen))
    assert later.status == "completed"
    assert [(event.decision, event.rule, event.by.door) for event in seen.of("decideApproval")] == [
        ("job", RULE, "project grant")
    ]
    assert wait_for(there.audit.replay(later.id)).ok
    assert wait_for(there.audit.verify(later.id)).ok


def test_it_covers_nothing_but_what_it_names(bench: Bench) -> None:
    ProjectGrants(bench.workspace).add(RULE, ME)
    for line in ("git push", "git status; touch x", "rm -rf .", "sh -c 'git status && rm x'"):
        job = wait_for(host(bench, [exec_("sh", "-c", line), text("ok")]).run("a", "q"))
        assert job.asking is not None, line


def test_a_rule_that_was_not_offered_is_no_answer(bench: Bench) -> None:
    job = wait_for(host(bench).run("a", "q"))
    with pytest.raises(Exception, match="the answer does not fit"):
        answer(host(bench), job, "always in this project: exec")
    assert ProjectGrants(bench.workspace).all() == ()


def test_a_denying_rule_wins_over_a_grant(bench: Bench) -> None:
    ProjectGrants(bench.workspace).add(RULE, ME)
    seen = Seen()
    wait_for(host(bench, rules=Permissions(deny=(RULE,))).run("a", "q", on_event=seen))
    assert RULE in results(seen)[0]


def test_it_answers_a_rule_that_asks_too(bench: Bench) -> None:
    ProjectGrants(bench.workspace).add(RULE, ME)
    assert wait_for(host(bench, rules=Permissions(ask=("exec",))).run("a", "q")).status == "completed"


def test_another_project_has_none_of_it(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> None:
    ProjectGrants(tmp_path_factory.mktemp("other")).add(RULE, ME)
    assert wait_for(host(bench).run("a", "q")).asking is not None


@pytest.mark.parametrize("content", [b"{", b'{"folder": 1}', b"\xff"])
def test_a_damaged_file_grants_nothing_and_says_how_to_go_on(bench: Bench, home: Path, content: bytes) -> None:
    ProjectGrants(bench.workspace).add(RULE, ME)
    (file,) = (home / "perstack" / "grants").iterdir()
    file.write_bytes(content)
    with pytest.raises(StorageError, match="remove it to revoke all grants"):
        ProjectGrants(bench.workspace).rules()


def test_the_file_is_the_users_alone(bench: Bench, home: Path) -> None:
    ProjectGrants(bench.workspace).add(RULE, ME)
    folder = home / "perstack" / "grants"
    (file,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


def test_grants_are_added_once_and_revoked(tmp_path: Path) -> None:
    grants = ProjectGrants(tmp_path)
    for rule in ("exec(a b *)", "exec(c d *)", "exec(a b *)"):
        grants.add(rule, ME)
    assert [one.rule for one in grants.all()] == ["exec(a b *)", "exec(c d *)"]
    assert [one.rule for one in grants.revoke(lambda one: one.rule == "exec(a b *)")] == ["exec(a b *)"]
    assert grants.rules() == ("exec(c d *)",)
    assert isinstance(grants.all()[0], ProjectGrant)


def test_the_command_line_lists_and_revokes(terminal: Terminal, home: Path) -> None:
    terminal.env["XDG_STATE_HOME"] = str(home)
    terminal.project('[experts.a]\ninstruction = "x"\n', a=[reply("done")])
    assert terminal.call("permissions", "list").out == ""
    ProjectGrants(terminal.workspace).add(RULE, ME)
    assert terminal.call("permissions", "list").out.splitlines()[1].startswith(f"{RULE}  ann ")
    assert json.loads(terminal.call("permissions", "list", "--json").out)["rule"] == RULE
    assert terminal.call("permissions", "revoke").code == 2
    assert "not granted in this project: exec" in terminal.call("permissions", "revoke", "exec").err
    assert terminal.call("permissions", "revoke", RULE).err == f"revoked: {RULE}\n"
    assert terminal.call("permissions", "revoke", "--all").err == "this project has no grants\n"


def test_a_grant_given_at_the_terminal_is_shown_with_its_extent(terminal: Terminal, home: Path) -> None:
    terminal.env["XDG_STATE_HOME"] = str(home)
    call = ("exec", {"command": "git", "args": ["status", "--short"]})
    terminal.project("[experts.a]\ninstruction = 'x'\n")
    terminal.script(a=[reply("", call), reply("done")])
    seen = terminal.look("run", "a", "q", "--provider", "scripted", types=f"always in this project: {RULE}\n")
    assert f"always in this project: {RULE}" in seen
    assert "done" in seen
    assert ProjectGrants(terminal.workspace).rules() == (RULE,)


def test_a_full_disk_answers_nothing(bench: Bench, home: Path) -> None:
    job = wait_for(host(bench).run("a", "q"))
    (home / "perstack").mkdir(exist_ok=True)  # only a state folder of files has marked its state here
    (home / "perstack" / "grants").write_text("in the way")
    with pytest.raises(StorageError, match="grants cannot be stored"):
        answer(host(bench), job, f"always in this project: {RULE}")
    there = wait_for(host(bench).job(job.id))
    assert there.asking is not None


def test_delegates_share_the_grants_of_the_project(bench: Bench) -> None:
    ProjectGrants(bench.workspace).add(RULE, ME)
    team = {"[[boss]]": [tool("hand", {"query": "go"}), text("done")], "[[hand]]": [STATUS, text("ok")]}
    there = hosted(bench, team, expert("boss", delegates=("hand",)), expert("hand"), open=False, attended=True)
    assert wait_for(there.run("boss", "q")).status == "completed"


# A grant of a program holds for the files that it names as they were.

CHECK = exec_("sh", "check.sh")
CHECKED = "exec(sh check.sh)"


def write(bench: Bench, name: str, content: str) -> Path:
    path = bench.workspace / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def grant_check(bench: Bench, line: object = CHECK, rule: str = CHECKED) -> None:
    """Let a person allow a command in the project."""
    script = [line, text("ok")]
    job = wait_for(host(bench, script).run("a", "q"))
    assert answer(host(bench, script), job, f"always in this project: {rule}").status == "completed"


def asked(bench: Bench, *script: object) -> str:
    """Return the page of the question that a new Job asks; empty without one."""
    job = wait_for(host(bench, [*(script or (CHECK,)), text("ok")]).run("a", "q"))
    return "" if job.asking is None else "\n".join(page_of(job.asking, bench.workspace).lines)


@pytest.mark.parametrize(
    ("line", "rule", "path"),
    [
        (CHECK, CHECKED, "check.sh"),
        (exec_("./tools/check"), "exec(./tools/check)", "tools/check"),
        (exec_("python3", "-m", "checks.all"), "exec(python3 -m checks.all)", "checks/all.py"),
        (exec_("python3", "-m", "checks"), "exec(python3 -m checks)", "checks/__main__.py"),
        (exec_("pytest", "tests/test_a.py"), "exec(pytest tests/test_a.py)", "tests/test_a.py"),
    ],
)
def test_a_changed_file_asks_again_and_is_named(bench: Bench, line: object, rule: str, path: str) -> None:
    file = write(bench, path, "exit 0\n")
    grant_check(bench, line, rule)
    assert not asked(bench, line)
    file.write_text("touch owned\n")
    assert f"  {path} has changed since the rule was granted to this project" in asked(bench, line)
    file.write_text("exit 0\n")
    assert not asked(bench, line), "a content that was agreed to stays agreed to"


def test_a_link_and_a_new_module_ask_too(bench: Bench) -> None:
    file = write(bench, "check.sh", "exit 0\n")
    grant_check(bench)
    outside = bench.workspace.parent / "outside.sh"
    outside.write_text("exit 0\n")
    file.unlink()
    file.symlink_to(outside)
    assert "check.sh has changed" in asked(bench)
    grant_check(bench, exec_("python3", "-m", "checks"), "exec(python3 -m checks)")
    write(bench, "checks.py", "")
    assert "checks.py has changed" in asked(bench, exec_("python3", "-m", "checks"))


def test_a_yes_to_the_changed_file_holds_for_it_and_a_no_for_nothing(bench: Bench) -> None:
    file = write(bench, "check.sh", "exit 0\n")
    grant_check(bench)
    file.write_text("exit 1\n")
    job = wait_for(host(bench, [CHECK, text("ok")]).run("a", "q"))
    answer(host(bench, [CHECK, text("ok")]), job, "no")
    assert "check.sh has changed" in asked(bench)
    grant_check(bench)
    assert not asked(bench)
    (grant,) = ProjectGrants(bench.workspace).all()
    assert len(grant.files["check.sh"]) == 2


def test_what_an_expert_writes_asks_nothing_again(bench: Bench) -> None:
    """It may not write what the grant names, and everything else is none of the grant's business."""
    write(bench, "check.sh", "exit 0\n")
    write(bench, "test_a.py", "")
    grant_check(bench)
    ProjectGrants(bench.workspace).add("exec(ls *)", ME)
    writes = [tool("writeTextFile", {"path": path, "text": "x"}) for path in ("check.sh", "test_a.py", "new.sh")]
    seen = Seen()
    script = [*writes, CHECK, exec_("ls", "new.sh"), text("ok")]
    assert wait_for(host(bench, script).run("a", "q", on_event=seen)).status == "completed"
    assert (bench.workspace / "check.sh").read_text() == "exit 0\n"
    assert (bench.workspace / "test_a.py").read_text() == "x"
    assert not asked(bench, CHECK, exec_("ls", "new.sh"))


def test_files_are_compared_at_each_call(bench: Bench) -> None:
    """A program that a person has approved may change them meanwhile."""
    write(bench, "check.sh", "exit 0\n")
    grant_check(bench)
    write(bench, "other.sh", "touch owned\n")
    script = [CHECK, exec_("cp", "other.sh", "check.sh"), CHECK, text("ok")]
    job = wait_for(host(bench, script).run("a", "q"))
    assert job.asking is not None
    job = answer(host(bench, script), job, "yes")
    assert job.asking is not None
    assert "check.sh has changed" in "\n".join(page_of(job.asking, bench.workspace).lines)
    assert not (bench.workspace / "owned").exists()
    there = host(bench)
    assert wait_for(there.audit.replay(job.id)).ok
    assert wait_for(there.audit.verify(job.id)).ok


def test_nobody_is_asked_in_an_unattended_job_and_nothing_runs(bench: Bench) -> None:
    file = write(bench, "check.sh", "exit 0\n")
    grant_check(bench)
    file.write_text("touch owned\n")
    there = hosted(bench, [CHECK, text("ok")], rules=Permissions(ask=("exec",)), open=False, unattended=True)
    seen = Seen()
    assert wait_for(there.run("a", "q", on_event=seen)).status == "completed"
    assert "nobody is there to give it" in results(seen)[0]
    assert not (bench.workspace / "owned").exists()


def test_a_grant_of_an_earlier_version_asks_once_where_it_names_a_file(bench: Bench) -> None:
    write(bench, "check.sh", "exit 0\n")
    ProjectGrants(bench.workspace).add(CHECKED, ME)
    ProjectGrants(bench.workspace).add(RULE, ME)
    assert "was not recorded then" in asked(bench)
    grant_check(bench)
    assert not asked(bench)
    assert not asked(bench, STATUS)


def test_the_list_names_changed_files(terminal: Terminal, home: Path) -> None:
    terminal.env["XDG_STATE_HOME"] = str(home)
    terminal.project('[experts.a]\ninstruction = "x"\n')
    script = terminal.workspace / "check.sh"
    script.write_text("exit 0\n")
    contents = contents_of_rule(CHECKED, terminal.workspace)
    ProjectGrants(terminal.workspace).add(CHECKED, ME, contents=contents)
    assert terminal.call("permissions", "list").out.splitlines()[1].endswith("1 file as allowed")
    script.write_text("exit 1\n")
    assert terminal.call("permissions", "list").out.splitlines()[1].endswith("changed since: check.sh")
