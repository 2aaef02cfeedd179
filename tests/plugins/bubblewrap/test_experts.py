"""What an Expert starts in a sandbox, by the Python door and at the terminal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hosts import Seen, expert, results, wait_for
from sandbox_programs import host
from terminal import Terminal, reply

from perstack.core.definitions.experts import Iterate
from perstack.core.definitions.sandbox import Sandbox
from perstack.core.definitions.skills import AgentSkill, McpStdioSkill
from perstack.errors import UsageError
from perstack.testing.scripted import text, tool, turn

SERVER = Path(__file__).parents[1] / "mcp" / "servers" / "misbehaving.py"
LOOK = turn(tool("exec", {"command": "sh", "args": ["-c", "id -un; cat .env; env; ls perstack; echo made > made"]}))


def test_exec_has_the_workspace_and_none_of_the_hosts_keys(usable: None, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("KEY=secret")
    seen = Seen()
    sandbox = Sandbox(env=("GIVEN",))
    one = host(tmp_path, {"[[a]]": [LOOK, text("ok")]}, expert("a"), env={"GIVEN": "by name"}, sandbox=sandbox)
    assert wait_for(one.run("a", "q", on_event=seen)).status == "completed"
    output = json.loads(results(seen, "exec")[0])["output"]
    assert output.startswith("user\n")
    assert "secret" not in output
    assert "GIVEN=by name" in output
    assert "jobs" not in output
    assert (tmp_path / "made").read_text() == "made\n"


def test_a_server_and_an_evaluator_run_in_it_too(usable: None, tmp_path: Path) -> None:
    python = shutil.which("python3", path="/usr/bin")
    if python is None:
        pytest.skip("there is no /usr/bin/python3, which a sandbox shows")
    shutil.copy(SERVER, tmp_path / "server.py")
    server = McpStdioSkill(name="s", command=python, args=("server.py", "none"), required=True)
    evaluator = ("sh", "-c", 'test "$(id -un)" = user && echo \'{"score": 1}\'')
    one = expert("a", iterate=Iterate(evaluator=evaluator, max_iterations=1))
    run = host(tmp_path, {"[[a]]": [text("ok")]}, one.model_copy(update={"skills": (server,)}))
    series = wait_for(run.iterations.begin("a", "q"))
    assert series.status == "completed", series
    assert series.iterations[0].metrics == {"score": 1.0}


def test_file_tools_are_held_to_what_programs_are_over_delegates_and_a_resume(usable: None, tmp_path: Path) -> None:
    work, shared, library = (tmp_path / name for name in ("work", "shared", "library"))
    for folder in (work, shared, library):
        folder.mkdir()
    (library / "file").write_text("from the library")
    (work / ".env").write_text("KEY=value")
    read = [turn(tool("readTextFile", {"path": path})) for path in (f"{library}/file", ".env")]
    write = turn(tool("writeTextFile", {"path": f"{shared}/made", "text": "made"}))
    wait = turn(tool("think", {"thought": "…"}))
    script = {
        "[[a]]": [turn(tool("b", {"query": "x"})), wait, wait, write, text("ok")],
        "[[b]]": [*read, text("done")],
    }
    sandbox = Sandbox(writable=(str(shared),), readable=(str(library), str(work / ".env")))
    experts, seen = (expert("a", delegates=("b",)), expert("b")), Seen()
    job = wait_for(host(work, script, *experts, sandbox=sandbox, max_steps=3).run("a", "q", on_event=seen))
    assert job.status == "stoppedByMaxSteps"
    assert ["from the library" in results(seen, "readTextFile")[0], "KEY=value" in results(seen, "readTextFile")[1]]
    assert not (shared / "made").exists()
    later = Sandbox(writable=(str(library),))
    assert wait_for(host(work, script, *experts, sandbox=later).resume(job.id, max_steps=9)).status == "completed"
    assert (shared / "made").read_text() == "made"


@pytest.mark.parametrize("key", ["writable", "readable"])
def test_a_folder_that_holds_the_home_folder_is_refused_before_anything_runs(
    usable: None, tmp_path: Path, key: str
) -> None:
    sandbox = Sandbox.model_validate({key: (str(tmp_path),)})
    one = host(tmp_path / "work", {}, expert("a"), env={"HOME": str(tmp_path / "home")}, sandbox=sandbox)
    (tmp_path / "work").mkdir(exist_ok=True)
    with pytest.raises(UsageError, match=f"`{key}` of \\[sandbox\\] is .* contains your home folder"):
        wait_for(one.run("a", "q"))


def test_without_bwrap_it_is_said_what_to_install_and_nothing_runs(terminal: Terminal, tmp_path: Path) -> None:
    from perstack_bubblewrap import machine

    terminal.project('[experts.a]\ninstruction = "x"\nruntime = "bubblewrap"\n', a=[reply("ok")])
    if Path("/usr/bin/bwrap").exists() or Path("/bin/bwrap").exists():
        with pytest.raises(UsageError, match="apt install bubblewrap"):
            machine.find_bwrap({"PATH": str(tmp_path)}, path="")
        return
    ran = terminal.call("run", "a", "q", "--provider", "scripted")
    assert (ran.code, ran.out) == (2, "")
    assert "apt install bubblewrap" in ran.err
    assert not terminal.jobs().exists()


def test_a_command_is_run_as_the_experts_exec_would(usable: None, terminal: Terminal) -> None:
    toml = '[experts.a]\ninstruction = "x"\nruntime = "bubblewrap"\n[experts.b]\ninstruction = "x"\n'
    terminal.project(f'[sandbox]\ntime = 3000\nenv = ["GIVEN"]\n{toml}')
    ran = terminal.run("sandbox", "a", "--", "sh", "-c", "id -un; echo $GIVEN; exit 7", env={"GIVEN": "by name"})
    assert (ran.code, ran.out) == (7, "user\nby name\n")
    late = terminal.run("sandbox", "a", "--", "sleep", "20")
    assert late.code == 128 + 9
    assert "ended by the sandbox: it ran longer than 3000 ms" in late.err
    refused = terminal.run("sandbox", "b", "--", "true")
    assert refused.code == 2
    assert "the runtime local cannot enforce what [sandbox] says: `time`: only a sandbox can" in refused.err


def test_the_doctor_says_what_can_be_used_here_and_how_limits_are_kept(usable: None, terminal: Terminal) -> None:
    terminal.project('runtime = "bubblewrap"\n[experts.a]\ninstruction = "x"\n')
    found = terminal.run("doctor", "--json")
    assert found.code == 0, found.err
    runtimes = {one["name"]: one for one in json.loads(found.out)["runtimes"]}
    assert (runtimes["bubblewrap"]["is_wanted"], runtimes["bubblewrap"]["problem"]) == (True, "")
    assert set(runtimes["bubblewrap"]["limits"]) == {"memory", "processes", "cpu", "time", "tmp"}
    assert runtimes["local"]["is_wanted"] is False
    assert "bubblewrap" in terminal.run("doctor").out


def test_a_script_of_an_agent_skill_runs_in_the_sandbox_which_cannot_change_it(usable: None, tmp_path: Path) -> None:
    work, folder = tmp_path / "work", tmp_path / "skills" / "pdf"
    work.mkdir()
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: pdf\ndescription: Reads PDFs.\n---\nRun scripts/say.sh.\n")
    (folder / "scripts" / "say.sh").write_text('echo said; echo no > "$0"')
    knowing = AgentSkill(name="pdf", path=str(folder))
    one = expert("a").model_copy(update={"skills": (knowing,)})
    script = [turn(tool("exec", {"command": "sh", "args": [str(folder / "scripts/say.sh")]})), text("ok")]
    seen = Seen()
    assert wait_for(host(work, script, one).run("a", "q", on_event=seen)).status == "completed"
    output = json.loads(results(seen, "exec")[0])["output"]
    assert output.startswith("said\n")
    assert "Read-only" in output
    assert str(folder) in seen.of("startRun")[0].sandbox.readable
