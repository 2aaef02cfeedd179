"""A nearly full context: old results shrink together and stay readable."""

from __future__ import annotations

from hosts import Bench, Seen, expert, wait_for
from long_runs import SmallModel, texts_in

from perstack.ports.provider import GenerationRequest
from perstack.testing.scripted import ScriptedProvider, TurnLike, text, tool, turn

WINDOW = 8_000


def files(bench: Bench, count: int, size: int = 2_000) -> None:
    for number in range(count):
        words = f"file {number} begins. " + "filling " * (size // 8) + f" file {number} ends."
        (bench.workspace / f"f{number}.txt").write_text(words)


def reading(count: int, last: TurnLike = "done"):
    """Return a script that reads a file at each step."""

    def reply(request: GenerationRequest) -> TurnLike:
        if request.step > count:
            return last
        return turn(tool("readTextFile", {"path": f"f{request.step - 1}.txt"}), usage=(0, 20))

    return reply


def test_a_run_that_is_not_under_pressure_has_no_other_events_than_before(bench: Bench) -> None:
    files(bench, 6)
    seen, model = Seen(), SmallModel(reading(6), 1_000_000)
    job = wait_for(bench.host(model, expert("a", context_window=1_000_000)).run("a", "q", on_event=seen))
    assert job.status == "completed"
    assert not seen.of("shrinkResults", "startCompaction", "compactHistory", "retry")
    assert set(seen.of("startRun")[0].limits.context.model_dump(exclude_defaults=True)) == {"window"}


def test_old_results_of_read_only_tools_shrink_all_at_once_and_seldom(bench: Bench) -> None:
    files(bench, 24)
    seen, provider = Seen(), ScriptedProvider(SmallModel(reading(24), WINDOW))
    host = bench.host(provider, expert("a", context_window=WINDOW, keep_results=3))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert job.status == "completed"
    events = seen.of("shrinkResults")
    assert 1 <= len(events) <= 4
    first = events[0]
    assert len(first.results) >= 5
    after = next(request for request in provider.requests if request.step == first.step_number)
    whole = texts_in(after)
    assert "file 0 begins" in whole
    assert "file 0 ends" in whole
    assert f"blob:{first.results[0].blob}" in whole
    latest = [texts_in(after).count(f"file {number} begins") for number in range(first.step_number - 1)]
    assert latest == [1] * len(latest)
    assert wait_for(host.audit.replay(job.id)).findings == ()
    assert wait_for(host.audit.verify(job.id)).findings == ()


def test_the_results_of_the_latest_steps_stay_whole(bench: Bench) -> None:
    files(bench, 12)
    seen, provider = Seen(), ScriptedProvider(SmallModel(reading(12), WINDOW))
    host = bench.host(provider, expert("a", context_window=WINDOW, keep_results=4))
    wait_for(host.run("a", "q", on_event=seen))
    first = seen.of("shrinkResults")[0]
    after = next(request for request in provider.requests if request.step == first.step_number)
    parts = [part for message in after.messages if message.type == "toolMessage" for part in message.contents]
    sizes = [sum(len(content.text) for content in part.contents) for part in parts]
    assert all(size < 1_000 for size in sizes[:-4])
    assert all(size > 1_900 for size in sizes[-4:])


def test_what_has_shrunk_is_read_whole_by_the_name_of_its_blob(bench: Bench) -> None:
    files(bench, 14)
    found: list[str] = []

    def reply(request: GenerationRequest) -> TurnLike:
        _, _, after = texts_in(request).partition("the whole text: blob:")
        if not after:
            return reading(14)(request)
        if not found:
            found.append(after.split(" ")[0])
            return turn(tool("readTextFile", {"path": f"blob:{found[0]}"}))
        found.append(texts_in(request).split("file 0 begins")[-1])
        return text("done")

    host = bench.host(SmallModel(reply, WINDOW), expert("a", context_window=WINDOW, keep_results=3))
    job = wait_for(host.run("a", "q"))
    assert (job.status, job.error) == ("completed", None)
    assert "filling " * 200 in found[1]
    assert "file 0 ends" in found[1]


def test_nothing_is_left_out_if_compaction_is_off(bench: Bench) -> None:
    files(bench, 24)
    seen, model = Seen(), SmallModel(reading(24), WINDOW)
    host = bench.host(model, expert("a", context_window=WINDOW, compaction="off"))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert job.status == "stoppedByError"
    assert not seen.of("shrinkResults", "compactHistory")
    assert "prompt is too long" in (job.error or "")


def test_results_of_tools_that_change_something_stay_as_they_are(bench: Bench) -> None:
    def reply(request: GenerationRequest) -> TurnLike:
        if request.step > 6:
            return text("done")
        return turn(tool("exec", {"command": "seq", "args": ["1", "600"]}))

    seen = Seen()
    host = bench.host(SmallModel(reply, WINDOW), expert("a", context_window=WINDOW, keep_results=1))
    wait_for(host.run("a", "q", on_event=seen))
    assert not seen.of("shrinkResults")


def test_a_blob_that_a_shrunk_result_needs_is_missed_by_verify(bench: Bench) -> None:
    files(bench, 12)
    seen = Seen()
    host = bench.host(SmallModel(reading(12), WINDOW), expert("a", context_window=WINDOW, keep_results=3))
    job = wait_for(host.run("a", "q", on_event=seen))
    name = seen.of("shrinkResults")[0].results[0].blob
    assert wait_for(host.audit.verify(job.id)).findings == ()
    for path in bench.workspace.rglob(name):
        path.unlink()
        (finding,) = wait_for(host.audit.verify(job.id)).findings
        assert name in finding.message
