"""Continuing, branching and resuming Jobs."""

from __future__ import annotations

import pytest
from hosts import Bench, Seen, expert, wait_for

from perstack.errors import UsageError
from perstack.next_steps import AnswerEarlier, Continue, GiveAnswer
from perstack.testing.scripted import ScriptedProvider, text, tool, turn


def texts(messages) -> list[str]:
    return [part.text for message in messages for part in message.contents if hasattr(part, "text")]


def test_continue_alone_finds_the_latest_job_and_keeps_its_history(bench: Bench) -> None:
    wait_for(bench.host([text("old job")], expert("a")).run("a", "other"))
    first = wait_for(bench.host([text("one")], expert("a")).run("a", "first question"))
    provider = ScriptedProvider(lambda request: "two")
    job = wait_for(bench.host(provider, expert("a")).continue_job("a", "second question"))
    assert job.id == first.id
    assert texts(provider.requests[0].messages) == ["first question", "one", "second question"]
    assert (job.total_steps, len(job.runs), job.text) == (2, 2, "two")
    assert job.coordinator_run_id == f"{first.id}-2"


def test_after_a_branch_continue_follows_the_branch(bench: Bench) -> None:
    host = bench.host(lambda request: f"reply {len(request.messages)}", expert("a"))
    job = wait_for(host.run("a", "root"))
    root = wait_for(host.jobs.checkpoints(job.id)).ids[-1]
    wait_for(host.continue_job("a", "main line", job_id=job.id))
    wait_for(host.continue_job("a", "the branch", job_id=job.id, resume_from=root))
    provider = ScriptedProvider(lambda request: "end")
    wait_for(bench.host(provider, expert("a")).continue_job("a", "after", job_id=job.id))
    assert texts(provider.requests[0].messages) == ["root", "reply 1", "the branch", "reply 3", "after"]


def test_a_branch_in_mid_run_takes_only_what_was_before_it(bench: Bench) -> None:
    script = [
        turn(tool("todo", {"newTodos": ["t"]}), text="step one"),
        turn(tool("todo", {}), text="step two"),
        text("end"),
    ]
    host = bench.host(script, expert("a"))
    job = wait_for(host.run("a", "q"))
    first_step = wait_for(host.jobs.checkpoints(job.id)).ids[0]
    provider = ScriptedProvider(lambda request: "branched")
    wait_for(bench.host(provider, expert("a")).continue_job("a", "instead", job_id=job.id, resume_from=first_step))
    assert [word for word in texts(provider.requests[0].messages) if "step" in word] == ["step one"]


def test_an_edited_instruction_takes_effect_on_continue_and_not_on_resume(bench: Bench) -> None:
    script = lambda request: turn(tool("todo", {}))  # noqa: E731
    job = wait_for(bench.host(script, expert("a", instruction="OLD"), max_steps=1).run("a", "q"))
    provider = ScriptedProvider(lambda request: "done")
    wait_for(bench.host(provider, expert("a", instruction="NEW")).resume(job.id, max_steps=2))
    assert "OLD" in provider.requests[0].instruction
    assert "NEW" not in provider.requests[0].instruction
    wait_for(bench.host(provider, expert("a", instruction="NEW")).continue_job("a", "more", job_id=job.id))
    assert "NEW" in provider.requests[-1].instruction
    assert "OLD" not in provider.requests[-1].instruction


def test_a_new_query_closes_a_question_that_was_left_open(bench: Bench) -> None:
    asking = [tool("askUser", {"question": "sure?"})]
    job = wait_for(bench.host(asking, expert("a", ask=True)).run("a", "q"))
    provider = ScriptedProvider(lambda request: "never mind")
    job = wait_for(bench.host(provider, expert("a", ask=True)).continue_job("a", "forget it", job_id=job.id))
    assert job.status == "completed"
    assert provider.requests[0].messages[-2].contents[0].is_error


def test_a_completed_job_is_final_for_resume_and_says_how_to_go_on(bench: Bench) -> None:
    host = bench.host([text("done")], expert("a"))
    job = wait_for(host.run("a", "q"))
    with pytest.raises(UsageError, match="is completed") as refused:
        wait_for(host.resume(job.id))
    assert refused.value.next_steps == (Continue(job.id, "a"),)


def test_a_waiting_job_says_how_to_answer_and_a_job_that_asks_nothing_takes_no_answer(bench: Bench) -> None:
    host = bench.host([tool("askUser", {"question": "?"})], expert("a", ask=True))
    job = wait_for(host.run("a", "q"))
    with pytest.raises(UsageError, match="waits for an answer") as refused:
        wait_for(host.resume(job.id))
    assert refused.value.next_steps == (GiveAnswer(job.id),)
    done = wait_for(bench.host([text("x")], expert("a")).run("a", "q"))
    with pytest.raises(UsageError, match="has no open question") as refused:
        wait_for(host.answer("hm", job_id=done.id))
    assert refused.value.next_steps == (Continue(done.id, "a"), AnswerEarlier(done.id))


