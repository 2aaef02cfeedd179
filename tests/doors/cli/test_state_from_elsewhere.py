"""State that came with a folder from elsewhere is shown, and nothing in it acts before its user has agreed to it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Collection
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from editor import attached
from hosts import open_storage, wait_for
from http_server import DECIDING_HEADERS, serving
from mcp_types import ElicitRequestFormParams, ElicitRequestParams, ElicitResult
from stranger_state import (
    ASKED,
    HARMLESS,
    SCHEDULED,
    arrived,
    by_archive,
    by_clone,
    by_copy,
    owned,
    tree,
    writing_owned,
)
from stranger_state import as_stranger as as_stranger
from stranger_state import nothing_is_named as nothing_is_named
from stranger_state import room as room
from stranger_state import stranger as stranger
from stranger_state import stranger_once as stranger_once
from terminal import Terminal, reply

from perstack.errors import NotAgreed
from perstack.host import Host
from perstack.system.process_groups import boot_identity, process_start_time

NOBODY = "perstack trust --state"


@pytest.fixture(params=[by_clone, by_copy, by_archive])
def cloned(request: pytest.FixtureRequest, stranger: Terminal, terminal: Terminal) -> Terminal:
    """Return the stranger's folder as it arrives in ours."""
    request.param(stranger.workspace, terminal.workspace)
    terminal.env["OWNED"] = stranger.env["OWNED"]
    return terminal


ACTS = [
    ("resume", "@last"),
    ("resume", "limited", "--max-steps", "9"),
    ("resume", "series"),
    ("run", "solo", "again", "--continue-job", "done"),
    ("run", "solo", "a new one"),
    ("answer", "t", "yes"),
    ("iterate", "solo", "go"),
    ("cancel", "limited"),
    ("delete", "limited", "--yes"),
    ("prune", "--older-than", "0d", "--yes"),
    ("redact", "limited-1-1", "query", "--reason", "x"),
    ("rewind", "limited", "limited-1-2", "--yes"),
    ("task", "run-due"),
    ("task", "create", "u"),
    ("task", "resume", "t"),
    ("task", "delete", "t", "--yes"),
    ("storage", "copy", "file:perstack", "file:other"),
]
READS = [
    (),
    ("jobs",),
    ("jobs", "--json"),
    ("log", "--job", "limited"),
    ("log", "--job", "done", "--messages"),
    ("inbox",),
    ("cost",),
    ("du",),
    ("iterations",),
    ("task", "list"),
    ("task", "get", "t"),
    ("schedules",),
    ("verify", "--all"),
    ("replay", "done"),
    ("validate",),
    ("doctor",),
    ("permissions", "backtest"),
    ("trust", "--state", "--show"),
]


def test_nothing_acts_on_it(cloned: Terminal) -> None:
    before = tree(cloned.workspace / "perstack")
    for command in ACTS:
        result = cloned.call(*command)
        assert result.code == 2, (command, result)
        assert not owned(cloned), command
        assert "Traceback" not in result.err
    assert NOBODY in cloned.call("resume", "limited").err
    assert tree(cloned.workspace / "perstack") == before
    assert not (cloned.workspace / "other" / "jobs" / "limited").exists()


def test_commands_that_read_work_and_write_nothing(cloned: Terminal, tmp_path_factory: pytest.TempPathFactory) -> None:
    # a torn tail, as a crash leaves it
    with cloned.log_of("limited-1").open("ab") as log:
        log.write(b'{"type":"callT')
    before = tree(cloned.workspace)
    for command in READS:
        result = cloned.call(*command)
        assert NOBODY not in result.err, (command, result.err)
        assert "Traceback" not in result.err
        assert tree(cloned.workspace) == before, command
    assert "limited" in cloned.call("jobs").out
    exported = tmp_path_factory.mktemp("exported") / "exported.json"
    assert cloned.call("export", "done", "--format", "json", "--to", str(exported)).code == 0
    assert exported.exists()


SNAPSHOTS = 'workspace = { path = ".", snapshots = true }\n' + HARMLESS


