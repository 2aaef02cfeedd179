"""The search over what was said and done in all Jobs: it finds, and has nothing that the logs do not have."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from hosts import Bench, expert, wait_for
from studio_server import serving_studio
from terminal import TEAM, Terminal, reply

from perstack.host import Host
from perstack.testing.scripted import text, tool, turn
from perstack_studio.search_index import SearchIndex

WRITER = expert("writer", description="Writes haiku")


def _ran(bench: Bench, **texts: str) -> Host:
    """Return a Host with a Job for each text, which its model said."""
    for job_id, said in texts.items():
        host = bench.host([turn(tool("think", {"thought": f"about {said}"}), text=said), text("Done.")], WRITER)
        wait_for(host.run("writer", f"Go {job_id}", job_id=job_id))
    return bench.host([], WRITER)


def _jobs(index: SearchIndex, words: str) -> set[str]:
    return {found.job_id for found in wait_for(index.search(words)).events}


def test_what_was_said_is_found_with_its_place(bench: Bench, tmp_path: Path) -> None:
    index = SearchIndex(_ran(bench, one="The old pond", two="A frog jumps").storage, tmp_path / "index.db")

    result = wait_for(index.search("old pon"))

    assert {(found.job_id, found.type) for found in result.events} >= {("one", "finishGeneration")}
    assert all(found.job_id == "one" for found in result.events)
    assert (True, "old") in result.events[0].snippet
    assert result.missing_jobs == 0
    assert stat.S_IMODE((tmp_path / "index.db").stat().st_mode) == 0o600
    for odd in ('"', "AND", "a OR", "NEAR(", "*", "{x} : y", "'; drop table texts", "\x00"):
        wait_for(index.search(odd))


def test_a_later_search_reads_only_what_is_new(bench: Bench, tmp_path: Path, monkeypatch) -> None:
    host = _ran(bench, one="The old pond")
    index = SearchIndex(host.storage, tmp_path / "index.db")
    assert _jobs(index, "pond") == {"one"}
    host = _ran(bench, two="Another pond")
    index = SearchIndex(host.storage, tmp_path / "index.db")
    read: list[str] = []
    original = host.storage.read

    async def counted(ref, after=0, limit=None):
        read.append(ref.job_id)
        return await original(ref, after, limit)

    monkeypatch.setattr(type(host.storage), "read", lambda self, *args, **options: counted(*args, **options))

    assert _jobs(index, "pond") == {"one", "two"}
    assert set(read) == {"two"}
    read.clear()
    assert _jobs(index, "pond") == {"one", "two"}
    assert not read


def test_a_redacted_text_is_neither_found_nor_in_the_file(bench: Bench, tmp_path: Path) -> None:
    host = _ran(bench, one="Hunter2secret is here", two="Frogs")
    path = tmp_path / "index.db"
    index = SearchIndex(host.storage, path)
    assert _jobs(index, "hunter2secret") == {"one"}
    lines = wait_for(host.jobs.events("one-1", job_id="one"))
    for line in lines:
        if b"Hunter2secret" in line.line:
            wait_for(host.audit.redact(line.event.id, reason="a secret"))

    assert not _jobs(index, "hunter2secret")
    assert b"unter2secret" not in path.read_bytes()
    assert _jobs(index, "frogs") == {"two"}


def test_a_redaction_removes_the_users_index_at_once(terminal: Terminal) -> None:
    terminal.env["XDG_CACHE_HOME"] = str(terminal.workspace / "cache")
    terminal.project(TEAM, lead=[reply("Hunter2secret is here")])
    assert terminal.run("run", "lead", "Say it", "--provider", "scripted").code == 0
    with serving_studio(terminal) as server:
        found = server.visitor().get("/search?q=hunter2secret")
    assert "<mark>Hunter2secret</mark>" in found
    (index,) = Path(terminal.env["XDG_CACHE_HOME"]).rglob("search/*.db")
    assert b"unter2secret" in index.read_bytes()
    match = re.search(r"/runs/([^?]+)\?at=(\d+)\">[^<]*</a> · finishGeneration", found)
    assert match is not None

    result = terminal.run("redact", f"{match[1]}-{match[2]}", "reply", "--reason", "a secret")

    assert result.code == 0, result.err
    assert not index.exists()


def test_a_deleted_job_disappears_also_from_the_file(bench: Bench, tmp_path: Path) -> None:
    host = _ran(bench, one="Hunter2secret is here", two="Frogs")
    path = tmp_path / "index.db"
    index = SearchIndex(host.storage, path)
    assert _jobs(index, "hunter2secret") == {"one"}
    wait_for(host.jobs.delete("one"))

    assert not _jobs(index, "hunter2secret")
    assert b"unter2secret" not in path.read_bytes()


def test_a_damaged_index_or_one_of_another_version_is_made_again(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    index = SearchIndex(_ran(bench, one="The old pond").storage, path)
    path.write_bytes(b"SQLite format 3\0" + os.urandom(5000))
    assert _jobs(index, "pond") == {"one"}
    content = bytearray(path.read_bytes())
    content[63] = 99  # the last byte of the number of the version
    path.write_bytes(content)
    assert _jobs(index, "pond") == {"one"}


def test_a_search_that_has_no_time_says_what_is_missing_and_the_next_ones_continue(
    bench: Bench, tmp_path: Path
) -> None:
    host = _ran(bench, one="A pond", two="A pond")
    none = wait_for(SearchIndex(host.storage, tmp_path / "index.db", catch_up_s=0).search("pond"))
    assert (none.events, none.missing_jobs) == ((), 2)

    assert _jobs(SearchIndex(host.storage, tmp_path / "index.db"), "pond") == {"one", "two"}


def test_the_page_links_to_the_entry_and_escapes_what_it_shows(terminal: Terminal) -> None:
    terminal.env["XDG_CACHE_HOME"] = str(terminal.workspace / "cache")
    terminal.project(TEAM, lead=[reply("<script>alert('pond')</script> \u202eold pond")])
    assert terminal.run("run", "lead", "Say <b>it</b>", "--provider", "scripted").code == 0
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        page = visitor.get("/search?q=pond")
        assert "&lt;script&gt;" in page
        assert not re.search("<script>alert|\u202e", page)
        match = re.search(r'href="(/jobs/[^"]+\?at=\d+)"', page)
        assert match is not None
        target = visitor.client.get(match[1]).headers["Location"]
        entry = target.rpartition("#")[2]
        assert f'id="{entry}"' in visitor.get(target)
        assert "Nothing was found" in visitor.get("/search?q=cathedral")
