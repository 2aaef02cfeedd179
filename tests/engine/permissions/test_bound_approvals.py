"""An approval of one call is bound to what was shown: the file that a change was made from."""

from __future__ import annotations

import pytest
from approval_jobs import answer, append, files, hosted
from hosts import Bench, Seen, results, wait_for

from perstack.core.definitions.permissions import Permissions
from perstack.errors import Conflict
from perstack.testing.scripted import text, tool, turn

ASK = Permissions(ask=("*TextFile",))


def edit(old: str, new: str):
    return tool("editTextFile", {"path": "a.txt", "oldText": old, "newText": new})


CHANGES = {
    "edited": (edit("one", "1"), "one\n", "one\nand a line\n", "1\nand a line\n"),
    "appended": (append("a.txt"), "one\n", "other\n", "other\nx\n"),
    "written over": (tool("writeTextFile", {"path": "a.txt", "text": "x"}), "one\n", "precious\n", "x"),
    "there by now": (tool("writeTextFile", {"path": "a.txt", "text": "x"}), None, "precious\n", "x"),
    "gone by now": (tool("writeTextFile", {"path": "a.txt", "text": "x"}), "one\n", None, "x"),
}


@pytest.mark.parametrize(("call", "before", "now", "after"), CHANGES.values(), ids=CHANGES)
def test_a_yes_to_a_change_of_a_file_that_is_another_by_now_asks_again(
    bench: Bench, call, before: str | None, now: str | None, after: str
) -> None:
    file, script, seen = bench.workspace / "a.txt", [call, text("ok")], Seen()
    if before is not None:
        file.write_text(before)
    first = wait_for(hosted(bench, script, rules=ASK).run("a", "q", job_id="job", on_event=seen))
    file.unlink(missing_ok=True)
    if now is not None:
        file.write_text(now)
    second = answer(hosted(bench, script, rules=ASK), first, "yes", on_event=seen)
    assert second.asking is not None
    assert second.asking.text.endswith("; asked again: the file has changed since its change was shown")
    assert (file.read_text() if file.exists() else None) == now
    with pytest.raises(Conflict, match="answered already"):
        answer(hosted(bench, script, rules=ASK), first, "yes")
    done = answer(hosted(bench, script, rules=ASK), second, "yes", on_event=seen)
    assert (done.status, file.read_text()) == ("completed", after)
    assert len(seen.of("requestApproval")) == 2
    host = hosted(bench, script)
    assert wait_for(host.audit.replay("job")).ok
    assert wait_for(host.audit.verify("job")).ok


def test_an_unchanged_file_is_not_asked_about_twice_hours_later(bench: Bench) -> None:
    files(bench, "a.txt")
    script, seen = [append("a.txt"), text("ok")], Seen()
    job = wait_for(hosted(bench, script, rules=ASK).run("a", "q", on_event=seen))
    (bench.workspace / "a.txt").touch()
    assert answer(hosted(bench, script, rules=ASK), job, "yes", on_event=seen).status == "completed"
    assert len(seen.of("requestApproval")) == 1


def test_calls_of_one_reply_that_change_one_file_are_each_asked_about_once(bench: Bench) -> None:
    (bench.workspace / "a.txt").write_text("one\ntwo\n")
    script, seen = [turn(edit("one", "1"), edit("two", "2"), append("a.txt")), text("ok")], Seen()
    job = wait_for(hosted(bench, script, rules=ASK).run("a", "q", on_event=seen))
    for _ in range(3):
        assert job.asking is not None
        job = answer(hosted(bench, script, rules=ASK), job, "yes", on_event=seen)
    assert (job.status, (bench.workspace / "a.txt").read_text()) == ("completed", "1\n2\nx\n")
    assert len(seen.of("requestApproval")) == 3


@pytest.mark.parametrize("said", ["always", "always: *TextFile"])
def test_an_approval_for_the_whole_job_is_not_bound_to_one_content(bench: Bench, said: str) -> None:
    files(bench, "a.txt")
    script, seen = [append("a.txt"), append("a.txt"), text("ok")], Seen()
    job = wait_for(hosted(bench, script, rules=ASK).run("a", "q", on_event=seen))
    (bench.workspace / "a.txt").write_text("other\n")
    done = answer(hosted(bench, script, rules=ASK), job, said, on_event=seen)
    assert (done.status, (bench.workspace / "a.txt").read_text()) == ("completed", "other\nx\nx\n")


def test_with_nobody_there_a_changed_file_is_left_alone(bench: Bench) -> None:
    files(bench, "a.txt")
    script, seen = [append("a.txt"), text("ok")], Seen()
    job = wait_for(hosted(bench, script, rules=ASK).run("a", "q"))
    (bench.workspace / "a.txt").write_text("other\n")
    done = answer(hosted(bench, script, rules=ASK, unattended=True), job, "yes", on_event=seen)
    assert (done.status, (bench.workspace / "a.txt").read_text()) == ("completed", "other\n")
    assert "nobody is there to give it" in results(seen)[0]