def test_a_planted_question_takes_no_answer(room: Terminal, terminal: Terminal) -> None:
    room.project(ASKED, solo=[reply("", writing_owned(room)), reply("done")])
    assert room.run("run", "solo", "go", "--job-id", "asks").code == 3
    ours = arrived(room, terminal, ASKED)
    before = tree(ours.workspace / "perstack")
    (item,) = ours.run("inbox", "--json").events
    for answer in ("yes", "always", "no"):
        refused = ours.call("answer", item["id"], answer)
        assert (refused.code, NOBODY in refused.err) == (2, True), refused
    assert not owned(ours)
    assert tree(ours.workspace / "perstack") == before
    assert ours.call("trust", "--state", "--yes").code == 0
    assert ours.call("answer", item["id"], "yes").code == 0
    assert owned(ours), "the planted question was one that could be answered"


def test_a_planted_snapshot_restores_no_file(room: Terminal, terminal: Terminal) -> None:
    writes = ("writeTextFile", {"path": "a.txt", "text": "theirs"})
    room.project(SNAPSHOTS, solo=[reply("", writes), reply("", writing_owned(room)), reply("done")])
    (room.workspace / "a.txt").write_text("before")
    assert room.run("run", "solo", "go", "--job-id", "j").code == 0
    ours = arrived(room, terminal, SNAPSHOTS)
    (ours.workspace / "a.txt").write_text("ours")
    before = tree(ours.workspace)
    checkpoints = [path.stem for path in (ours.jobs() / "j" / "checkpoints").iterdir()]
    assert checkpoints
    for checkpoint in checkpoints:
        assert ours.call("rewind", "j", checkpoint, "--yes").code == 2
    branch = ("run", "solo", "x", "--continue-job", "j", "--resume-from", checkpoints[-1])
    assert NOBODY in ours.call(*branch).err
    assert tree(ours.workspace) == before


def test_a_planted_schedule_starts_nothing(room: Terminal, terminal: Terminal) -> None:
    room.project(SCHEDULED, solo=[reply("done")] * 4)
    assert room.call("trust", "--yes").code == 0
    assert room.run("task", "run-due").code == 0
    assert (room.workspace / "perstack" / "schedules").is_dir()
    ours = arrived(room, terminal, SCHEDULED)
    before = tree(ours.workspace / "perstack")
    refused = ours.call("task", "run-due")
    assert (refused.code, NOBODY in refused.err) == (2, True), refused
    assert "now" in ours.call("schedules").out
    assert tree(ours.workspace / "perstack") == before


def test_a_planted_recording_plays_no_model_and_no_person(room: Terminal, terminal: Terminal) -> None:
    room.project(ASKED, solo=[reply("", writing_owned(room)), reply("done")])
    assert room.run("run", "solo", "go", "--job-id", "asks").code == 3
    (item,) = room.run("inbox", "--json").events
    assert room.run("answer", item["id"], "yes").code == 0
    assert owned(room)
    Path(room.env["OWNED"]).unlink()
    assert room.run("record", "asks", "--to", "tests/r.json").code == 0
    by_copy(room.workspace, terminal.workspace)
    terminal.env["OWNED"] = room.env["OWNED"]
    test = '[[experts.solo.tests]]\nname = "t"\nquery = "go"\nmodel = "tests/r.json"\nexpect.called = ["exec"]\n'
    provider = '[provider]\nproviderName = "recorded"\nsetting.recording = "tests/r.json"\n'
    for toml, command in ((ASKED + test, ("test",)), (provider + ASKED, ("run", "solo", "go"))):
        (terminal.workspace / "perstack.toml").write_text(toml)
        refused = terminal.call(*command)
        assert (refused.code, owned(terminal)) == (2, False), refused


def test_a_planted_lock_holds_up_nobody_who_reads(room: Terminal, terminal: Terminal) -> None:
    """Locks are files that a process left which is not ours, with any name and content."""
    room.project(HARMLESS, solo=[reply("done")] * 2)
    assert room.run("run", "solo", "go", "--job-id", "j").code == 0
    theirs = room.workspace / "perstack"
    for path in ("jobs/j/lock", "jobs/j/.lock", "jobs/j/lease", "jobs/j/lease.json", ".lock"):
        (theirs / path).write_text(json.dumps({"pid": os.getpid(), "holder": "x", "expiresAt": 1 << 62}))
    by_copy(room.workspace, terminal.workspace)
    terminal.env["OWNED"] = room.env["OWNED"]
    before = tree(terminal.workspace / "perstack")
    for command_line in (("resume", "j"), ("delete", "j", "--yes"), ("run", "solo", "go")):
        result = terminal.call(*command_line)
        assert (result.code, NOBODY in result.err) == (2, True), (command_line, result)
    for command_line in (("jobs",), ("log", "--job", "j"), ("du",)):
        assert terminal.call(*command_line).code == 0, command_line
    assert not owned(terminal)
    assert tree(terminal.workspace / "perstack") == before


