"""The files of a Job in the studio: steps, the difference between two checkpoints, and a rewind after its diff."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from studio_server import StudioServer, Visitor, serving_studio
from terminal import Terminal, reply

from perstack.core.files.line_diff import Hunk
from perstack.snapshots.tree_diff import FileDiff, Side
from perstack_studio.changed_files import MAX_FILE_LINES, MAX_FILES, ShownFile, shown_files

PROJECT = """
workspace = { path = ".", snapshots = true }
[experts.solo]
instruction = "You work alone."
"""
HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m\n"


@pytest.fixture
def written(terminal: Terminal) -> Terminal:
    """Return a project whose Expert has written a file twice, and another one that is hostile."""
    terminal.project(
        PROJECT,
        solo=[
            reply("", ("writeTextFile", {"path": "a.txt", "text": "one\n"})),
            reply("", ("writeTextFile", {"path": "a.txt", "text": "two\n"})),
            reply("", ("writeTextFile", {"path": "<b>.txt", "text": HOSTILE})),
            reply("done"),
        ],
    )
    assert terminal.run("run", "solo", "Write", "--provider", "scripted", "--job-id", "j1").code == 0
    return terminal


@pytest.fixture
def server(written: Terminal) -> Iterator[StudioServer]:
    with serving_studio(written) as running:
        yield running


def _rewinds(page: str) -> list[str]:
    """Return the addresses of the plans that a page offers, the latest step first."""
    return re.findall(r'href="(/jobs/j1/rewind\?checkpoint=[^"]+)"', page)


def _after(page: str, step: int) -> str:
    """Return the checkpoint of a step, as the form offers it."""
    match = re.search(rf'<option value="([^"]+)"[^>]*>solo#1, after step {step}<', page)
    assert match is not None, page
    return match[1]


def test_files_are_shown_as_they_changed_by_step_and_between_checkpoints(server: StudioServer) -> None:
    visitor = server.visitor()
    page = visitor.get("/jobs/j1/files")

    assert "a.txt" in page
    assert '<span class="add">+two</span>' in page
    assert "+one" not in page  # it was changed again
    for step in (1, 2, 3):
        assert f">solo#1, step {step}<" in page
    first, second = _after(page, 1), _after(page, 2)
    assert '<span class="add">+one</span>' in visitor.get("/jobs/j1/files?run=j1-1&step=1")
    between = visitor.get(f"/jobs/j1/files?from={first}&to={second}")
    assert '<span class="remove">-one</span>' in between
    assert '<span class="add">+two</span>' in between
    assert "+1 −1 in 1 file" in between
    assert '<span class="add">+one</span>' in visitor.get(f"/jobs/j1/files?to={first}")
    assert '<span class="add">+two</span>' in visitor.get(f"/jobs/j1/files?from={first}&to=now")
    assert "No file was changed" in visitor.get(f"/jobs/j1/files?from={first}&to={first}")


def test_hostile_names_and_contents_are_text(server: StudioServer) -> None:
    visitor = server.visitor()
    page = visitor.get("/jobs/j1/files")

    assert "&lt;b&gt;.txt" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    for hostile in ("<b>", "<script>a", "\u202e", "\x1b"):
        assert hostile not in page
    alone = visitor.get("/jobs/j1/files?file=%3Cb%3E.txt")
    assert "&lt;b&gt;.txt" in alone
    assert "+two" not in alone
    for query in ("from=%3Cb%3E", "from=x&to=y", "step=999", "run=j1-9", "to=j1-1-9999", "from=../../x"):
        refused = visitor.get(f"/jobs/j1/files?{query}")
        assert "<b>" not in refused
        assert re.search(r'<p class="(warn|quiet)">[^<]+</p>', refused)
    visitor.get("/jobs/nothing/files", 404)


def test_a_rewind_restores_what_its_plan_showed_and_can_be_undone(written: Terminal, server: StudioServer) -> None:
    visitor, file = server.visitor(), written.workspace / "a.txt"
    plan = visitor.get(_rewinds(visitor.get("/jobs/j1/files"))[-1])
    assert '<span class="remove">-two</span>' in plan
    assert '<span class="add">+one</span>' in plan
    assert "this removes 1 file that was added since" in plan

    done = visitor.send(plan, "/jobs/j1/files/rewind")
    assert file.read_text() == "one\n"
    assert not (written.workspace / "<b>.txt").exists()
    after = visitor.follow(done)
    undo = re.search(r'href="([^"]+)">Undo this rewind', after)
    assert undo is not None
    visitor.send(visitor.get(undo[1]), "/jobs/j1/files/rewind")

    assert file.read_text() == "two\n"
    (started, _) = written.run("log", "j1", "--type", "startRewind", "--json").events
    assert started["by"]["door"] == "studio"


def test_a_stale_plan_is_refused(written: Terminal, server: StudioServer) -> None:
    visitor, file = server.visitor(), written.workspace / "a.txt"
    plan = visitor.get(_rewinds(visitor.get("/jobs/j1/files"))[-1])
    file.write_text("three\n")

    refused = visitor.send(plan, "/jobs/j1/files/rewind", 409)
    assert "files have changed since you saw the plan" in refused.text
    assert file.read_text() == "three\n"
    without = visitor.send(plan, "/jobs/j1/files/rewind", 400, digest="")
    assert "look at the plan" in without.text
    _is_refused_without_a_token(visitor)


def _is_refused_without_a_token(visitor: Visitor) -> None:
    origin = {"Origin": str(visitor.client.base_url).rstrip("/")}
    response = visitor.client.post(
        "/jobs/j1/files/rewind", data={"checkpoint": "j1-1-8", "digest": "x"}, headers=origin
    )
    assert response.status_code == 400


def test_added_files_stay_on_request(written: Terminal, server: StudioServer) -> None:
    visitor = server.visitor()
    plan = visitor.get(f"{_rewinds(visitor.get('/jobs/j1/files'))[-1]}&keep=1")
    assert "kept: it was added since" in plan

    visitor.send(plan, "/jobs/j1/files/rewind")

    assert (written.workspace / "<b>.txt").exists()
    assert (written.workspace / "a.txt").read_text() == "one\n"


def test_nothing_is_offered_where_only_shown_or_without_snapshots(written: Terminal) -> None:
    written.project("[experts.solo]\ninstruction = 'alone'\n", solo=[reply("done")])
    assert written.run("run", "solo", "Rest", "--provider", "scripted", "--job-id", "j2").code == 0
    with serving_studio(written, "--read-only") as server:
        visitor = server.visitor()
        page = visitor.get("/jobs/j1/files")
        assert "rewind to here" not in page
        visitor.get(f"/jobs/j1/rewind?checkpoint={_after(page, 1)}", 400)
        without = visitor.get("/jobs/j2/files")
        assert "snapshots = true" in without
        assert "<select" not in without


def test_what_can_be_read_of_a_damaged_job_is_shown(written: Terminal) -> None:
    log = written.log_of("j1-1")
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:10]) + b'{"type":"recordSnapshot"}\n' + b"".join(lines[11:]))
    with serving_studio(written) as server:
        visitor = server.visitor()
        page = visitor.get("/jobs/j1/files")
        assert ">solo#1, step 1<" in page
        assert ">solo#1, step 2<" not in page
        visitor.get(_rewinds(page)[-1], 503)
        assert re.search(r'<p class="warn">[^<]*line 11', page)
        assert "only a part of the events" in visitor.get("/compare?a=j1&b=j1").lower()


def test_a_page_of_files_is_bounded() -> None:
    lines = tuple(("+", b"x" * 9_000 + b"\n") for _ in range(MAX_FILE_LINES + 1))
    long = FileDiff("long", "added", None, Side("file", 9), len(lines), 0, hunks=(Hunk(0, 0, 1, len(lines), lines),))
    many = [FileDiff(f"f{number}", "added", None, Side("file", 0), 0, 0) for number in range(MAX_FILES)]

    shown = shown_files([long, *many])

    assert len(shown.files) == MAX_FILES
    assert shown.unlisted == 1
    assert shown.files[0].is_cut
    assert len(shown.files[0].lines) <= MAX_FILE_LINES
    assert sum(len(line) for _, line in shown.files[0].lines) < 2_100_000
    assert shown.files[1] == ShownFile("added", "f0", "empty", (), is_cut=True)  # the page has enough lines
