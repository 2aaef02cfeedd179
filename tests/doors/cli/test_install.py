"""`perstack install`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from lock_project import SERVER, did, lock_of, offer, skill, tool_entry
from terminal import SECONDS, Terminal

EXPERTS = """
[experts.lead]
instruction = "You lead."
delegates = ["helper"]
[experts.helper]
instruction = "You help."
[experts.other]
instruction = "You wait."
"""


@pytest.fixture
def shop(terminal: Terminal) -> Terminal:
    """Return a project with three Experts: the first delegates to the second, and both have the same server."""
    folder = terminal.workspace
    offer(folder, tool_entry("walk"), tool_entry("dig", depth="integer"))
    skills = skill("lead", "tools", folder) + skill("helper", "tools", folder, pick=["walk"])
    return terminal.project(EXPERTS + skills + skill("other", "more", folder, timeout=30_000))


def test_every_distinct_skill_is_asked_once_and_locked(shop: Terminal) -> None:
    result = shop.call("install")
    assert result.code == 0, result.err
    assert did(shop.workspace) == ["start", "start"]
    assert sorted(line.split(" in ")[0] for line in result.err.splitlines()) == [
        "more: ready with 2 tools",
        "more: starting",
        "tools: ready with 2 tools",
        "tools: starting",
    ]
    assert result.out.strip() == f"{shop.workspace / 'perstack.lock'}: 2 skills locked"
    lock = lock_of(shop.workspace)
    assert (lock["version"], sorted(lock["experts"])) == (1, ["helper", "lead", "other"])
    assert [entry["name"] for entry in lock["skills"]] == ["more", "tools"]
    assert lock["skills"][0]["instructions"] == "Mind the file."
    assert [tool["name"] for tool in lock["skills"][0]["tools"]] == ["dig", "walk"]


def test_skills_of_one_name_that_differ_are_told_apart_by_their_experts(shop: Terminal) -> None:
    config = shop.workspace / "perstack.toml"
    config.write_text(config.read_text() + skill("other", "tools", shop.workspace, timeout=20_000))
    result = shop.call("install")
    assert {line.split(":")[0] for line in result.err.splitlines()} == {"tools (lead)", "tools (other)", "more"}


def test_arguments_and_values_of_variables_are_not_in_the_lock(shop: Terminal) -> None:
    config, folder = shop.workspace / "perstack.toml", shop.workspace
    line = f"exec {sys.executable} {SERVER} {folder}/tools.json {folder}/notes # --token=s3cret-argument"
    secret = f'[experts.other.skills.secret]\ntype = "mcpStdioSkill"\ncommand = "sh"\nargs = ["-c", "{line}"]\n'
    config.write_text(config.read_text() + secret + 'requiredEnv = ["TOKEN"]\n')
    shop.env["TOKEN"] = "s3cret-value"
    assert shop.call("install", "other").code == 0
    assert "secret" in {entry["name"] for entry in lock_of(folder)["skills"]}
    assert "s3cret" not in (folder / "perstack.lock").read_text()


def test_the_same_answers_give_the_same_bytes(shop: Terminal) -> None:
    shop.call("install")
    first = (shop.workspace / "perstack.lock").read_bytes()
    offer(shop.workspace, tool_entry("dig", depth="integer"), tool_entry("walk"))
    shop.call("install")
    assert (shop.workspace / "perstack.lock").read_bytes() == first


def test_an_expert_is_locked_with_its_delegates_and_the_others_stay(shop: Terminal) -> None:
    assert shop.call("install", "lead").code == 0
    assert sorted(lock_of(shop.workspace)["experts"]) == ["helper", "lead"]
    assert shop.call("install", "other").code == 0
    lock = lock_of(shop.workspace)
    assert sorted(lock["experts"]) == ["helper", "lead", "other"]
    assert [entry["name"] for entry in lock["skills"]] == ["more", "tools"]
    assert shop.call("install", "nobody").code == 2


def test_a_server_that_fails_is_named_and_the_others_are_locked(shop: Terminal) -> None:
    config = shop.workspace / "perstack.toml"
    broken = '[experts.other.skills.broken]\ntype = "mcpStdioSkill"\ncommand = "/no/such/program"\n'
    needy = skill("other", "needy", shop.workspace, requiredEnv=["NOT_SET_HERE"])
    config.write_text(config.read_text() + broken + needy)
    result = shop.call("install")
    assert result.code == 1
    errors = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2
    assert any("broken" in line and "/no/such/program" in line for line in errors)
    assert any("NOT_SET_HERE" in line for line in errors)
    assert [entry["name"] for entry in lock_of(shop.workspace)["skills"]] == ["more", "tools"]


def test_the_lock_stands_beside_the_definition(shop: Terminal, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (shop.workspace / "perstack.toml").rename(elsewhere / "perstack.toml")
    place = ("--config", str(elsewhere / "perstack.toml"))
    assert shop.call("trust", "--yes", *place).code == 0
    assert shop.call("install", *place).code == 0
    assert (elsewhere / "perstack.lock").is_file()


def test_a_lock_that_cannot_be_written_is_one_line(shop: Terminal) -> None:
    (shop.workspace / "perstack.lock").mkdir()
    result = shop.call("install", "other")
    assert result.code == 1
    assert [line for line in result.err.splitlines() if "other" not in line and "more" not in line] == [
        f"error: {shop.workspace / 'perstack.lock'} cannot be written: Is a directory"
    ]
    assert not list(shop.workspace.glob(".perstack.lock*"))


def test_a_damaged_lock_is_replaced(shop: Terminal) -> None:
    (shop.workspace / "perstack.lock").write_text("<<<<<<< ours")
    assert shop.call("install").code == 0
    assert lock_of(shop.workspace)["version"] == 1


def test_ctrl_c_leaves_the_old_lock_and_no_process(shop: Terminal) -> None:
    shop.call("install")
    folder = shop.workspace
    before = (folder / "perstack.lock").read_bytes()
    os.mkfifo(folder / "pipe")
    config = folder / "perstack.toml"
    config.write_text(config.read_text() + skill("other", "silent", folder, str(folder / "pipe")))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with warm.perstack("install", cwd=folder, env=shop.env, **pipes) as process:
        server = int((folder / "pipe").read_text())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert errors.endswith(b"interrupted: perstack.lock was not written\n")
    assert b"Traceback" not in errors
    assert (folder / "perstack.lock").read_bytes() == before
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


def test_a_terminal_shows_a_row_for_each_skill(shop: Terminal) -> None:
    seen = shop.look("install")
    assert "ready with 2 tools" in seen
    assert "2 skills locked" in seen


def _differs(shop: Terminal) -> bytes:
    """Lock the tools, change one and add one. Return the lock."""
    assert shop.call("install").code == 0
    grown = tool_entry("walk") | {"description": "It can walk.\nsecretly\u200b\n+ harmless"}
    offer(shop.workspace, grown, tool_entry("dig", depth="integer"), tool_entry("swim"))
    return (shop.workspace / "perstack.lock").read_bytes()


def test_new_and_changed_tools_are_shown_and_need_agreement_in_a_pipe(shop: Terminal) -> None:
    before = _differs(shop)
    result = shop.call("install")
    assert result.code == 2
    assert (shop.workspace / "perstack.lock").read_bytes() == before
    lines = [line for line in result.err.splitlines() if " in " not in line and "starting" not in line]
    first = lines.index("tools/walk is changed:") + 1
    assert lines[first : first + 2] == ["  +     | secretly\\u200b", "  +     | + harmless"]
    assert "tools/swim is new:" in lines
    assert "  + description: It can swim." in lines
    assert lines[-1] == "error: these tools differ from perstack.lock: to agree to them, add --yes"
    agreed = shop.call("install", "--yes")
    assert (agreed.code, "tools/walk is changed:" in agreed.err) == (0, True)
    assert [tool["name"] for tool in lock_of(shop.workspace)["skills"][1]["tools"]] == ["dig", "swim", "walk"]
    assert shop.call("install").code == 0, "nothing differs any more"


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_a_terminal_is_asked_about_them(shop: Terminal, answer: str) -> None:
    before = _differs(shop)
    seen = shop.look("install", types=f"{answer}\n")
    assert "tools/walk is changed:" in seen
    assert "Agree to all of this?" in seen
    assert ((shop.workspace / "perstack.lock").read_bytes() == before) is (answer == "no")


def test_a_tool_that_is_gone_needs_no_agreement(shop: Terminal) -> None:
    shop.call("install")
    offer(shop.workspace, tool_entry("walk"))
    assert shop.call("install").code == 0
    assert [tool["name"] for tool in lock_of(shop.workspace)["skills"][1]["tools"]] == ["walk"]


def test_validate_names_the_tools_that_differ(shop: Terminal) -> None:
    _differs(shop)
    result = shop.call("validate", "--tools")
    assert "new, left out: swim; changed, each call asks: walk" in result.err + result.out