def test_its_user_sees_what_waits_and_agrees(cloned: Terminal) -> None:
    shown = cloned.call("trust", "--state", "--show")
    assert f"echo > {cloned.env['OWNED']}" in shown.out
    assert f'runs: ["sh", "-c", "echo > {cloned.env["OWNED"]}"]' in shown.out
    assert "Run limited-1" in shown.out
    assert "iterations series" in shown.out
    assert cloned.call("trust", "--state").code == 2  # nobody can be asked
    assert cloned.call("trust", "--state", "--yes").code == 0
    assert cloned.call("cancel", "limited", "--final").code == 0
    assert cloned.call("trust", "--state", "--revoke").code == 0
    assert cloned.call("delete", "limited", "--yes").code == 2


def test_a_terminal_is_asked_in_place(cloned: Terminal) -> None:
    seen = cloned.look("cancel", "limited", "--final", columns=300, types="y\n")
    assert f"echo > {cloned.env['OWNED']}" in seen
    assert "Agree to all of this?" in seen
    assert "closed permanently" in cloned.call("cancel", "limited", "--final").out


@pytest.mark.parametrize("named", ["{0}", "{0}/perstack.toml", "{0}/perstack"])
def test_a_container_names_the_folder(cloned: Terminal, named: str) -> None:
    env = {"PERSTACK_TRUST": named.format(cloned.workspace)}
    assert cloned.call("cancel", "limited", "--final", env=env).code == 0


@pytest.mark.parametrize("named", ["{0}/..", "{0}/sub", "perstack", "{0}/perstack/jobs", ""])
def test_another_name_agrees_to_nothing(cloned: Terminal, named: str) -> None:
    env = {"PERSTACK_TRUST": named.format(cloned.workspace)}
    assert cloned.call("cancel", "limited", "--final", env=env).code == 2


