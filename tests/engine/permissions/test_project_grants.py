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
from perstack.errors import StorageError
from perstack.testing.scripted import text

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
    assert "nobody has granted exec here" in terminal.call("permissions", "revoke", "exec").err
    assert terminal.call("permissions", "revoke", RULE).err == f"revoked: {RULE}\n"
    assert terminal.call("permissions", "revoke", "--all").err == "there are no grants here\n"


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
    (home / "perstack" / "grants").write_text("in the way")
    with pytest.raises(StorageError, match="grants cannot be kept"):
        answer(host(bench), job, f"always in this project: {RULE}")
    there = wait_for(host(bench).job(job.id))
    assert there.asking is not None


def test_delegates_share_the_grants_of_the_project(bench: Bench) -> None:
    from perstack.testing.scripted import tool

    ProjectGrants(bench.workspace).add(RULE, ME)
    team = {"[[boss]]": [tool("hand", {"query": "go"}), text("done")], "[[hand]]": [STATUS, text("ok")]}
    there = hosted(bench, team, expert("boss", delegates=("hand",)), expert("hand"), open=False, attended=True)
    assert wait_for(there.run("boss", "q")).status == "completed"
