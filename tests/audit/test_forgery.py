"""`verify` finds every change made to a store behind perstack's back, or reports that it could not check it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
from hosts import Bench, closing, expert, wait_for

from perstack.audit.auditor import verify_any
from perstack.audit.verification_report import Report
from perstack.core.base.chain import EMPTY_LOG, BrokenSeal, Head, check, open_line, seal
from perstack.core.definitions.experts import Iterate
from perstack.host import Host
from perstack.testing.scripted import text, tool, turn
from perstack_filesystem.storage import FilesystemStorage

SCRIPT = {
    "[[boss]]": [
        turn(tool("writeTextFile", {"path": "dot.png", "text": "x"}), tool("todo", {"newTodos": ["t"]}), usage=(10, 1)),
        turn(tool("left", {"query": "L"}), tool("right", {"query": "R"}), usage=(10, 1)),
        turn(tool("readImageFile", {"path": "image.png"}), tool("askUser", {"question": "sure?"}), usage=(10, 1)),
        text("all is done", usage=(10, 1)),
        text("and more", usage=(10, 1)),
    ],
    "[[left]]": [turn(tool("think", {"thought": "hm"}), usage=(10, 1)), text("left", usage=(10, 1))],
    "[[right]]": [text("right", usage=(10, 1))],
    "[[maker]]": [text("made", usage=(10, 1))],
}
EXPERTS = (expert("boss", delegates=("left", "right"), ask=True), expert("left"), expert("right"))
MAKER = expert("maker", iterate=Iterate(evaluator="echo '{\"score\": 1}'", max_iterations=1))
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c63fcffff3f030005fe02fea7"
    "9f1b8d0000000049454e44ae426082"
)
BATCH = re.compile(rb'"batch":[0-9]+')


def host_in(workspace: Path) -> Host:
    return Bench(workspace, "file:perstack").host(SCRIPT, *EXPERTS, MAKER)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a workspace with a Job (delegates, a blob, a question, two Runs), a task and a series. Tests copy it."""
    workspace = tmp_path_factory.mktemp("store")
    (workspace / "image.png").write_bytes(PNG)

    async def work() -> None:
        async with host_in(workspace) as host:
            await host.run("boss", "go", job_id="job", labels={"team": "a"})
            await host.answer("yes", job_id="job")
            assert (await host.continue_job("boss", "more", job_id="job")).text == "and more"
            await host.tasks.create("chore", state={"done": []}, start=True)
            await host.tasks.checkpoint("chore", {"done": ["a"]})
            await host.tasks.complete("chore", "ok")
            assert (await host.iterations.begin("maker", "again", series_id="series")).status == "completed"
            reports = [report async for report in host.audit.verify_all()]
            assert [report.findings for report in reports] == [()] * len(reports)
            assert {report.kind for report in reports} == {"job", "task", "iterations"}

    wait_for(work())
    return workspace


@pytest.fixture
def copy(store: Path, tmp_path: Path) -> Path:
    """Return a copy of the store, for tests that damage it."""
    copytree(store, tmp_path / "copy", dirs_exist_ok=True)
    return tmp_path / "copy"


def verified(workspace: Path, of: str = "job") -> Report:
    storage = FilesystemStorage(workspace / "perstack")
    with closing(storage):
        return asyncio.run(verify_any(storage, of))


def everything(workspace: Path) -> list[Report]:
    async def work() -> list[Report]:
        async with host_in(workspace) as host:
            return [report async for report in host.audit.verify_all()]

    return wait_for(work())


def finding_messages(workspace: Path) -> list[str]:
    return [finding.message for report in everything(workspace) for finding in report.findings]


def logs_in(workspace: Path) -> list[Path]:
    return sorted((workspace / "perstack").rglob("events.jsonl"))


