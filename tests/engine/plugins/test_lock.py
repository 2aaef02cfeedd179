"""Runs with a perstack.lock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import OPENED, Seen, results, wait_for
from lock_project import ONE, PLUGIN, Late, did, offer, skill, tool_entry
from terminal import Terminal, reply

from perstack.core.definitions.settings import Overrides
from perstack.core.definitions.skills import ToolSpec
from perstack.errors import UsageError
from perstack.host import Host
from perstack.ports.skill import Toolset
from perstack.testing.scripted import ScriptedProvider, ScriptLike, text, tool, turn


def _host(folder: Path, script: ScriptLike | ScriptedProvider, *plugins: object, **env: str) -> Host:
    provider = script if isinstance(script, ScriptedProvider) else ScriptedProvider(script)
    host = Host.open(
        workspace=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **env},
        overrides=Overrides(provider="scripted"),
        plugins=[provider, *plugins],
    )
    OPENED.append(host)
    return host


def _locked(folder: Path, toml: str, *plugins: object) -> None:
    (folder / "perstack.toml").write_text(toml)
    assert not wait_for(_host(folder, [], *plugins).skills.install()).failed


def _skill_events(seen: Seen) -> list[str]:
    return [event.type for event in seen.events if event.type.startswith("skill")]


def _offered_names(provider: ScriptedProvider, step: int, name: str = "mine") -> list[str]:
    return [spec.name for spec in provider.requests[step].tools if spec.skill_name == name]


def test_a_locked_server_is_not_started_when_none_of_its_tools_is_called(tmp_path: Path) -> None:
    offer(tmp_path, tool_entry("walk"))
    _locked(tmp_path, ONE + skill("a", "mine", tmp_path))
    provider, seen = ScriptedProvider([text("ok")]), Seen()
    assert wait_for(_host(tmp_path, provider).run("a", "q", on_event=seen)).status == "completed"
    assert _offered_names(provider, 0) == ["walk"]
    assert "Mind the file." in provider.requests[0].instruction
    assert did(tmp_path) == ["start"], "by the install"
    assert _skill_events(seen) == []


def test_a_locked_run_does_not_import_the_sdk(tmp_path: Path) -> None:
    terminal, folder = Terminal(tmp_path), tmp_path
    offer(folder, tool_entry("walk"))
    terminal.project(ONE + skill("a", "mine", folder), a=[reply("ok")])
    assert terminal.call("install").code == 0
    code = (
        "import sys\nfrom perstack.doors.cli.main import run_command_line\n"
        "try:\n    run_command_line()\nfinally:\n"
        "    print([n for n in ('mcp', 'tomli_w') if n in sys.modules], file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "run", "a", "q", "--provider", "scripted"]
    done = subprocess.run(command, cwd=folder, env=terminal.env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
    assert did(folder) == ["start"]


def test_the_first_calls_connect_once_and_show_it(tmp_path: Path) -> None:
    offer(tmp_path, tool_entry("walk"), tool_entry("dig"))
    _locked(tmp_path, ONE + skill("a", "mine", tmp_path))
    provider, seen = ScriptedProvider([turn(tool("walk"), tool("dig")), text("ok")]), Seen()
    wait_for(_host(tmp_path, provider).run("a", "q", on_event=seen))
    assert sorted(results(seen)) == ["dig was called", "walk was called"]
    assert did(tmp_path)[:2] == ["start", "start"]
    assert len(did(tmp_path)) == 4
    assert _skill_events(seen) == ["skillStarting", "skillConnected", "skillDisconnected"]
    assert _offered_names(provider, 0) == _offered_names(provider, 1) == ["dig", "walk"]


def test_tools_that_differ_from_the_lock_are_named_and_none_of_them_is_offered_as_it_is(tmp_path: Path) -> None:
    offer(tmp_path, tool_entry("walk"), tool_entry("dig"), tool_entry("rest"))
    _locked(tmp_path, ONE + skill("a", "mine", tmp_path))
    offer(tmp_path, tool_entry("walk"), tool_entry("dig", depth="integer"), tool_entry("swim"))
    provider, seen = ScriptedProvider([turn(tool("rest"), tool("walk")), text("ok")]), Seen()
    wait_for(_host(tmp_path, provider).run("a", "q", on_event=seen))
    assert [event.message for event in seen.of("skillStderr")] == [
        "perstack.lock is out of date for skill mine: install the skills again"
        " (missing: rest; new, left out: swim; changed, each call asks: dig)"
    ]
    assert _offered_names(provider, 0) == ["dig", "rest", "walk"]
    assert _offered_names(provider, 1) == ["dig", "walk"]
    (gone,) = [event for event in seen.of("finishToolCall") if event.tool_name == "rest"]
    assert gone.is_error
    assert "call rest" not in did(tmp_path)
    assert results(seen, "walk") == ["walk was called"]


def test_a_server_that_cannot_be_reached_is_told_to_the_model(tmp_path: Path) -> None:
    late, seen = Late("walk"), Seen()
    _locked(tmp_path, PLUGIN, late)
    late.problem, late.asked, late.closed = "skill 'mine' could not be connected to: nobody answers", 0, 0
    provider = ScriptedProvider([turn(tool("walk"), tool("walk")), text("without")])
    job = wait_for(_host(tmp_path, provider, late).run("a", "q", on_event=seen))
    assert (job.status, late.asked, late.closed) == ("completed", 1, 1)
    assert results(seen) == [late.problem] * 2
    assert _offered_names(provider, 1) == []
    assert _skill_events(seen) == ["skillStarting", "skillDisconnected"]


def test_a_plugin_skill_is_locked_too_and_closed(tmp_path: Path) -> None:
    late, seen = Late("walk"), Seen()
    _locked(tmp_path, PLUGIN, late)
    late.asked = late.closed = 0
    wait_for(_host(tmp_path, [text("ok")], late).run("a", "q", on_event=seen))
    assert (late.asked, late.closed) == (0, 1)
    wait_for(_host(tmp_path, [tool("walk"), text("ok")], late).run("a", "q", on_event=seen))
    assert results(seen) == ["did walk"]


def test_a_definition_that_has_changed_is_not_taken_from_the_lock(tmp_path: Path) -> None:
    late, seen = Late("walk"), Seen()
    _locked(tmp_path, PLUGIN, late)
    (tmp_path / "perstack.toml").write_text(PLUGIN + "settings = {depth = 2}\n")
    late.toolset = Toolset((ToolSpec(name="swim"),))
    provider = ScriptedProvider([text("ok")])
    wait_for(_host(tmp_path, provider, late).run("a", "q", on_event=seen))
    assert _offered_names(provider, 0) == ["swim"]
    assert [event.message for event in seen.of("skillStderr")] == [
        "perstack.lock is out of date for skill mine: install the skills again (its definition has changed)"
    ]


def test_a_missing_variable_is_named_before_anything_starts(tmp_path: Path) -> None:
    offer(tmp_path, tool_entry("walk"))
    toml = ONE + skill("a", "mine", tmp_path, requiredEnv=["TOKEN"])
    (tmp_path / "perstack.toml").write_text(toml)
    host = _host(tmp_path, [], TOKEN="s3cret-token")
    assert not wait_for(host.skills.install()).failed
    assert "s3cret-token" not in (tmp_path / "perstack.lock").read_text()
    provider = ScriptedProvider([text("ok")])
    job = wait_for(_host(tmp_path, provider).run("a", "q"))
    assert (job.status, provider.requests) == ("stoppedByError", [])
    assert "TOKEN" in (job.error or "")


@pytest.mark.parametrize("content", ["<<<", "x = 1\n", "version = 2\n", "version = 1\n[[skills]]\nname = 'a'\n"])
def test_a_lock_that_does_not_read_stops_a_run_before_anything_is_written(tmp_path: Path, content: str) -> None:
    (tmp_path / "perstack.toml").write_text(ONE)
    (tmp_path / "perstack.lock").write_text(content)
    with pytest.raises(UsageError, match="install the skills again"):
        wait_for(_host(tmp_path, [text("ok")]).run("a", "q"))
    assert not (tmp_path / "perstack" / "jobs").exists() or not list((tmp_path / "perstack" / "jobs").iterdir())


def test_a_required_skill_is_connected_to_though_it_is_locked(tmp_path: Path) -> None:
    late = Late("walk")
    _locked(tmp_path, PLUGIN, late)
    (tmp_path / "perstack.toml").write_text(PLUGIN + "required = true\n")
    late.asked, late.problem = 0, "skill 'mine' is away"
    provider = ScriptedProvider([text("ok")])
    job = wait_for(_host(tmp_path, provider, late).run("a", "q"))
    assert (job.status, job.error) == ("stoppedByError", "skill 'mine' is required and missing: skill 'mine' is away")
    assert not provider.requests
    late.problem = ""
    assert wait_for(_host(tmp_path, provider, late).resume(job.id)).text == "ok"
    assert late.asked > 1, "the lock still holds: that it is required is no other skill"
