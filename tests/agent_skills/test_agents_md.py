"""AGENTS.md of a project: which files a model is shown, and what is recorded of them."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

from hosts import Bench, Seen, expert, wait_for
from hypothesis import given
from hypothesis import strategies as st
from terminal import Terminal, reply

from perstack.agent_skills.agents_md import MAX_AGENTS_MD_BYTES, assemble_agents_md, read_agents_md
from perstack.testing.scripted import ScriptedProvider, text, tool

SCRIPTED = ("--provider", "scripted")


def repository(top: Path) -> Path:
    """Create a repository with a workspace two folders below its top, and return the workspace."""
    (top / ".git").mkdir(parents=True)
    work = top / "packages" / "api"
    work.mkdir(parents=True)
    (top.parent / "AGENTS.md").write_text("Outside.")
    (top / "AGENTS.md").write_text("Use tabs.")
    (work / "AGENTS.md").write_text("Use spaces.")
    (work / "src").mkdir()
    (work / "src" / "AGENTS.md").write_text("Below.")
    return work


def test_the_files_from_the_top_of_the_repository_to_the_workspace_are_shown_nearest_last(tmp_path: Path) -> None:
    shown, files = read_agents_md(repository(tmp_path / "repo"))
    assert shown.endswith("From AGENTS.md:\nUse tabs.\n\nFrom packages/api/AGENTS.md:\nUse spaces.")
    assert "Outside" not in shown
    assert "Below" not in shown
    assert [(file.path, file.sha256, file.size) for file in files] == [
        ("AGENTS.md", sha256(b"Use tabs.").hexdigest(), 9),
        ("packages/api/AGENTS.md", sha256(b"Use spaces.").hexdigest(), 11),
    ]


def test_without_a_repository_it_is_that_of_the_workspace_alone(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Above.")
    (tmp_path / "work").mkdir()
    assert read_agents_md(tmp_path / "work") == ("", ())
    (tmp_path / "work" / "AGENTS.md").write_text("Here.")
    assert "Here." in read_agents_md(tmp_path / "work")[0]


def test_a_link_is_followed_within_the_project_and_no_further(tmp_path: Path) -> None:
    work = repository(tmp_path / "repo")
    (tmp_path / "key").write_text("SECRET")
    (tmp_path / "repo" / ".env").write_text("SECRET")
    (tmp_path / "repo" / "CLAUDE.md").write_text("Be brief.")
    for target, is_shown in ((tmp_path / "key", False), (tmp_path / "repo" / ".env", False), ("../../CLAUDE.md", True)):
        (work / "AGENTS.md").unlink()
        (work / "AGENTS.md").symlink_to(target)
        shown, files = read_agents_md(work)
        assert "SECRET" not in shown
        assert ("Be brief." in shown) == is_shown
        assert bool(files[1].problem) != is_shown
        assert ("packages/api/AGENTS.md is not shown: it is a link" in shown) != is_shown


def test_of_too_much_the_nearest_is_kept_and_what_is_cut_is_said(tmp_path: Path) -> None:
    work = repository(tmp_path / "repo")
    (tmp_path / "repo" / "AGENTS.md").write_text("far " * 10_000)
    shown, (far, near) = read_agents_md(work)
    assert "Use spaces." in shown
    assert "of 40,000 bytes are left out.]" in shown
    assert (far.shown, near.shown) == (MAX_AGENTS_MD_BYTES - 11, None)


@given(st.lists(st.binary(max_size=200), max_size=5), st.binary(max_size=2 * MAX_AGENTS_MD_BYTES))
def test_whatever_the_files_hold_the_text_is_bounded_and_each_is_recorded(small: list[bytes], large: bytes) -> None:
    found = [(f"{number}/AGENTS.md", data) for number, data in enumerate([*small, large])]
    shown, files = assemble_agents_md(found)
    assert len(shown) < MAX_AGENTS_MD_BYTES + 2_000
    assert [file.path for file in files] == [path for path, _ in found]


def test_a_run_records_what_it_was_shown_and_a_delegate_is_shown_none(bench: Bench) -> None:
    (bench.workspace / "AGENTS.md").write_text("Use tabs.")
    script = {"[[a]]": [tool("b", {"query": "x"}), tool("c", {"query": "x"}), text("ok")], "[[b]]": [text("b")]}
    provider, seen = ScriptedProvider({**script, "[[c]]": [text("c")]}), Seen()
    host = bench.host(
        provider,
        expert("a", delegates=("b", "c"), agents_md=True),
        expert("b"),
        expert("c", agents_md=True),
    )
    wait_for(host.run("a", "q", job_id="job", on_event=seen))
    started = {event.expert_key: event for event in seen.of("startRun")}
    assert "Use tabs." in started["a"].instruction
    assert "Use tabs." not in started["b"].instruction
    assert "Use tabs." in started["c"].instruction
    assert [len(started[key].agents_md) for key in "abc"] == [1, 0, 1]
    (bench.workspace / "AGENTS.md").write_text("Use spaces.")
    assert wait_for(host.audit.replay("job")).ok


def test_it_is_off_unless_asked_for_and_at_the_top_of_the_file_it_is_for_coordinators(terminal: Terminal) -> None:
    team = '[experts.a]\ninstruction = "x"\ndelegates = ["b"]\n[experts.b]\ninstruction = "x"\n'
    (terminal.workspace / "AGENTS.md").write_text("Use tabs.")
    for top, shown in (("", [False, False]), ("agentsMd = true\n", [True, False])):
        terminal.project(top + team, a=[reply("", ("b", {"query": "q"})), reply("ok")], b=[reply("ok")])
        result = terminal.call("run", "a", "q", *SCRIPTED)
        assert ["Use tabs." in event["instruction"] for event in result.events if event["type"] == "startRun"] == shown
        parts = json.loads(terminal.call("expert", "show", "a", "--json", *SCRIPTED).out)["parts"]
        assert [part["tokens"] > 0 for part in parts if part["name"] == "AGENTS.md"] == [True] * shown[0]
    as_delegate = terminal.call("expert", "show", "a", "--as-delegate", *SCRIPTED).out
    assert "Use tabs." not in as_delegate


def test_a_resumed_run_keeps_what_it_was_shown(terminal: Terminal) -> None:
    (terminal.workspace / "AGENTS.md").write_text("Use tabs.")
    terminal.project(
        'agentsMd = true\nmaxSteps = 1\n[experts.a]\ninstruction = "x"\n',
        a=[reply("", ("think", {"thought": "hm"})), reply("ok")],
    )
    assert terminal.call("run", "a", "q", "--job-id", "job", *SCRIPTED).code == 4
    (terminal.workspace / "AGENTS.md").write_text("Use spaces.")
    assert terminal.call("resume", "job", "--max-steps", "9", *SCRIPTED).code == 0
    assert terminal.call("replay", "job").code == 0