def test_no_byte_of_any_line_can_be_changed_but_for_how_many_were_written_together(store: Path) -> None:
    """`batch` is framing, and is not hashed: docs/security.md says so."""
    for path in logs_in(store):
        head = EMPTY_LOG
        for line in path.read_bytes().splitlines():
            marks = [span for match in BATCH.finditer(line) for span in range(*match.span())]
            for at in set(range(len(line))) - set(marks[-9:]):
                for changed in (bytes([line[at] ^ 1]), b"", b"\n", line[at : at + 1] * 2):
                    other = line[:at] + changed + line[at + 1 :]
                    if other != line and len(changed) < 2:
                        assert not _is_sealed(head, other), (path, head.seq + 1, at)
            _, head = check(head, line)


def _is_sealed(head: Head, line: bytes) -> bool:
    try:
        check(head, line)
    except BrokenSeal:
        return False
    return True


def resealed(lines: list[bytes], seq: int, change: Callable[[bytes], bytes]) -> list[bytes]:
    """Return a log with one event changed and its hash chain recomputed, as a skilled attacker could."""
    head, result = EMPTY_LOG, list[bytes]()
    for place, line in enumerate(lines, 1):
        payload = open_line(line).payload
        sealed, head = seal(head, [change(payload) if place == seq else payload])
        result += sealed
    return result


def test_an_event_that_was_changed_with_the_chain_made_anew_is_found_by_a_head_kept_elsewhere(copy: Path) -> None:
    def change(payload: bytes) -> bytes:
        return payload.replace(b'"timestamp":1', b'"timestamp":2', 1)

    for path in logs_in(copy):
        data = path.read_bytes()
        lines = data.splitlines()
        of = path.parents[2].name
        for seq in range(1, len(lines) + 1):
            path.write_bytes(b"\n".join((*resealed(lines, seq, change), b"")))
            findings = verified(copy, of).findings
            assert any("anew" in one.message or "rewritten" in one.message for one in findings), (path, seq, findings)
        path.write_bytes(data)
    assert finding_messages(copy) == []


def test_a_log_that_was_cut_anywhere_is_found(copy: Path) -> None:
    for path in logs_in(copy):
        data = path.read_bytes()
        lines = data.splitlines(keepends=True)
        of = path.parents[2].name
        for keep in range(len(lines)):
            path.write_bytes(b"".join(lines[:keep]))
            assert verified(copy, of).findings, (path, keep)
        path.write_bytes(data)