def test_the_python_api_is_held_by_the_same_place(cloned: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSTACK_PLUGINS", "perstack.testing.plugin")

    async def act(host: Host) -> None:
        async with host:
            await host.cancel("limited", final=True)

    for host in (
        Host.open(workspace=cloned.workspace),
        Host.open(workspace=cloned.workspace, storage=f"file:{cloned.workspace}/perstack"),
        Host(Host.open(workspace=cloned.workspace).project, storage=open_storage("file:perstack", cloned.workspace)),
    ):
        with pytest.raises(NotAgreed) as raised:
            wait_for(act(host))
        assert any("echo >" in line for line in raised.value.page)


def test_a_mark_from_elsewhere_is_none(terminal: Terminal) -> None:
    """A published mark comes back with other Jobs in the folder: by a copy, a copy of the mark alone, a new clone."""
    terminal.project(HARMLESS, solo=[reply("done")] * 9)
    assert terminal.call("run", "solo", "go", "--job-id", "j").code == 0
    mark = terminal.workspace / "perstack" / "origin.json"
    assert mark.exists()
    other = Terminal(terminal.workspace / "other").as_stranger()
    shutil.copytree(terminal.workspace / "perstack", other.workspace / "perstack")
    shutil.copy(terminal.workspace / "perstack.toml", other.workspace)
    other.env = terminal.env
    assert other.call("delete", "j", "--yes").code == 2
    shutil.copy(mark, other.workspace / "perstack" / "origin.json")
    assert other.call("delete", "j", "--yes").code == 2
    kept = terminal.workspace / "kept"
    shutil.copytree(terminal.workspace / "perstack", kept)
    for _ in range(20):  # the inode number of the removed folder is used again at some time
        shutil.rmtree(terminal.workspace / "perstack")
        shutil.copytree(kept, terminal.workspace / "perstack")
        assert terminal.call("delete", "j", "--yes").code == 2


@pytest.mark.parametrize(
    "place", ["perstack/.rewinds", "perstack/rewinds", ".rewinds", ".perstack-rewind-0123456789ab"]
)
@pytest.mark.parametrize("phase", ["clearing", "forward", "back"])
@pytest.mark.parametrize("staging", ["../Documents", "{outside}", ".s", "link"])
def test_a_planted_journal_is_read_by_nobody(
    terminal: Terminal, tmp_path_factory: pytest.TempPathFactory, place: str, phase: str, staging: str
) -> None:
    outside = tmp_path_factory.mktemp("Documents")
    (outside / "thesis.txt").write_text("thesis")
    workspace = terminal.project(HARMLESS, solo=[reply("done")]).workspace
    (workspace / ".s").mkdir()
    (workspace / ".s" / "new-0").write_text("echo")
    (workspace / "link").symlink_to(outside)
    steps = [{"act": "put", "path": path, "number": 0} for path in ("../.bash_profile", ".git/hooks/post-commit")]
    journal = {"workspace": str(workspace), "storage": str(workspace / "perstack"), "phase": phase, "steps": steps}
    name = sha256(os.path.realpath(workspace).encode()).hexdigest()[:32]
    (workspace / place).mkdir(parents=True)
    text = json.dumps({**journal, "staging": staging.format(outside=outside)})
    (workspace / place / f"{name}.json").write_text(text)
    (workspace / place / f"{name}.lock").touch()
    for command in (("jobs",), ("run", "solo", "go"), ("rewind", "x", "x-1-1", "--yes")):
        assert "Traceback" not in terminal.call(*command).err
    assert (outside / "thesis.txt").read_text() == "thesis"
    assert [path.name for path in outside.iterdir()] == ["thesis.txt"]
    assert not (workspace.parent / ".bash_profile").exists()
    assert (workspace / ".s" / "new-0").exists()


def test_no_process_of_the_user_is_ended_for_a_planted_record(cloned: Terminal) -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        try:
            lines = f"{boot_identity()} 1 1\n{process.pid} {process_start_time(process.pid)}\n"
            for folder in ("perstack/.programs", "perstack/programs"):
                (cloned.workspace / folder).mkdir(parents=True, exist_ok=True)
                (cloned.workspace / folder / "0123456789abcdef.1").write_text(lines)
            for command in (*ACTS, *READS):
                cloned.call(*command)
            assert process.poll() is None
        finally:
            process.kill()


def test_no_head_of_it_is_sent_to_an_anchor(cloned: Terminal) -> None:
    """Records wait in the state until an anchor has accepted them."""
    outbox = open_storage("file:perstack", cloned.workspace).space("headsoftasks")
    wait_for(outbox.create_job("t"))
    sent = cloned.workspace / "anchor.jsonl"
    (cloned.workspace / "perstack.toml").write_text(f'[audit]\nanchor = "file:{sent}"\n{HARMLESS}')
    for command in (*ACTS, ("verify", "--all")):
        cloned.call(*command)
    assert not sent.exists()
    assert "records of the heads of 1 tasks" in cloned.call("trust", "--state", "--show").out


def test_an_event_from_outside_and_a_watcher_are_refused_too(cloned: Terminal) -> None:
    event = {"specversion": "1.0", "id": "7", "source": "/ci", "type": "done", "data": "green"}
    assert cloned.run("signal", "t", stdin=json.dumps(event)).code == 2
    assert cloned.run("signal", "limited", stdin=json.dumps(event)).code == 2
    assert cloned.run("task", "run-due", "--watch").code == 2
    assert not owned(cloned)


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)


@pytest.mark.parametrize("version", ["2", "4"])
def test_a_pull_does_not_bring_state_into_a_marked_folder(
    terminal: Terminal, stranger: Terminal, tmp_path_factory: pytest.TempPathFactory, version: str
) -> None:
    ours = Terminal(tmp_path_factory.mktemp("ours") / "clone")
    git(stranger.workspace, "init", "-q", ".")
    git(stranger.workspace, "add", "-f", "perstack.toml")
    git(stranger.workspace, "commit", "-qm", "clean")
    git(stranger.workspace, "clone", "-q", ".", str(ours.workspace))
    git(ours.workspace, "update-index", "--index-version", version)
    ours.env = terminal.env | {"PERSTACK_SCRIPT": str(ours.workspace / "script.json")}
    ours.script(solo=[reply("done")])
    assert ours.call("run", "solo", "go", "--job-id", "mine").code == 0
    assert ours.call("delete", "mine", "--yes").code == 0

    git(stranger.workspace, "add", "-Af", "perstack")
    git(stranger.workspace, "commit", "-qm", "planted")
    git(ours.workspace, "pull", "-q")
    for command in (("resume", "limited", "--max-steps", "9"), ("task", "run-due"), ("cancel", "limited", "--final")):
        assert ours.call(*command).code == 2
    assert ours.call("trust", "--state", "--yes").code == 0
    assert ours.call("cancel", "limited", "--final").code == 0

    with stranger.log_of("done-1").open("ab") as log:
        log.write(b"more\n")
    git(stranger.workspace, "commit", "-qam", "changed")
    git(ours.workspace, "pull", "-q")
    assert ours.call("delete", "done", "--yes").code == 2
    assert not Path(stranger.env["OWNED"]).exists()


