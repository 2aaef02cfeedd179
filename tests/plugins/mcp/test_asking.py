"""What a server asks while it is called: a person, and the Run's model; in both eras."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hosts import Seen, expert, project_of, results, wait_for
from mcp_bed import Bed, words

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.settings import Overrides
from perstack.core.definitions.skills import BASE_SKILL, McpStdioSkill
from perstack.core.messages.messages import BlobPart
from perstack.core.runs.facts import Answer, Question
from perstack.errors import SkillError, UsageError
from perstack.host import Host
from perstack.ports.skill import SkillSession, ToolCall
from perstack.testing.scripted import ScriptedProvider, ScriptLike, text, tool, turn

ASKING = Path(__file__).parent / "servers" / "asking.py"
ERAS = pytest.mark.parametrize("era", ["handshake", "stateless"])
PLENTY = 60_000


def _skill(era: str, name: str = "asking", **fields) -> McpStdioSkill:
    fields.setdefault("timeout", PLENTY)
    return McpStdioSkill(name=name, command=sys.executable, args=(str(ASKING), era), **fields)


def _expert_with(key: str, *skills: McpStdioSkill, **fields) -> Expert:
    return expert(key, **fields).model_copy(update={"skills": skills})


def _host(
    bed: Bed,
    script: ScriptLike | ScriptedProvider,
    *experts: Expert,
    unattended: bool = False,
    is_attended: bool = False,
) -> Host:
    provider = script if isinstance(script, ScriptedProvider) else ScriptedProvider(script)
    return Host(
        project_of(*experts),
        workspace=bed.workspace,
        storage="file:perstack",
        env=bed.env,
        overrides=Overrides(provider="scripted", unattended=unattended),
        plugins=[provider],
        is_attended=lambda: is_attended,
    )


def _effects(bed: Bed) -> int:
    return len((bed.workspace / "charged").read_text().splitlines())


def _stderr(seen: Seen) -> list[str]:
    return [event.message for event in seen.of("skillStderr")]


@ERAS
def test_the_run_stops_with_the_question_and_the_same_call_gets_the_answer(bed: Bed, era: str) -> None:
    script, one, seen = [tool("book"), text("booked")], _expert_with("a", _skill(era)), Seen()
    job = wait_for(_host(bed, script, one).run("a", "q", on_event=seen))
    assert (job.status, job.question) == ("stoppedByInteractiveTool", "you: where to?")
    assert job.asking is not None
    assert job.asking.requested_schema["required"] == ["city"]
    assert ("cancelled" in _stderr(seen)) == (era == "handshake"), "the server is told that its call is given up"
    assert bed.processes() == [], "nothing waits in a process"
    done = wait_for(_host(bed, script, one).answer('{"city": "Rome"}', on_event=seen))
    assert (done.status, done.text) == ("completed", "booked")
    assert results(seen) == ['accept {"city": "Rome", "nights": 2}'], "what is left out is what the form says"
    assert wait_for(_host(bed, script, one).audit.replay(job.id)).ok


def test_the_call_is_cancelled_before_the_question_is(bed: Bed) -> None:
    seen = Seen()
    wait_for(_host(bed, [tool("book"), text("x")], _expert_with("a", _skill("handshake"))).run("a", "q", on_event=seen))
    lines = _stderr(seen)
    before = lines[: lines.index("cancelled")]
    assert not [line for line in before if line.startswith("answered")], "it would act upon an answer"


@ERAS
def test_declined_is_told_to_the_server(bed: Bed, era: str) -> None:
    script, one, seen = [tool("book"), text("ok")], _expert_with("a", _skill(era)), Seen()
    wait_for(_host(bed, script, one).run("a", "q"))
    assert wait_for(_host(bed, script, one).answer("decline", on_event=seen)).status == "completed"
    assert results(seen) == ["decline null"]


@ERAS
def test_unattended_a_question_is_declined_at_once(bed: Bed, era: str) -> None:
    seen = Seen()
    host = _host(bed, [tool("book"), text("ok")], _expert_with("a", _skill(era)), unattended=True)
    assert wait_for(host.run("a", "q", on_event=seen)).status == "completed"
    assert results(seen) == ["decline null"]


@ERAS
def test_a_tool_may_ask_twice_in_one_call(bed: Bed, era: str) -> None:
    script, one, seen = [tool("trip"), text("ok")], _expert_with("a", _skill(era)), Seen()
    job = wait_for(_host(bed, script, one).run("a", "q", on_event=seen))
    asked = []
    for answer in ('{"city": "Oslo"}', "3"):
        asked.append(job.question)
        job = wait_for(_host(bed, script, one).answer(answer, on_event=seen))
    assert asked == ["Where to?", "How long?"]
    assert (job.status, results(seen)) == ("completed", ["Oslo 3"])


@ERAS
def test_what_has_to_be_done_on_the_web_is_asked_with_its_address(bed: Bed, era: str) -> None:
    script, one, seen = [tool("pay"), text("ok")], _expert_with("a", _skill(era)), Seen()
    job = wait_for(_host(bed, script, one).run("a", "q", on_event=seen))
    assert job.question == "Please pay.\nhttps://pay.example.com/7"
    assert wait_for(_host(bed, script, one).answer("yes", on_event=seen)).status == "completed"
    assert results(seen) == ["accept False"]


def test_a_call_that_is_refused_until_something_is_done_on_the_web_is_made_again(bed: Bed) -> None:
    script, one, seen = [tool("demand"), text("ok")], _expert_with("a", _skill("handshake")), Seen()
    job = wait_for(_host(bed, script, one).run("a", "q", on_event=seen))
    assert job.question == "Please pay.\nhttps://pay.example.com/7"
    (bed.workspace / "paid").touch()
    assert wait_for(_host(bed, script, one).answer("yes", on_event=seen)).status == "completed"
    assert results(seen) == ["thank you"]


@pytest.mark.parametrize(("said", "told"), [("yes", "demand: not paid"), ("no", "declined by the person")])
def test_if_it_is_not_done_the_model_is_told(bed: Bed, said: str, told: str) -> None:
    script, one, seen = [tool("demand"), text("ok")], _expert_with("a", _skill("handshake")), Seen()
    wait_for(_host(bed, script, one).run("a", "q"))
    assert wait_for(_host(bed, script, one).answer(said, on_event=seen)).status == "completed"
    assert told in results(seen)[0]


@ERAS
def test_delegates_that_share_a_server_ask_one_after_the_other(bed: Bed, era: str) -> None:
    script = {
        "[[boss]]": [turn(tool("a", {"query": "x"}), tool("b", {"query": "y"})), text("done")],
        "[[a]]": [tool("book", {"who": "ann"}), text("a has booked")],
        "[[b]]": [tool("book", {"who": "bob"}), text("b has booked")],
    }
    experts = (expert("boss", delegates=("a", "b")), _expert_with("a", _skill(era)), _expert_with("b", _skill(era)))
    seen, asked = Seen(), []
    job = wait_for(_host(bed, script, *experts).run("boss", "q", on_event=seen))
    for city in ("Rome", "Oslo"):
        assert job.asking is not None
        asked.append((job.asking.expert_key, (job.question or "").partition("\n")[0]))
        job = wait_for(_host(bed, script, *experts).answer(json.dumps({"city": city}), on_event=seen))
    assert (job.status, job.text) == ("completed", "done")
    assert sorted(asked) == [("a", "ann: where to?"), ("b", "bob: where to?")]
    assert sorted(results(seen, "book")) == [f'accept {{"city": "{city}", "nights": 2}}' for city in ("Oslo", "Rome")]


@ERAS
def test_two_calls_of_one_reply_that_ask_at_once_each_get_their_own_answer(bed: Bed, era: str) -> None:
    script = [turn(tool("book", {"who": "ann"}), tool("book", {"who": "bob"})), text("ok")]
    one, seen, said = _expert_with("a", _skill(era)), Seen(), {"ann": "Rome", "bob": "Oslo"}
    job = wait_for(_host(bed, script, one).run("a", "q", on_event=seen))
    for _ in range(2):
        assert job.question is not None
        answer = json.dumps({"city": said[job.question.partition(":")[0]]})
        job = wait_for(_host(bed, script, one).answer(answer, on_event=seen))
    assert job.status == "completed"
    got = {event.tool_call_id: event.contents[0].text for event in seen.of("finishToolCall")}
    assert "Rome" in got["call_0_0"]
    assert "Oslo" in got["call_0_1"]


@ERAS
def test_while_the_connection_is_there_the_server_gets_the_answer_within_the_same_call(bed: Bed, era: str) -> None:
    async def run() -> str:
        async with bed.session(_skill(era)) as session:
            request, cities = replace(bed.request("trip", {}), may_ask=True), {"city": "Oslo"}
            first = await session.call(request)
            assert isinstance(first, Question)
            other = await session.call(replace(bed.request("book", {"who": "ann"}), key="other", may_ask=True))
            assert isinstance(other, Question), "a call that waits is in nobody's way"
            answers = (Answer(question=first, action="accept", content=cities),)
            second = await session.call(replace(request, answers=answers))
            assert isinstance(second, Question)
            answers = (*answers, Answer(question=second, action="accept", content={"nights": 3}))
            result = await session.call(replace(request, answers=answers))
            assert not isinstance(result, Question)
            return words(result)

    assert wait_for(run()) == "Oslo 3"
    calls = 1 if era == "handshake" else 3  # a stateless server is called with its state
    assert bed.shown.count("trip") == calls, "a server that acts before it asks acts once"
    assert bed.shown.count("book ann") == 1
    assert bed.shown.count("cancelled") == (era == "handshake"), "the one that waits at the end"


def test_a_delegate_that_asks_while_another_works_gets_the_answer_in_its_call(bed: Bed) -> None:
    script = {
        "[[boss]]": [turn(tool("a", {"query": "x"}), tool("b", {"query": "y"})), text("done")],
        "[[a]]": [tool("book"), text("a has booked")],
        "[[b]]": [
            tool("exec", {"command": "sh", "args": ["-c", "while [ ! -e go ]; do sleep 0.05; done"]}),
            text("b has worked"),
        ],
    }
    base = McpStdioSkill(name=BASE_SKILL, package_name=BASE_SKILL, pick=("exec",))
    experts = (expert("boss", delegates=("a", "b")), _expert_with("a", _skill("handshake")), _expert_with("b", base))
    seen = Seen()

    async def work() -> str | None:
        async with _host(bed, script, *experts) as host:
            task = asyncio.create_task(host.run("boss", "q", job_id="job", on_event=seen))
            async with asyncio.timeout(30):
                while not (asked := host.jobs.live_questions("job")):
                    await asyncio.sleep(0.01)
            await host.jobs.answer_live('{"city": "Rome"}', asked[0].id)
            async with asyncio.timeout(30):
                while not results(seen, "book"):
                    await asyncio.sleep(0.01)
            (bed.workspace / "go").touch()
            return (await task).text

    assert wait_for(work(), 90) == "done"
    assert results(seen, "book") == ['accept {"city": "Rome", "nights": 2}']
    assert (_stderr(seen).count("book"), _stderr(seen).count("cancelled")) == (1, 0)


@pytest.mark.parametrize("asks", ["the Coordinator", "a delegate"])
def test_a_server_that_acts_before_it_asks_a_person_who_is_present_acts_once(bed: Bed, asks: str) -> None:
    """The Job rests meanwhile, and may be answered from elsewhere; the server waits in this process."""
    script = {"[[boss]]": [tool("a", {"query": "x"}), text("done")], "[[a]]": [tool("charge"), text("done")]}
    experts, seen = (expert("boss", delegates=("a",)), _expert_with("a", _skill("handshake"))), Seen()

    async def work() -> None:
        async with _host(bed, script, *experts, is_attended=True) as host:
            job = await host.run("boss" if asks == "a delegate" else "a", "q", on_event=seen)
            assert (job.status, job.question) == ("stoppedByInteractiveTool", "Where to?")
            assert await host.storage.lease_info(job.id) is None, "no lease is held while a person thinks"
            with pytest.raises(UsageError):
                await host.answer("what?", job_id=job.id)
            assert (await host.answer('{"city": "Rome"}', job_id=job.id, on_event=seen)).text == "done"

    wait_for(work(), 60)
    assert results(seen, "charge") == ["charged for Rome"]
    assert _effects(bed) == 1
    assert not [line for line in _stderr(seen) if line == "cancelled"]


def test_each_question_of_one_call_is_answered_within_it(bed: Bed) -> None:
    seen = Seen()

    async def work() -> None:
        async with _host(
            bed, [tool("trip"), text("ok")], _expert_with("a", _skill("handshake")), is_attended=True
        ) as host:
            job = await host.run("a", "q", on_event=seen)
            for answer in ('{"city": "Oslo"}', "3"):
                assert job.asking is not None
                job = await host.answer(answer, question_id=job.asking.id, on_event=seen)
            assert job.status == "completed"

    wait_for(work(), 60)
    assert results(seen) == ["Oslo 3"]
    assert _stderr(seen).count("trip") == 1


OTHERS = 8  # Jobs at rest whose calls wait at the same time


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_call_whose_server_ends_while_it_waits_is_reported_and_not_repeated(bed: Bed, *, is_noticed: bool) -> None:
    seen = Seen()

    async def work() -> None:
        async with _host(
            bed, [tool("charge"), text("ok")], _expert_with("a", _skill("handshake")), is_attended=True
        ) as host:
            job = await host.run("a", "q", on_event=seen)
            for process in bed.processes():
                if b"asking.py" in Path(f"/proc/{process}/cmdline").read_bytes():
                    os.kill(process, signal.SIGKILL)
            if is_noticed:
                async with asyncio.timeout(20):
                    while bed.processes():
                        await asyncio.sleep(0.01)
            assert (await host.answer('{"city": "Rome"}', job_id=job.id, on_event=seen)).status == "completed"

    wait_for(work(), 60)
    assert "the server ended during the call, which may have had its effect and was not repeated" in results(seen)[0]
    assert _effects(bed) == 1


@pytest.mark.parametrize("left", ["answered elsewhere", "continued", "closed", "forgotten"])
def test_a_call_that_cannot_wait_any_longer_is_made_again(bed: Bed, left: str) -> None:
    script, one, seen = [tool("charge"), text("done"), text("else")], _expert_with("a", _skill("handshake")), Seen()

    async def work() -> None:
        provider = ScriptedProvider(script)
        async with _host(bed, provider, one, is_attended=True) as host:
            job = await host.run("a", "q", on_event=seen)
            answering = host
            match left:
                case "answered elsewhere":
                    answering = _host(bed, provider, one)
                case "continued":
                    job = await host.continue_job("a", "Do something else", job_id=job.id)
                    assert (job.text, bed.processes()) == ("done", [])
                    return
                case "closed":
                    await host.cancel(job.id, final=True)
                    assert bed.processes() == []
                    return
                case _:
                    for number in range(OTHERS):
                        await host.run("a", "q", job_id=f"later-{number}")
            done = await answering.answer('{"city": "Rome"}', job_id=job.id, on_event=seen)
            assert done.status == "completed"
            if left == "answered elsewhere":
                assert bed.processes(), "this process has not heard of it"
                await host.continue_job("a", "More", job_id=job.id)
                assert bed.processes() == []
        assert bed.processes() == []

    wait_for(work(), 90)
    assert _effects(bed) == {"continued": 1, "closed": 1, "forgotten": 2 + OTHERS}.get(left, 2)


def test_a_question_that_may_be_of_either_call_waits_and_is_declined_in_time(bed: Bed) -> None:
    async def run() -> str:
        async with bed.session(_skill("handshake", timeout=4000)) as session:
            await session.tools()
            waiting = asyncio.create_task(session.call(replace(bed.request("wait", {}), may_ask=True)))
            await asyncio.sleep(0)
            result = await session.call(replace(bed.request("book", {}), may_ask=True))
            with pytest.raises(SkillError, match="no answer and no progress"):
                await waiting
            assert not isinstance(result, Question)
            return words(result)

    assert wait_for(run()) == "decline null"
    assert any("it does not say which of its calls" in line for line in bed.shown)


def _answered(request: ToolCall, question: Question, city: str) -> ToolCall:
    content = {"city": city}
    return replace(request, answers=(*request.answers, Answer(question=question, action="accept", content=content)))


async def _two_questions(bed: Bed, session: SkillSession, first: str) -> list[tuple[ToolCall, Question]]:
    """Return two calls that ask at the same time; `first`: when the one that is made first asks."""
    await session.tools()
    requests = [
        replace(bed.request("charge", {"who": who, "asks": asks}), key=who, may_ask=True, expert_key=who)
        for who, asks in (("ann", first), ("bob", "at once"))
    ]
    found = await asyncio.gather(*map(session.call, requests))
    assert _effects(bed) == 2
    pairs = []
    for request, question in zip(requests, found, strict=True):
        assert isinstance(question, Question)
        assert question.message == (
            "Where to?\n(The server does not say which of its calls asks: charge of ann; charge of bob)"
        )
        pairs.append((request, question))
    return pairs


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_calls_of_one_pipe_that_ask_at_once_are_each_made_once(bed: Bed, order: tuple[int, int]) -> None:
    async def run() -> list[str]:
        async with bed.session(_skill("handshake")) as session:
            pairs, said = await _two_questions(bed, session, "at once"), ["", ""]
            for number in order:
                result = await session.call(_answered(*pairs[number], ("Rome", "Oslo")[number]))
                assert not isinstance(result, Question)
                said[number] = words(result)
            return said

    assert wait_for(run()) == ["charged ann for Rome", "charged bob for Oslo"]
    assert _effects(bed) == 2
    assert "cancelled" not in bed.shown


def test_a_question_of_another_call_than_it_seemed_is_asked_by_the_call_that_is_left(bed: Bed) -> None:
    async def run() -> list[str]:
        async with bed.session(_skill("handshake")) as session:
            (ann, first), (bob, second) = await _two_questions(bed, session, "last")
            ann = _answered(ann, first, "Oslo")  # bob asked it
            again = await session.call(ann)
            assert again == second, "the call that seemed to ask it has ended"
            results = [await session.call(_answered(ann, second, "Rome"))]
            results.append(await session.call(_answered(bob, second, "Rome")))
            return [words(result) for result in results if not isinstance(result, Question)]

    assert wait_for(run()) == ["charged ann for Rome", "charged bob for Oslo"]
    assert _effects(bed) == 2
    assert "cancelled" not in bed.shown


def test_a_call_that_ends_leaves_the_question_of_the_other_open(bed: Bed) -> None:
    async def run() -> str:
        async with bed.session(_skill("handshake")) as session:
            pairs = await _two_questions(bed, session, "at once")
            left = asyncio.create_task(session.call(_answered(*pairs[0], "Rome")))
            left.cancel()
            await asyncio.wait({left})
            result = await session.call(_answered(*pairs[1], "Oslo"))
            assert not isinstance(result, Question)
            return words(result)

    assert wait_for(run()) == "charged bob for Oslo"


def test_a_server_may_name_the_call_that_asks(bed: Bed) -> None:
    async def run() -> str:
        async with bed.session(_skill("handshake")) as session:
            await session.tools()
            waiting = asyncio.create_task(session.call(replace(bed.request("wait", {}), key="other", may_ask=True)))
            await asyncio.sleep(0)
            request = replace(bed.request("charge", {"asks": "by name"}), may_ask=True)
            question = await session.call(request)
            assert isinstance(question, Question)
            assert question.message == "Where to?"
            result = await session.call(_answered(request, question, "Rome"))
            waiting.cancel()
            assert not isinstance(result, Question)
            return words(result)

    assert wait_for(run()) == "charged for Rome"
    assert _effects(bed) == 1


@pytest.mark.parametrize("first", ["at once", "last"])
def test_a_run_whose_calls_ask_at_once_has_each_effect_once(bed: Bed, first: str) -> None:
    calls = [tool("charge", {"who": "ann", "asks": first}), tool("charge", {"who": "bob"})]
    seen = Seen()

    async def work() -> None:
        script = [turn(*calls), text("ok")]
        async with _host(bed, script, _expert_with("a", _skill("handshake")), is_attended=True) as host:
            job = await host.run("a", "q", on_event=seen)
            for city in ("Rome", "Oslo", "Bern"):
                if job.asking is not None:
                    job = await host.answer(json.dumps({"city": city}), question_id=job.asking.id, on_event=seen)
            assert (job.status, job.text) == ("completed", "ok")

    wait_for(work(), 60)
    cities = {"at once": ("Rome", "Oslo"), "last": ("Oslo", "Rome")}[first]
    assert sorted(results(seen, "charge")) == [f"charged ann for {cities[0]}", f"charged bob for {cities[1]}"]
    assert _effects(bed) == 2
    assert "cancelled" not in _stderr(seen)


def test_a_question_waits_until_its_call_is_the_only_one(bed: Bed) -> None:
    async def run() -> None:
        async with bed.session(_skill("handshake", timeout=20_000)) as session:
            await session.tools()
            waiting = asyncio.create_task(session.call(replace(bed.request("wait", {}), may_ask=True)))
            await asyncio.sleep(0)
            asking = asyncio.create_task(session.call(replace(bed.request("book", {}), may_ask=True)))
            async with asyncio.timeout(10):
                while "book" not in bed.shown:
                    await asyncio.sleep(0.01)
            waiting.cancel()
            assert isinstance(await asking, Question)

    wait_for(run())


def test_a_question_that_was_answered_and_is_asked_again_is_a_new_one(bed: Bed) -> None:
    question = Question(message="you: where to?", requested_schema={"type": "object"})

    async def run() -> object:
        async with bed.session(_skill("handshake")) as session:
            answers = (Answer(question=question, action="decline"),)
            return await session.call(replace(bed.request("book", {}), may_ask=True, answers=answers))

    assert isinstance(wait_for(run()), Question), "an answer is one to the same message with the same schema"


@ERAS
def test_a_server_may_use_the_runs_model_if_its_skill_says_so(bed: Bed, era: str) -> None:
    script = {"[[a]]": [tool("sum"), text("done")], "[[calculator]]": [text("What?"), text("4", usage=(7, 0))]}
    provider, seen = ScriptedProvider(script), Seen()
    job = wait_for(_host(bed, provider, _expert_with("a", _skill(era, sampling=True))).run("a", "q", on_event=seen))
    got = json.loads(results(seen)[0])
    assert (got["role"], got["content"]["text"], got["stopReason"]) == ("assistant", "4", "endTurn")
    assert got["model"] == seen.of("startRun")[0].model
    assert job.usage.input_tokens == 7
    asked = next(request for request in provider.requests if request.instruction == "[[calculator]]")
    assert (asked.max_tokens, asked.temperature) == (10, 0.5)
    first, second, third = asked.messages
    assert (first.contents[0].text, second.contents[0].text) == ("2 + 2?", "What?")
    assert isinstance(third.contents[0], BlobPart)
    assert third.contents[0].mime_type == "image/png"


@ERAS
def test_without_that_it_is_refused_and_not_offered(bed: Bed, era: str) -> None:
    seen = Seen()
    wait_for(_host(bed, [tool("sum"), text("ok")], _expert_with("a", _skill(era))).run("a", "q", on_event=seen))
    assert "ampling" in results(seen)[0]
    if era == "handshake":
        assert "capabilities elicitation roots" in _stderr(seen)


def test_what_the_model_cannot_be_shown_is_refused(bed: Bed) -> None:
    seen = Seen()
    one = _expert_with("a", _skill("handshake", sampling=True))
    wait_for(_host(bed, [tool("nest"), text("ok")], one).run("a", "q", on_event=seen))
    assert "content of type audio is not accepted here" in results(seen)[0]


def test_the_server_learns_nothing_of_why_the_model_did_not_reply(bed: Bed) -> None:
    script = {"[[a]]": [tool("sum"), text("done")]}
    seen = Seen()
    wait_for(_host(bed, script, _expert_with("a", _skill("handshake", sampling=True))).run("a", "q", on_event=seen))
    assert json.loads(results(seen)[0])["message"].startswith("the model did not reply")
    assert any("the model that the server asked for did not reply" in line for line in _stderr(seen))
