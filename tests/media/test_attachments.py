"""Attachments of a query: their type is detected, and they are stored as blobs and sent to the model."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Literal

import pytest
from hosts import Bench, Seen, crashing, expert, until_it_crashes, wait_for
from hypothesis import given
from hypothesis import strategies as st
from terminal import Terminal, reply

from perstack.audit.redact import redact_event
from perstack.core.base.ids import By
from perstack.core.messages.messages import BlobPart, TextPart
from perstack.doors.shared.workspace_files import read_workspace_file
from perstack.errors import UsageError
from perstack.media.attachments import read_attachment
from perstack.testing.crashing_storage import CrashPoint
from perstack.testing.scripted import ScriptedProvider, text, tool
from perstack.toolkit import Blob

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
PDF = b"%PDF-1.7\n" + bytes(range(256))
SCRIPTED = ("--provider", "scripted")
SOLO = '[experts.a]\ninstruction = "x"\n'


def test_files_bytes_and_blobs_are_part_of_the_query_and_blobs_of_the_job(bench: Bench, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-shot.txt"
    outside.write_bytes(PNG)
    provider, seen = ScriptedProvider([text("ok"), text("again")]), Seen()
    host = bench.host(provider, expert("a"))
    given = [str(outside), PDF, Blob(b"a note", name="notes.md")]
    job = wait_for(host.run("a", "q", job_id="job", attachments=given, on_event=seen))
    query, image, document, note = provider.requests[0].messages[0].contents
    assert query == TextPart(text="q")
    assert (image.mime_type, image.name, image.size) == ("image/png", outside.name, len(PNG))
    assert (document.mime_type, document.name) == ("application/pdf", "attachment 2")
    assert note.text == "\n\nAttached file notes.md:\na note"
    assert [wait_for(host.storage.blob("job", part.sha256)) for part in (image, document)] == [PNG, PDF]
    (start,) = seen.of("startRun")
    assert start.attachments == (image, document, note)
    assert (job.query, start.query) == ("q", "q")
    wait_for(host.continue_job("a", "more", job_id="job", attachments=[PNG]))
    assert provider.requests[1].messages[0].contents == (query, image, document, note)
    assert [type(part) for part in provider.requests[1].messages[2].contents] == [TextPart, BlobPart]
    assert wait_for(host.audit.verify("job")).ok
    assert wait_for(host.audit.replay("job")).ok


def test_one_attachment_that_is_in_no_list_is_an_error(bench: Bench) -> None:
    host = bench.host([text("never")], expert("a"))
    for alone in ("shot.png", PNG):
        with pytest.raises(UsageError, match=r"`attachments` must be a list, even of one$"):
            wait_for(host.run("a", "q", attachments=alone))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("missing.png", "missing.png cannot be attached: no such file or directory"),
        ("a\0b", r"'a\\x00b' cannot be attached: no file has such a name"),
        (3, "attachment 1 must be a path, bytes or a Blob, not int"),
    ],
)
def test_what_is_no_attachment_is_one_clear_error_before_anything_is_written(
    bench: Bench, wrong: object, words: str
) -> None:
    host = bench.host([text("never")], expert("a"))
    with pytest.raises(UsageError, match=f"^{words}$"):
        wait_for(host.run("a", "q", attachments=[wrong]))
    assert not wait_for(host.jobs.list()).jobs


def test_a_resumed_run_still_sees_them_and_a_delegate_does_not(bench: Bench) -> None:
    provider = ScriptedProvider({"[[a]]": [tool("b", {"query": "x"}), text("ok")], "[[b]]": [text("b")]})
    host = bench.host(provider, expert("a", delegates=("b",)), expert("b"), max_steps=1)
    wait_for(host.run("a", "q", job_id="job", attachments=[PNG]))
    wait_for(host.resume("job", max_steps=9))
    sizes = {request.expert_key: len(request.messages[0].contents) for request in provider.requests}
    assert sizes == {"a": 2, "b": 1}


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_at_the_first_write_loses_no_attachment(bench: Bench, moment: Literal["before", "after"]) -> None:
    host = bench.host([text("ok")], expert("a"), wrap=crashing(CrashPoint(moment, 1)))
    with until_it_crashes():
        wait_for(host.run("a", "q", job_id="job", attachments=[PNG]))
    provider = ScriptedProvider([text("ok")])
    again = bench.host(provider, expert("a"))
    work = again.run("a", "q", job_id="job", attachments=[PDF]) if moment == "before" else again.resume("job")
    assert wait_for(work).status == "completed"
    (part,) = provider.requests[0].messages[0].contents[1:]
    assert part.mime_type == ("application/pdf" if moment == "before" else "image/png")
    assert wait_for(again.audit.verify("job")).ok


def test_a_lost_blob_of_an_attachment_is_found(bench: Bench) -> None:
    if not bench.storage.startswith("file:"):
        return
    host = bench.host([text("ok")], expert("a"))
    wait_for(host.run("a", "q", job_id="job", attachments=[PNG]))
    (blob,) = [path for path in (bench.workspace / "perstack/jobs/job/blobs").iterdir() if path.read_bytes() == PNG]
    blob.write_bytes(PNG[:-1])
    assert not wait_for(host.audit.verify("job")).ok


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.png", b"\x00\x01\x02", "is not a PNG, JPEG, GIF or WebP image, a PDF, or text"),
        ("a.txt", b"\xff\xfe\x00a", "is not a PNG"),
        ("a.zip", b"PK\x03\x04\x00", "is not a PNG"),
        ("a.txt", b"x" * 300_000, "300,000 bytes, more than 262,144"),
        ("a.png", PNG + bytes(16 << 20), "more than 15,728,640"),
        ("a.pdf", PDF + bytes(31 << 20), "more than 31,457,280"),
    ],
    ids=range(6),
)
def test_what_no_model_is_sent_is_refused(name: str, data: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        read_attachment(name, data)
    assert str(refused.value).startswith(f"{name} cannot be attached: it ")


@given(st.text(max_size=300), st.binary(max_size=300))
def test_any_bytes_are_a_part_with_a_name_of_one_line_or_refused(name: str, data: bytes) -> None:
    try:
        found = read_attachment(name, data)
    except UsageError:
        return
    assert found.name.isprintable()
    assert 0 < len(found.name) <= 255
    assert not isinstance(found.part, BlobPart) or found.part.size == len(data)


def test_too_many_and_too_much_are_refused_before_anything_is_written(bench: Bench) -> None:
    host = bench.host([text("ok")], expert("a"))
    for files, words in (([PNG] * 21, "attach at most 20"), ([PDF + bytes(25 << 20)] * 3, "attach at most 62,914,560")):
        with pytest.raises(UsageError, match=words):
            wait_for(host.run("a", "q", attachments=files))
    assert wait_for(host.jobs.list()).jobs == ()


def test_the_command_line_attaches_what_it_is_given_and_shows_it(terminal: Terminal) -> None:
    terminal.project(SOLO, a=[reply("ok"), reply("again")])
    (terminal.workspace / "shot.dat").write_bytes(PNG)
    (terminal.workspace / "notes.txt").write_text("a note")
    files = ("--attach", "shot.dat", "--attach", str(terminal.workspace / "notes.txt"))
    done = terminal.call("run", "a", "q", *files, "--job-id", "job", *SCRIPTED)
    (start,) = (event for event in done.events if event["type"] == "startRun")
    assert [attachment["type"] for attachment in start["attachments"]] == ["blobPart", "textPart"]
    output = terminal.call("log", "job").out
    assert "shot.dat (image/png, 264 bytes), notes.txt" in output
    result = terminal.call("run", "a", "more", "--continue-job", "job", "--attach", "shot.dat", *SCRIPTED)
    assert result.code == 0, result.err
    assert terminal.call("verify", "job").code == 0


def test_what_cannot_be_read_is_told_in_a_line_before_anything_is_written(terminal: Terminal) -> None:
    terminal.project(SOLO)
    os.mkfifo(terminal.workspace / "pipe")
    (terminal.workspace / "folder").mkdir()
    (terminal.workspace / "large").touch()
    os.truncate(terminal.workspace / "large", 1 << 40)
    for name, words in (
        ("missing", "no such file"),
        ("folder", "not a regular file"),
        ("pipe", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("large", "more than 31,457,280 bytes"),
    ):
        refused = terminal.call("run", "a", "q", "--attach", name, *SCRIPTED)
        assert (refused.code, words in refused.err) == (2, True), refused.err
        assert len(refused.err.splitlines()) == 1
    assert not (terminal.workspace / "perstack" / "jobs").exists()


def test_a_redaction_takes_what_was_attached_out_of_the_log_and_its_blobs(bench: Bench) -> None:
    host = bench.host([text("ok")], expert("a"))
    wait_for(host.run("a", "q", job_id="job", attachments=[PNG, Blob(b"SECRET", name="SECRET.txt")]))
    done = wait_for(redact_event(host.storage, "job-1-1", reason="asked for", by=By(user="alice", door="cli")))
    assert sha256(PNG).hexdigest() in done.blobs
    assert "SECRET" not in repr([line.event for line in wait_for(host.events("job-1"))])
    assert "SECRET" not in repr(wait_for(host.jobs.load("job")).runs["job-1"].messages)
    assert wait_for(host.audit.verify("job")).ok


@pytest.mark.parametrize(
    "place",
    [
        "../outside.png",
        "/etc/hostname",
        ".env",
        "link",
        "hard",
        "perstack.toml",
        "perstack/jobs",
        "file:///etc/hostname",
        "file://elsewhere/shot.png",
        "https://example.com/shot.png",
        "missing.png",
        "a\0b",
        ".git/config",
    ],
)
def test_a_caller_of_less_trust_names_files_of_the_workspace_that_tools_may_read(
    terminal: Terminal, place: str
) -> None:
    from perstack.host import Host

    terminal.project(SOLO)
    work = terminal.workspace
    (work.parent / "outside.png").write_bytes(PNG)
    (work / ".env").write_text("KEY=1")
    (work / ".git").mkdir()
    (work / ".git" / "config").write_text("x")
    (work / "link").symlink_to(work.parent / "outside.png")
    os.link(work / ".env", work / "hard")
    (work / "shot.png").write_bytes(PNG)

    async def ask() -> None:
        async with Host.open(workspace=work, env={}) as host:
            for good in ("shot.png", "./shot.png", str(work / "shot.png"), f"file://{work}/shot.png"):
                assert (await read_workspace_file(host, good)).data == PNG
            with pytest.raises(UsageError, match="cannot be attached"):
                await read_workspace_file(host, place)

    wait_for(ask())