def test_another_expert_may_not_continue_a_job(bench: Bench) -> None:
    job = wait_for(bench.host([text("x")], expert("a")).run("a", "q"))
    with pytest.raises(UsageError, match="never share a context"):
        wait_for(bench.host([text("x")], expert("a"), expert("b")).continue_job("b", "q", job_id=job.id))


def test_a_delegates_checkpoint_cannot_be_branched_from(bench: Bench) -> None:
    script = {"[[a]]": [tool("b", {"query": "x"}), text("ok")], "[[b]]": [text("b")]}
    host = bench.host(script, expert("a", delegates=("b",)), expert("b"))
    job = wait_for(host.run("a", "q"))
    delegate = next(run for run in job.runs if run.delegated_by)
    checkpoint = next(c for c in wait_for(host.jobs.checkpoints(job.id)).ids if c.startswith(delegate.id + "-"))
    with pytest.raises(UsageError, match="Coordinator"):
        wait_for(host.continue_job("a", "q", job_id=job.id, resume_from=checkpoint))


def test_an_id_that_exists_or_is_no_id_is_refused_before_anything_is_written(bench: Bench) -> None:
    host = bench.host(lambda request: "x", expert("a"))
    wait_for(host.run("a", "q", job_id="mine"))
    with pytest.raises(UsageError, match="exists"):
        wait_for(host.run("a", "q", job_id="mine"))
    for wrong in ("../up", "a/b", "", "x" * 129, "a b", "ü"):
        with pytest.raises(UsageError):
            wait_for(host.run("a", "q", job_id=wrong))
    assert wait_for(host.run("a", "q", job_id="x" * 128)).status == "completed"


def test_a_checkpoint_is_handed_out_whole_and_survives_the_loss_of_its_file(bench: Bench) -> None:
    host = bench.host([tool("todo", {"newTodos": ["t"]}), text("end")], expert("a"))
    seen = Seen()
    job = wait_for(host.run("a", "q", on_event=seen))
    for event in seen.of("finishStep", "finishRun"):
        checkpoint = wait_for(host.jobs.checkpoint(event.checkpoint_id))
        assert checkpoint.id == event.checkpoint_id
        assert checkpoint.messages[0].type == "instructionMessage"
        path = wait_for(host.jobs.checkpoint_path(event.checkpoint_id))
        assert path is None or path.is_file()
    assert [m.type for m in checkpoint.messages] == [
        "instructionMessage",
        "userMessage",
        "expertMessage",
        "toolMessage",
        "expertMessage",
    ]
    assert checkpoint.status == "completed"
    assert job.status == "completed"


def test_jobs_runs_checkpoints_and_events_are_answered_by_id_in_pages(bench: Bench) -> None:
    script = {
        "[[a]]": [turn(*(tool("b", {"query": str(n)}) for n in range(4))), text("ok")],
        "[[b]]": [tool("todo", {}), text("b")],
    }
    host = bench.host(script, expert("a", delegates=("b",)), expert("b"))
    jobs = [wait_for(host.run("a", "q")).id for _ in range(3)]

    async def ids_of(page_of, ids_in) -> list[str]:
        ids: list[str] = []
        after = None
        while True:
            page = await page_of(limit=2, after=after)
            assert len(ids_in(page)) <= 2
            ids += ids_in(page)
            after = page.next
            if after is None:
                return ids

    async def ask() -> None:
        job_id = jobs[-1]
        assert await ids_of(host.jobs.list, lambda page: [job.id for job in page.jobs]) == jobs[::-1]
        runs = await ids_of(lambda **cut: host.jobs.runs(job_id, **cut), lambda page: [run.id for run in page.runs])
        assert runs == [f"{job_id}-{n}" for n in range(1, 6)]
        whole = list((await host.jobs.checkpoints(job_id)).ids)
        assert await ids_of(lambda **cut: host.jobs.checkpoints(job_id, **cut), lambda page: list(page.ids)) == whole
        assert [line.seq for line in await host.events(runs[1], after=3, limit=2)] == [4, 5]

    wait_for(ask())


def test_a_job_that_died_before_it_began_is_not_the_latest(bench: Bench) -> None:
    host = bench.host(lambda request: "x", expert("a"))
    begun = wait_for(host.run("a", "q"))
    wait_for(host.storage.create_job("stillborn"))
    assert wait_for(host.job()).id == begun.id
    assert wait_for(host.continue_job("a", "more")).id == begun.id
