"""Snapshots in checks, disk usage and redactions."""

from __future__ import annotations

from hosts import Bench, Seen, expert, recording, wait_for

from perstack.core.base.ids import By
from perstack.host import Host
from perstack.snapshots.stored_trees import SnapshotBlob, Trees, blobs_of_trees
from perstack.snapshots.trees import File, Subfolder, digest_of, folder_blob, folder_of
from perstack.testing.scripted import text, tool, turn

SECRET = "xyzzy-plugh-fee-fie-foe-foo"


def _write(content: str) -> list[object]:
    return [turn(tool("exec", {"command": "sh", "args": ["-c", f"printf '%s' '{content}' > new.txt"]})), text("done")]


def _ran(bench: Bench, job_id: str, script: list[object]) -> tuple[Host, Seen]:
    host, seen = recording(bench.host(script, expert("a"))), Seen()
    wait_for(host.run("a", "q", job_id=job_id, on_event=seen))
    return host, seen


def test_every_tree_and_file_of_a_snapshot_is_checked(bench: Bench) -> None:
    (bench.workspace / "sub").mkdir()
    (bench.workspace / "sub" / "kept.txt").write_text("kept")
    host, seen = _ran(bench, "job", _write("content"))
    assert wait_for(host.audit.verify("job")).findings == ()
    storage = host.storage
    wait_for(storage.remove_blob("job", digest_of(b"content")))
    (finding,) = wait_for(host.audit.verify("job")).findings
    assert digest_of(b"content") in str(finding)
    assert finding.seq == int(seen.of("recordSnapshot")[1].id.rpartition("-")[2])
    sub = digest_of(folder_blob(folder_of([File(b"kept.txt", 4, digest_of(b"kept"))])))
    wait_for(storage.remove_blob("job", sub))
    assert any("its snapshot" in str(one) and sub in str(one) for one in wait_for(host.audit.verify("job")).findings)


def test_a_job_keeps_its_snapshots_when_another_with_the_same_files_is_deleted(bench: Bench) -> None:
    for number in range(20):
        (bench.workspace / f"{number}.txt").write_text("x" * 1000 + str(number))
    host, _ = _ran(bench, "one", _write("content"))
    other, _ = _ran(bench, "two", _write("content"))
    storage = other.storage
    sizes = wait_for(storage.sizes())
    assert sizes["one"].blobs > 20_000 < sizes["two"].blobs
    wait_for(host.jobs.delete("one"))
    assert wait_for(other.audit.verify("two")).findings == ()
    wait_for(other.jobs.delete("two"))


def test_a_redaction_names_the_snapshots_of_every_job_that_hold_the_text_and_leaves_them_whole(bench: Bench) -> None:
    _, earlier = _ran(bench, "other", _write(SECRET))
    (bench.workspace / "new.txt").unlink()
    (bench.workspace / "readme.txt").write_text("nothing")
    host, seen = _ran(bench, "job", [turn(tool("writeTextFile", {"path": "a.txt", "text": SECRET})), text("done")])
    call = seen.of("finishGeneration")[0]
    done = wait_for(host.audit.redact(call.id, reason="a key", by=By(user="alice", door="cli")))
    snapshots = [copy for copy in done.copies if copy.startswith("the snapshot of ")]
    assert snapshots == [f"the snapshot of {one.of('recordSnapshot')[1].id}" for one in (seen, earlier)]
    assert wait_for(host.audit.verify("job")).findings == ()


def test_a_tree_of_a_stranger_is_named_and_never_followed_without_end(bench: Bench) -> None:
    async def work() -> list[SnapshotBlob]:
        storage = bench.host([], expert("a")).storage
        await storage.create_job("job")
        deep = await storage.put_blob("job", folder_blob(folder_of([])))
        for _ in range(400):
            deep = await storage.put_blob("job", folder_blob(folder_of([Subfolder(b"d", deep)])))
        bad = await storage.put_blob("job", b'{"tree":1,"entries":[["..","folder","' + b"0" * 64 + b'"]]}')
        text_blob = await storage.put_blob("job", b"no tree at all")
        return [
            part
            async for part in blobs_of_trees(Trees(storage, "job"), [deep, bad, text_blob, "0" * 64])
            if part.problem
        ]

    deep, bad, plain, missing = wait_for(work())
    assert "too many entries" in deep.problem
    assert "name" in bad.problem
    assert "not JSON" in plain.problem
    assert missing.is_missing