@pytest.mark.parametrize(
    "forge",
    [
        lambda mark: mark.write_text(json.dumps({"id": "0" * 32, "mac": "0" * 64})),
        lambda mark: mark.write_text(json.dumps({"id": "0" * 32})),
        lambda mark: mark.write_bytes(mark.read_bytes() + b" " * 2000),
        lambda mark: (mark.rename(mark.with_name("real.json")), mark.symlink_to("real.json")),
        lambda mark: (mark.unlink(), os.mkfifo(mark)),
        lambda mark: (mark.unlink(), mark.mkdir()),
        lambda mark: mark.write_bytes(b"\xff"),
    ],
)
def test_an_invalid_mark_is_none(terminal: Terminal, forge: Callable[[Path], object]) -> None:
    terminal.project(HARMLESS, solo=[reply("done")])
    assert terminal.call("run", "solo", "go", "--job-id", "j").code == 0
    forge(terminal.workspace / "perstack" / "origin.json")
    assert terminal.call("delete", "j", "--yes").code == 2
    assert terminal.call("jobs").code == 0


def test_a_moved_project_keeps_its_mark(terminal: Terminal) -> None:
    room = Terminal(terminal.workspace / "room")
    room.workspace.mkdir()
    room.env = terminal.env | {"PERSTACK_SCRIPT": str(room.workspace / "script.json")}
    room.project(HARMLESS, solo=[reply("done")])
    assert room.call("run", "solo", "go", "--job-id", "j").code == 0
    moved = Terminal(terminal.workspace / "moved")
    room.workspace.rename(moved.workspace)
    moved.env = room.env
    assert moved.call("delete", "j", "--yes").code == 0


@pytest.mark.parametrize("storage", ["sqlite:perstack/state.db", "sqlite:state.db"])
def test_a_database_file_is_marked_too(terminal: Terminal, storage: str) -> None:
    terminal.project(f'storage = "{storage}"\n{HARMLESS}', solo=[reply("done")])
    assert terminal.call("run", "solo", "go", "--job-id", "j").code == 0
    database = terminal.workspace / storage.removeprefix("sqlite:")
    aside = terminal.workspace / "aside.db"
    shutil.copy(database, aside)
    database.unlink()
    aside.rename(database)
    before = {path.name for path in database.parent.iterdir()}
    assert terminal.call("delete", "j", "--yes").code == 2
    assert "j" in terminal.call("jobs").out
    assert {path.name for path in database.parent.iterdir()} == before
    assert terminal.call("trust", "--state", "--yes").code == 0
    assert terminal.call("delete", "j", "--yes").code == 0


def test_a_log_beside_a_database_is_shown_before_it_counts(terminal: Terminal) -> None:
    """SQLite applies a write-ahead log when it opens the file: the page has to show what that adds."""
    terminal.project(f'storage = "sqlite:s.db"\n{HARMLESS}', solo=[reply("done")])
    assert terminal.call("run", "solo", "go", "--job-id", "first").code == 0
    storage = open_storage("sqlite:s.db", terminal.workspace)
    wait_for(storage.create_job("second"))
    wal = terminal.workspace / "s.db-wal"
    assert wal.stat().st_size
    other = terminal.workspace / "other"
    other.mkdir()
    for path in (terminal.workspace / "s.db", wal, terminal.workspace / "perstack.toml"):
        shutil.copy(path, other)
    wait_for(storage.close())
    copied = Terminal(other).as_stranger()
    before = tree(other)
    assert copied.call("du", "second").code == 0
    assert copied.call("delete", "second", "--yes").code == 2
    assert tree(other) == before