def scalars(value: Any, way: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from scalars(one, (*way, key)) if isinstance(one, dict | list) else ((*way, key),)


def with_changed(data: bytes, way: tuple[str | int, ...]) -> bytes:
    document = place = json.loads(data)
    for key in way[:-1]:
        place = place[key]
    old = place[way[-1]]
    if isinstance(old, bool):
        place[way[-1]] = not old
    else:
        place[way[-1]] = old + 1 if isinstance(old, int | float) else f"{old}x"
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def test_every_value_of_every_cache_is_compared(copy: Path) -> None:
    state = copy / "perstack"
    caches = sorted([*state.rglob("job.json"), *state.rglob("run-setting.json"), *state.rglob("checkpoints/*.json")])
    assert {path.name for path in caches} >= {"job.json", "run-setting.json"}
    assert len(caches) >= 15
    for path in caches:
        data = path.read_bytes()
        of = path.relative_to(state).parts[1]
        for way in scalars(json.loads(data)):
            path.write_bytes(with_changed(data, way))
            assert verified(copy, of).findings, (path.relative_to(state), way)
        for nonsense in (b"", b"[]", b"{", data[:-1], b"\xff"):
            path.write_bytes(nonsense)
            assert verified(copy, of).findings, (path.relative_to(state), nonsense)
        path.write_bytes(data)
    assert finding_messages(copy) == []


def test_every_value_of_a_tasks_entry_is_compared(copy: Path) -> None:
    path = copy / "perstack" / "tasks" / "entries.jsonl"
    data = path.read_bytes()
    (*_, last) = [line for line in data.split(b"\n") if line]
    seq, name, entry = last.split(b" ", 2)
    for way in scalars(json.loads(entry)):
        if way != ("headSeq",):
            path.write_bytes(data.replace(last, b"%b %b %b" % (seq, name, with_changed(entry, way))))
            assert verified(copy, "chore").findings, way
    path.write_bytes(data.replace(last, b"%d %b %b" % (int(seq) + 1, name, entry)))
    assert verified(copy, "chore").findings
    path.write_bytes(data)
    assert finding_messages(copy) == []


def test_every_file_that_is_removed_is_a_finding_or_named_as_not_checked(copy: Path) -> None:
    state = copy / "perstack"
    harmless = {"lease", ".gitignore", "origin.json"}
    for path in sorted(path for path in state.rglob("*") if path.is_file()):
        data = path.read_bytes()
        path.unlink()
        reports = everything(copy)
        says = [one for report in reports for one in (*report.findings, *report.unchecked)]
        is_truth = path.name == "events.jsonl" or path.parent.name == "blobs"
        assert any(report.findings for report in reports) is is_truth, path
        # without a mark, a log is its user's only after an agreement, and no less true
        if path.name not in harmless and path.parent.name not in ("checkpoints", ".origins"):
            assert says, path
        path.write_bytes(data)
    assert finding_messages(copy) == []


def test_every_folder_that_is_removed_is_survived(copy: Path) -> None:
    state = copy / "perstack"
    for path in sorted(path for path in state.rglob("*") if path.is_dir()):
        kept = copy / "kept"
        path.rename(kept)
        everything(copy)
        kept.rename(path)
    assert finding_messages(copy) == []


def test_a_task_whose_folder_was_removed_is_named_and_its_id_not_used_again(copy: Path) -> None:
    rmtree(copy / "perstack" / "tasks" / "chore")
    assert any("a task of this id had events" in message for message in finding_messages(copy))

    async def work() -> None:
        async with host_in(copy) as host:
            with pytest.raises(Exception, match="its log has 0 events, but its entry says it had 4"):
                await host.tasks.create("chore")

    wait_for(work())


def test_a_blob_that_was_changed_is_found(copy: Path) -> None:
    for path in sorted((copy / "perstack").rglob("blobs/*")):
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert verified(copy, path.parents[1].name).findings, path
        path.write_bytes(data)


def test_a_run_that_nobody_started_is_found(copy: Path) -> None:
    runs = copy / "perstack" / "jobs" / "job" / "runs"
    log = (runs / "job-2" / "events.jsonl").read_bytes().splitlines()
    head, lines = EMPTY_LOG, list[bytes]()
    for line in log:
        sealed, head = seal(head, [open_line(line).payload.replace(b"job-2", b"job-9")])
        lines += sealed
    (runs / "job-9").mkdir()
    (runs / "job-9" / "events.jsonl").write_bytes(b"\n".join((*lines, b"")))
    messages = [finding.message for finding in verified(copy).findings]
    assert "it says that job-1 started it, but the log of that Run does not" in messages


def test_a_log_of_another_job_is_found(copy: Path) -> None:
    copytree(copy / "perstack" / "jobs" / "job", copy / "perstack" / "jobs" / "other")
    for name in ("foreign-1", "job-7"):
        copytree(copy / "perstack/jobs/job/runs/job-2", copy / "perstack/jobs/job/runs" / name)
        assert any("its ids name another place" in finding.message for finding in verified(copy).findings)
        rmtree(copy / "perstack/jobs/job/runs" / name)
    assert verified(copy).ok
    assert any("its ids name another place" in finding.message for finding in verified(copy, "other").findings)


def test_a_delegate_that_was_decided_on_and_has_no_log_is_named(copy: Path) -> None:
    """Its parent has no result of it: whether it ever began is not known."""
    job = copy / "perstack" / "jobs" / "job"
    log = job / "runs" / "job-1" / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    decided = next(place for place, line in enumerate(lines, 1) if line.startswith(b'{"type":"callDelegate"'))
    log.write_bytes(b"".join(lines[: decided + 1]))
    for path in (job / "job.json", job / "checkpoints", *(job / "runs" / f"job-{n}" for n in (2, 3, 4))):
        rmtree(path) if path.is_dir() else path.unlink()
    report = verified(copy)
    assert report.findings == ()
    assert {one.run_id for one in report.unchecked if one.kind == "runs"} == {"job-2", "job-3"}
    assert {one.run_id for one in report.unchecked if one.kind == "heads"} == {"job-1"}


@pytest.mark.parametrize("kind", ["task", "series"])
def test_a_line_of_a_task_or_a_series_cannot_be_redacted(copy: Path, kind: str) -> None:
    of, folder = ("chore", "tasks") if kind == "task" else ("series", "iterations")
    path = copy / "perstack" / folder / of / "runs" / f"{of}-1" / "events.jsonl"
    lines = path.read_bytes().splitlines()
    left = open_line(lines[1])
    lines[1] = b'{"type":"x","id":"%b-1-2","redacted":true' % of.encode() + lines[1][len(left.payload) - 1 :]
    path.write_bytes(b"\n".join((*lines, b"")))
    assert any("its content was removed" in finding.message for finding in verified(copy, of).findings)


@pytest.mark.parametrize("of", ["chore", "series"])
def test_a_task_or_a_series_that_was_copied_to_another_id_is_found(copy: Path, of: str) -> None:
    space = copy / "perstack" / ("tasks" if of == "chore" else "iterations")
    copytree(space / of, space / "other")
    (space / "other" / "runs" / f"{of}-1").rename(space / "other" / "runs" / "other-1")
    checked = {one.job_id: one for one in wait_for(_verified_all(copy))}
    assert {name for name, one in checked.items() if one.findings} == {"other"}
    assert any("its id names another place" in finding.message for finding in checked["other"].findings)
    host = host_in(copy)
    if of == "chore":
        listed = {task.task_id: task.damaged for task in wait_for(host.tasks.list()).tasks}
    else:
        listed = {one.id: one.damaged for one in wait_for(host.iterations.list()).series}
    assert listed == {of: False, "other": True}


async def _verified_all(workspace: Path) -> list[Report]:
    async with host_in(workspace) as host:
        return [report async for report in host.audit.verify_all()]


@pytest.fixture
def spilled(tmp_path: Path) -> Path:
    """Return the blob with the only result of a Job `job`: output of a program that was too long for the log."""
    bench = Bench(tmp_path, "file:perstack")
    script = [tool("exec", {"command": "seq", "args": ["20000"]}), text("done")]
    assert wait_for(bench.host(script, expert("a")).run("a", "q", job_id="job")).status == "completed"
    (blob,) = [path for path in (tmp_path / "perstack/jobs/job/blobs").iterdir() if path.read_bytes()[:2] == b"1\n"]
    report = verified(tmp_path)
    assert (report.findings, report.checked.blobs) == ((), 2)
    return blob


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(b""), "damaged"),
        (lambda path: path.write_bytes(b"2" + path.read_bytes()[1:]), "damaged"),
        (lambda path: path.write_bytes(path.read_bytes() + b"1"), "damaged"),
    ],
    ids=["removed", "emptied", "first byte", "one byte more"],
)
def test_the_output_that_a_result_refers_to_is_read(spilled: Path, harm: Callable[[Path], None], words: str) -> None:
    harm(spilled)
    findings = verified(spilled.parents[4]).findings
    assert [words in finding.message and spilled.name in finding.message for finding in findings] == [True]


def test_what_only_a_text_refers_to_is_no_finding_where_it_is_not_there(tmp_path: Path) -> None:
    bench, name = Bench(tmp_path, "file:perstack"), "0" * 64
    for number, content in enumerate((f"see blob:{name}", f'{{"outputFile":"blob:{name}"}}', f"blob:{name}0")):
        (tmp_path / "note.txt").write_text(content)
        host = bench.host([tool("readTextFile", {"path": "note.txt"}), text("done")], expert("a"))
        wait_for(host.run("a", "q", job_id=f"job{number}"))
        report = verified(tmp_path, f"job{number}")
        assert report.ok
        assert [one.kind for one in report.unchecked] == ([] if number == 2 else ["blobs"])
