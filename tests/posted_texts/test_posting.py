"""What a person tells a Job that any process drives: it reaches the model once, before its next generation."""

from __future__ import annotations

import asyncio

import pytest
from hosts import Begun, Bench, Seen, crashing, expert, sampled, until_it_crashes, wait_for
from long_runs import texts_in
from toolkit_experts import with_kit

from perstack.core.base.ids import By
from perstack.errors import NotFound, UsageError
from perstack.host import Host
from perstack.ports.provider import GenerationRequest
from perstack.ports.storage import RunRef
from perstack.testing.crashing_storage import CrashPoint, crash_points
from perstack.testing.in_memory_dispatcher import InMemoryDispatcher
from perstack.testing.in_memory_storage import InMemoryStorage, InMemoryStore
from perstack.testing.scripted import ScriptedProvider, text, tool, turn
from perstack.toolkit import Toolkit

WISH = "show me before you send anything"
ANN = By(user="ann", door="cli")


def check_sound(host: Host, job_id: str) -> None:
    assert wait_for(host.audit.replay(job_id)).findings == ()
    assert wait_for(host.audit.verify(job_id)).findings == ()


class Slow:
    """A tool that runs until the test ends it."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.kit = Toolkit("slow")

        @self.kit.tool()
        async def work() -> str:
            """Work for long."""
            self.began.set()
            await self.may_end.wait()
            return "worked"


class Telling(ScriptedProvider):
    """A model whose Job is told something while it writes its first reply."""

    host: Host

    async def generate(self, request: GenerationRequest, on_delta):
        if len(self.requests) == 0:
            await self.host.tell("job", WISH)
        return await super().generate(request, on_delta)


def two_steps(request: GenerationRequest):
    return turn(tool("work")) if request.step == 1 else "done"


def test_a_text_during_a_long_call_is_in_the_next_request_with_its_author_in_the_log(bench: Bench) -> None:
    slow, seen, provider = Slow(), Seen(), ScriptedProvider(two_steps)

    async def work() -> None:
        host = bench.host(provider, with_kit("a", "slow"), plugins=(slow.kit,))
        other = bench.host([], with_kit("a", "slow"), plugins=(slow.kit,))
        run = asyncio.create_task(host.run("a", "go", job_id="job", on_event=seen))
        async with asyncio.timeout(10):
            await slow.began.wait()
            delivery = await other.tell("job", WISH, by=ANN)
            assert (delivery.run_id, delivery.is_driven) == ("job-1", True)
            slow.may_end.set()
            assert (await run).status == "completed"

    wait_for(work())
    assert [WISH in texts_in(request) for request in provider.requests] == [False, True]
    (told,) = seen.of("tellRun")
    assert (told.text, told.by, told.step_number) == (WISH, ANN, 2)
    host = bench.host([], expert("a"))
    check_sound(host, "job")
    assert not wait_for(host.storage.space("mailboxes").has_job("job"))


def test_texts_told_at_once_all_arrive_in_the_order_in_which_they_were_kept(bench: Bench) -> None:
    slow, seen, provider = Slow(), Seen(), ScriptedProvider(two_steps)

    async def work() -> None:
        host = bench.host(provider, with_kit("a", "slow"), plugins=(slow.kit,))
        others = [bench.host([], with_kit("a", "slow"), plugins=(slow.kit,)) for _ in range(3)]
        run = asyncio.create_task(host.run("a", "go", job_id="job", on_event=seen))
        async with asyncio.timeout(20):
            await slow.began.wait()
            await asyncio.gather(*(other.tell("job", f"wish {number}") for number, other in enumerate(others)))
            kept = [text.text for text in await host.texts.standing_texts("job") if text.is_waiting]
            assert sorted(kept) == ["wish 0", "wish 1", "wish 2"]
            slow.may_end.set()
            await run
        assert [event.text for event in seen.of("tellRun")] == kept

    wait_for(work())


def stopped(bench: Bench, *script) -> Host:
    """Return a Host of a Job that stopped with a question after its first step."""
    host = bench.host([*script], expert("a", ask=True))
    job = wait_for(host.run("a", "go", job_id="job"))
    assert job.status == "stoppedByInteractiveTool"
    return host


ASK = turn(tool("askUser", {"question": "Tea?"}))


def test_a_job_that_waits_for_an_answer_has_the_text_when_it_continues(bench: Bench) -> None:
    stopped(bench, ASK)
    provider = ScriptedProvider([ASK, text("done")])
    host = bench.host(provider, expert("a", ask=True))
    delivery = wait_for(host.tell("job", WISH))
    assert (delivery.status, delivery.is_driven) == ("stoppedByInteractiveTool", False)
    assert wait_for(host.answer("yes", job_id="job")).status == "completed"
    (request,) = provider.requests
    assert WISH in texts_in(request)
    check_sound(host, "job")


@pytest.mark.parametrize("point", sampled(crash_points(8)))
def test_a_text_is_taken_once_wherever_its_driver_is_killed(bench: Bench, point: CrashPoint) -> None:
    stopped(bench, ASK)
    wait_for(bench.host([], expert("a", ask=True)).tell("job", WISH))
    script = [ASK, turn(tool("think", {"thought": "hm"})), text("done")]
    with until_it_crashes():
        wait_for(bench.host(script, expert("a", ask=True), wrap=crashing(point)).answer("yes", job_id="job"))
    provider = ScriptedProvider(script)
    host = bench.host(provider, expert("a", ask=True))
    job = wait_for(host.job("job"))
    if job.asking is not None:
        job = wait_for(host.answer("yes", job_id="job"))
    elif job.status != "completed":
        job = wait_for(host.resume("job"))
    assert job.status == "completed"
    told = [line.event for line in wait_for(host.jobs.events("job-1")) if line.event.type == "tellRun"]
    assert [event.text for event in told] == [WISH]
    assert all(texts_in(request).count(WISH) == 1 for request in provider.requests)
    assert not wait_for(host.storage.space("mailboxes").has_job("job"))
    check_sound(host, "job")


def test_a_generation_that_was_interrupted_is_repeated_with_the_text(bench: Bench) -> None:
    async def work() -> None:
        async with bench.host([turn(text="late", delay_ms=60_000)], expert("a")) as host:
            seen = Begun()
            run = asyncio.create_task(host.run("a", "go", job_id="job", on_event=seen))
            async with asyncio.timeout(10):
                await seen.generating.wait()
                await host.cancel("job")
                await asyncio.wait({run})

    wait_for(work())
    provider = ScriptedProvider([text("done")])
    host = bench.host(provider, expert("a"))
    wait_for(host.tell("job", WISH))
    assert wait_for(host.resume("job")).status == "completed"
    assert [WISH in texts_in(request) for request in provider.requests] == [True]
    check_sound(host, "job")


def test_a_text_that_comes_with_the_last_reply_makes_the_run_go_on(bench: Bench) -> None:
    def reply(request: GenerationRequest):
        return "with the wish" if WISH in texts_in(request) else "without"

    provider = Telling(reply)
    provider.host = host = bench.host(provider, expert("a"))
    assert wait_for(host.run("a", "go", job_id="job")).text == "with the wish"
    check_sound(host, "job")


def test_what_has_ended_or_is_empty_is_refused_in_one_line_that_says_what_to_do(bench: Bench) -> None:
    host = bench.host([text("done")], expert("a"))
    wait_for(host.run("a", "go", job_id="job"))
    with pytest.raises(UsageError, match=r"Job job is completed; continue Job job with a new query"):
        wait_for(host.tell("job", WISH))
    with pytest.raises(UsageError, match="TEXT is empty"):
        wait_for(host.tell("job", " \n"))
    with pytest.raises(UsageError, match="TEXT has 20,001 characters, more than 20,000"):
        wait_for(host.tell("job", "x" * 20_001))
    with pytest.raises(NotFound):
        wait_for(host.tell("none", WISH))
    stopped_host = bench.host([ASK], expert("a", ask=True))
    wait_for(stopped_host.run("a", "go", job_id="open"))
    with pytest.raises(NotFound, match="Job open has no Run open-7"):
        wait_for(stopped_host.tell("open", WISH, run_id="open-7"))
    wait_for(stopped_host.cancel("open", final=True))
    with pytest.raises(UsageError, match="Job open was closed for good"):
        wait_for(stopped_host.tell("open", WISH))


def test_a_delegate_is_told_by_its_run_and_its_parent_sees_nothing(bench: Bench) -> None:
    slow, seen = Slow(), Seen()
    lead = ScriptedProvider({"a": [turn(tool("b", {"query": "work"})), text("done")], "b": two_steps_of("b")})

    async def work() -> None:
        boss, helper = expert("a", delegates=("b",)), with_kit("b", "slow")
        host = bench.host(lead, boss, helper, plugins=(slow.kit,))
        run = asyncio.create_task(host.run("a", "go", job_id="job", on_event=seen))
        async with asyncio.timeout(10):
            await slow.began.wait()
            await host.tell("job", WISH, run_id="job-2")
            slow.may_end.set()
            assert (await run).status == "completed"
        with pytest.raises(UsageError):
            await host.tell("job", WISH, run_id="job-2")
        check = await host.audit.replay("job")
        assert check.findings == ()

    wait_for(work())
    assert [event.run_id for event in seen.of("tellRun")] == ["job-2"]
    having = [request.expert_key for request in lead.requests if WISH in texts_in(request)]
    assert having == ["b"]


def two_steps_of(_key: str) -> list:
    return [turn(tool("work")), text("done")]


def test_a_removed_text_is_not_sent_again_and_one_that_waits_never_is(bench: Bench) -> None:
    stopped(bench, ASK)
    provider = ScriptedProvider([ASK, turn(tool("askUser", {"question": "Milk?"})), text("done")])
    host = bench.host(provider, expert("a", ask=True))
    waiting = wait_for(host.tell("job", "never mind"))
    wait_for(host.texts.drop("job", waiting.id))
    wait_for(host.tell("job", WISH))
    wait_for(host.answer("yes", job_id="job"))
    texts = wait_for(host.texts.standing_texts("job"))
    assert [text.text for text in texts] == ["go", "yes", WISH]
    wait_for(host.texts.drop("job", texts[-1].id, by=ANN))
    assert [text.text for text in wait_for(host.texts.standing_texts("job"))] == ["go", "yes"]
    with pytest.raises(NotFound, match="Job job has no posted text job-1-99"):
        wait_for(host.texts.drop("job", "job-1-99"))
    wait_for(host.answer("no", job_id="job"))
    assert [text.text for text in wait_for(host.texts.standing_texts("job"))] == ["go", "yes", "no"]
    assert not any("never mind" in texts_in(request) for request in provider.requests)
    check_sound(host, "job")


def test_a_deleted_job_leaves_no_text(bench: Bench) -> None:
    host = stopped(bench, ASK)
    wait_for(host.tell("job", WISH))
    wait_for(host.jobs.delete("job"))
    assert not wait_for(host.storage.space("mailboxes").has_job("job"))


def test_texts_of_a_branch_are_not_taken_twice(bench: Bench) -> None:
    stopped(bench, ASK)
    provider = ScriptedProvider([ASK, text("done"), text("again")])
    host = bench.host(provider, expert("a", ask=True))
    wait_for(host.tell("job", WISH))
    wait_for(host.answer("yes", job_id="job"))
    wait_for(host.continue_job("a", "more", job_id="job"))
    assert texts_in(provider.requests[-1]).count(WISH) == 1
    check_sound(host, "job")


def test_a_copy_of_a_job_has_the_text_that_waits_and_a_second_copy_adds_none(bench: Bench) -> None:
    host = stopped(bench, ASK)
    wait_for(host.tell("job", WISH))

    async def copied() -> None:
        async with asyncio.timeout(20):
            target = InMemoryStorage(InMemoryStore())
            for _ in range(2):
                results = [result async for result in host.storage_admin.copy_to(target)]
                assert [result.problem for result in results] == [""]
            assert len(await target.space("mailboxes").read(RunRef("job", "job-1"))) == 1

    wait_for(copied())


def test_a_redaction_names_a_copy_in_a_text_that_waits(bench: Bench) -> None:
    host = bench.host([ASK], expert("a", ask=True))
    wait_for(host.run("a", "write to ann@example.org", job_id="job"))
    wait_for(host.tell("job", "I said: write to ann@example.org"))
    found = wait_for(host.audit.redact("job-1-1", ("query",), reason="an address"))
    assert "a text that waits for job" in found.copies


def test_a_redaction_takes_a_text_from_the_messages_and_from_what_is_kept(bench: Bench) -> None:
    stopped(bench, ASK)
    provider = ScriptedProvider([ASK, ASK, text("done")])
    host = bench.host(provider, expert("a", ask=True))
    wait_for(host.tell("job", WISH))
    wait_for(host.answer("yes", job_id="job"))
    told = next(line.event for line in wait_for(host.jobs.events("job-1")) if line.event.type == "tellRun")
    wait_for(host.audit.redact(told.id, ("text",), reason="private"))
    assert WISH not in str(wait_for(host.texts.standing_texts("job")))
    wait_for(host.answer("no", job_id="job"))
    assert WISH not in texts_in(provider.requests[-1])
    assert wait_for(host.audit.verify("job")).findings == ()


def test_a_queued_job_has_the_text_on_the_worker_that_takes_it(bench: Bench) -> None:
    async def work() -> None:
        dispatcher, provider = InMemoryDispatcher(), ScriptedProvider([text("done")])
        async with (
            bench.host([], expert("a"), dispatcher=dispatcher) as host,
            bench.host(provider, expert("a"), dispatcher=dispatcher) as worker,
        ):
            await host.submit("a", "go", job_id="job")
            delivery = await host.tell("job", WISH)
            assert (delivery.status, delivery.is_driven) == ("queued", False)
            assert (await worker.job_server.serve("job", worker="w")).status == "completed"
            assert [WISH in texts_in(request) for request in provider.requests] == [True]

    wait_for(work())