def test_a_folder_with_anything_in_it_is_somebodys(terminal: Terminal) -> None:
    terminal.project(HARMLESS, solo=[reply("done")] * 3)
    (terminal.workspace / "perstack" / "jobs").mkdir(parents=True)
    assert terminal.call("run", "solo", "go").code == 2
    shutil.rmtree(terminal.workspace / "perstack")
    (terminal.workspace / "perstack").mkdir()
    assert terminal.call("run", "solo", "go").code == 0


# Doors beside the command line. What they offer is listed by themselves, so that a new operation is tried too.

VALUES = {"job": "limited", "id": "limited", "expert": "solo", "query": "go", "task_id": "t", "taskId": "t",
          "text": "yes", "answer": "yes", "job_id": "limited", "jobId": "limited", "decision": "yes", "value": "yes",
          "token": "t", "event": "e", "reason": "external_dependency", "error": "x", "name": "x"}  # fmt: skip


def filled(schema: dict[str, Any], names: Collection[str] | None = None) -> dict[str, object]:
    """Return an argument for each property that is required, or in `names`."""
    kinds = {"integer": 1, "number": 1, "boolean": True, "object": {}, "array": [], "string": "limited"}
    properties = schema.get("properties", {})
    wanted = schema.get("required", ()) if names is None else names
    return {name: VALUES.get(name, kinds.get(properties[name].get("type", ""), "x")) for name in wanted}


@pytest.fixture
def served(stranger: Terminal, terminal: Terminal) -> Terminal:
    """Return the stranger's folder as it arrives, with a definition of the user's own."""
    by_copy(stranger.workspace, terminal.workspace)
    terminal.env["OWNED"] = stranger.env["OWNED"]
    terminal.env["PERSTACK_TRUST"] = str(terminal.workspace / "elsewhere")
    return terminal


@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_nothing_acts_on_it_over_mcp_even_with_a_yes_to_each_form(served: Terminal, era: str) -> None:
    before = tree(served.workspace / "perstack")

    def fill(params: ElicitRequestParams) -> ElicitResult:
        (name,) = cast("ElicitRequestFormParams", params).requested_schema["properties"]
        return ElicitResult(action="accept", content={name: "yes"})

    async def work() -> set[str]:
        names: set[str] = set()
        async with attached(served, "--tasks", era=era, fill=fill) as editor:
            for tool in (await editor.client.list_tools()).tools:
                for arguments in (
                    filled(tool.input_schema),
                    filled(tool.input_schema, tool.input_schema["properties"]),
                ):
                    await editor.call(tool.name, **arguments)
                    assert not owned(served), tool.name
                    assert tree(served.workspace / "perstack") == before, tool.name
                names.add(tool.name)
        return names

    names = wait_for(work(), 60)
    assert {"resume_job", "solo"} <= names


def test_nothing_acts_on_it_over_http_even_with_the_token_that_decides(served: Terminal) -> None:
    before = tree(served.workspace / "perstack")
    statuses: dict[str, int] = {}
    with (
        serving(served, "--tasks") as (url, _),
        httpx.Client(base_url=url.removesuffix("/mcp"), headers=DECIDING_HEADERS, timeout=60) as client,
    ):
        described = client.get("/openapi.json").json()
        for path, methods in described["paths"].items():
            for method, operation in methods.items():
                body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
                route = re.sub(r"\{(\w+)\}", lambda match: VALUES.get(match[1], "limited"), path)
                reply = client.request(method, route, json=filled(body) if body else None)
                statuses[f"{method} {path}"] = reply.status_code
                assert not owned(served), path
                assert tree(served.workspace / "perstack") == before, path
    assert len(statuses) > 10
    assert statuses["get /v1/jobs/{id}"] == 200


def test_a_worker_takes_nothing_from_it(served: Terminal) -> None:
    before = tree(served.workspace / "perstack")
    served.env["PERSTACK_PLUGINS"] += ",memory_workers"
    served.env["PYTHONPATH"] = str(Path(__file__).parents[2] / "support")
    refused = served.run("worker", "--dispatcher", "memory:jobs")
    assert (refused.code, NOBODY in refused.err) == (2, True), refused.err
    assert tree(served.workspace / "perstack") == before
