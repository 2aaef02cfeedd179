"""Questions of a running tool: the Run stops, and the same call is repeated with the answer."""

from __future__ import annotations

import pytest
from hosts import Bench, Seen, expert, results, wait_for

from perstack.core.base.ids import By
from perstack.core.definitions.skills import McpStdioSkill, ToolSpec
from perstack.core.jobs.answer_reading import AcceptedAnswers, read_answer
from perstack.core.messages.messages import TextPart, UserMessage
from perstack.core.runs.facts import Question
from perstack.errors import UsageError
from perstack.next_steps import Inspect
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SampleRequest, SkillFactory, SkillSession, ToolCall, ToolResult, Toolset
from perstack.testing.scripted import ScriptedProvider, text, tool, turn

WHERE = Question(
    message="Where to?",
    requested_schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


class Travel(SkillFactory, SkillSession):
    """A skill whose tool `book` asks a person where to go; `sum` asks the model."""

    name = "travel"

    def __init__(self) -> None:
        self.keys: list[str] = []

    def handles(self, definition) -> bool:
        return isinstance(definition, McpStdioSkill) and definition.name == "travel"

    async def open(self, definition, context):
        return self

    async def tools(self) -> Toolset:
        return TOOLS

    async def call(self, call: ToolCall) -> ToolResult | Question:
        self.keys.append(call.key)
        if call.tool_name == "sum":
            return await self._sum(call)
        if not call.may_ask:
            return ToolResult.text("nobody to ask")
        if not call.answers:
            return WHERE.model_copy(update={"message": f"{call.args.get('who', 'you')}: where to?"})
        answer = call.answers[-1]
        return ToolResult.text(f"{answer.action} {answer.content.get('city')}")

    async def _sum(self, call: ToolCall) -> ToolResult:
        if call.sample is None:
            return ToolResult.text("no model")
        query = UserMessage(contents=(TextPart(text="2 + 2?"),))
        sample = await call.sample(SampleRequest((query,), "[[calculator]]"))
        return ToolResult.text(sample.reply.text)

    async def close(self) -> None:
        pass

    @hookimpl
    def perstack_skills(self):
        return [self]


TOOLS = Toolset((ToolSpec(name="book"), ToolSpec(name="sum")))


def traveller(key: str, *, sampling: bool = False, **fields):
    skill = McpStdioSkill(name="travel", command="x", sampling=sampling)
    return expert(key, **fields).model_copy(update={"skills": (skill,)})


def form(fields: dict, **more) -> AcceptedAnswers:
    return AcceptedAnswers(schema={"type": "object", "properties": fields, **more})


def test_the_run_stops_and_goes_on_with_the_same_call_and_the_answer(bench: Bench) -> None:
    script, travel, seen = [tool("book"), text("booked")], Travel(), Seen()
    job = wait_for(bench.host(script, traveller("a"), plugins=(travel,)).run("a", "q", job_id="job", on_event=seen))
    assert (job.status, job.pause_reason, job.question) == ("stoppedByInteractiveTool", "human_input", "you: where to?")
    assert job.asking is not None
    assert job.asking.requested_schema == WHERE.requested_schema
    done = wait_for(bench.host(script, traveller("a"), plugins=(travel,)).answer("Rome", on_event=seen))
    assert (done.status, done.text, done.asking) == ("completed", "booked", None)
    assert results(seen) == ["accept Rome"]
    assert len(travel.keys) == 2
    assert len(set(travel.keys)) == 1, "the call keeps its key"
    report = wait_for(bench.host(script).audit.replay("job"))
    assert report.ok, report


def test_declining_is_an_answer_too(bench: Bench) -> None:
    script, seen = [tool("book"), text("ok")], Seen()
    wait_for(bench.host(script, traveller("a"), plugins=(Travel(),)).run("a", "q"))
    wait_for(bench.host(script, traveller("a"), plugins=(Travel(),)).answer("decline", on_event=seen))
    assert results(seen) == ["decline None"]


def test_an_answer_that_does_not_fit_is_refused_and_nothing_is_lost(bench: Bench) -> None:
    script = [tool("book"), text("ok")]
    wait_for(bench.host(script, traveller("a"), plugins=(Travel(),)).run("a", "q"))
    host = bench.host(script, traveller("a"), plugins=(Travel(),))
    with pytest.raises(UsageError, match=r"'city' is a required property; give a JSON object with city \(string\)"):
        wait_for(host.answer('{"town": "Rome"}'))
    assert wait_for(host.answer('{"city": "Rome"}')).status == "completed"


def test_two_questions_at_once_are_asked_one_after_the_other(bench: Bench) -> None:
    script = [turn(tool("book", {"who": "ann"}), tool("book", {"who": "bob"})), text("ok")]
    travel, seen, asked = Travel(), Seen(), []
    job = wait_for(bench.host(script, traveller("a"), plugins=(travel,)).run("a", "q", on_event=seen))
    for city in ("Rome", "Oslo"):
        asked.append(job.question)
        job = wait_for(bench.host(script, traveller("a"), plugins=(travel,)).answer(city, on_event=seen))
    assert job.status == "completed"
    assert sorted(asked) == ["ann: where to?", "bob: where to?"]
    answers = {
        event.tool_call_id: result for event, result in zip(seen.of("finishToolCall"), results(seen), strict=True)
    }
    first = "call_0_0" if asked[0].startswith("ann") else "call_0_1"
    assert answers[first] == "accept Rome"
    assert sorted(answers.values()) == ["accept Oslo", "accept Rome"]


def test_a_delegates_tool_asks_the_person_and_no_model(bench: Bench) -> None:
    script = {
        "[[boss]]": [turn(tool("a", {"query": "x"}), tool("b", {"query": "y"})), text("done")],
        "[[a]]": [tool("book", {"who": "a"}), text("a has booked")],
        "[[b]]": [tool("book", {"who": "b"}), text("b has booked")],
    }
    experts = (expert("boss", delegates=("a", "b")), traveller("a"), traveller("b"))
    travel, seen = Travel(), Seen()
    job = wait_for(bench.host(script, *experts, plugins=(travel,)).run("boss", "q", on_event=seen))
    asked = []
    for city in ("Rome", "Oslo"):
        assert job.status == "stoppedByInteractiveTool"
        assert job.asking is not None
        asked.append(job.asking.expert_key)
        job = wait_for(bench.host(script, *experts, plugins=(travel,)).answer(city, on_event=seen))
    assert sorted(asked) == ["a", "b"]
    assert (job.status, job.text) == ("completed", "done")
    assert sorted(results(seen, "book")) == ["accept Oslo", "accept Rome"]
    assert sorted([*results(seen, "a"), *results(seen, "b")]) == ["a has booked", "b has booked"]
    assert wait_for(bench.host(script).audit.replay(job.id)).ok
    assert wait_for(bench.host(script).audit.verify(job.id)).ok


def test_unattended_nobody_is_asked(bench: Bench) -> None:
    seen = Seen()
    host = bench.host([tool("book"), text("ok")], traveller("a"), plugins=(Travel(),), unattended=True)
    assert wait_for(host.run("a", "q", on_event=seen)).status == "completed"
    assert results(seen) == ["nobody to ask"]


def test_a_tool_may_ask_the_runs_model_if_its_skill_allows_it_and_it_is_counted(bench: Bench) -> None:
    script = {"[[a]]": [tool("sum"), text("done")], "[[calculator]]": [text("4", usage=(7, 0))]}
    for sampling, expected in ((True, "4"), (False, "no model")):
        seen = Seen()
        host = bench.host(ScriptedProvider(script), traveller("a", sampling=sampling), plugins=(Travel(),))
        job = wait_for(host.run("a", "q", on_event=seen))
        assert results(seen) == [expected]
        assert job.usage.input_tokens == (7 if sampling else 0)
        assert seen.of("finishRun")[0].total_usage == job.usage


@pytest.mark.parametrize(
    ("schema", "said", "content"),
    [
        ({"n": {"type": "integer"}}, "4", {"n": 4}),
        ({"sure": {"type": "boolean"}}, "Yes", {"sure": True}),
        ({"name": {"type": "string"}}, "42", {"name": "42"}),
        ({"tags": {"type": "array"}}, "a, b", {"tags": ["a", "b"]}),
        ({"a": {"type": "string"}, "b": {"type": "number"}}, '{"a": "x", "b": 1.5}', {"a": "x", "b": 1.5}),
        ({}, "yes", {}),
    ],
)
def test_words_become_what_the_schema_asks_for(schema: dict, said: str, content: dict) -> None:
    reading = read_answer(form(schema), said)
    assert (reading.action, reading.value) == ("accept", content)


def test_what_an_answer_leaves_out_is_what_the_schema_says_also_where_it_is_required() -> None:
    fields = {"city": {"type": "string"}, "nights": {"type": "integer", "default": 2}, "food": {"type": "string"}}
    asked = form(fields, required=["city", "nights"])
    assert read_answer(asked, '{"city": "Rome"}').value == {"city": "Rome", "nights": 2}
    assert read_answer(asked, '{"city": "Rome", "nights": 3}').value == {"city": "Rome", "nights": 3}


def test_a_default_that_breaks_the_schema_is_no_answer() -> None:
    fields = {"city": {"type": "string"}, "nights": {"type": "integer", "default": "two"}}
    with pytest.raises(UsageError, match="nights: 'two' is not of type 'integer'"):
        read_answer(form(fields), '{"city": "Rome"}')


@pytest.mark.parametrize(
    ("schema", "said", "words"),
    [
        ({"n": {"type": "integer"}}, "four", "n: 'four' is not of type 'integer'"),
        ({"c": {"type": "string", "enum": ["red", "blue"]}}, "green", "c: 'green' is not one of"),
        ({"a": {}, "b": {}}, "both", "it is not a JSON object; give a JSON object with a"),
        ({}, "perhaps", "answer yes or no"),
    ],
)
def test_what_does_not_fit_is_told_with_what_is_asked_for(schema: dict, said: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_answer(form(schema), said)


def test_an_old_question_is_answered_differently_in_a_branch(bench: Bench) -> None:
    asking = turn(tool("askUser", {"question": "Tea or coffee?"}), usage=(7, 0))
    script, seen = [tool("todo", {"newTodos": ["ask"]}), asking, text("Served.")], Seen()
    waiting = wait_for(bench.host(script, expert("a", ask=True)).run("a", "q", job_id="job", on_event=seen))
    (place,) = [event.checkpoint_id for event in seen.of("stopRunByInteractiveTool")]
    wait_for(bench.host(script, expert("a", ask=True)).answer("Tea", job_id="job"))
    provider, branch = ScriptedProvider(lambda request: "Coffee it is."), Seen()
    host = bench.host(provider, expert("a", ask=True))
    job = wait_for(host.answer("Coffee", resume_from=place, by=By(user="ann", door="cli"), on_event=branch))
    assert (job.status, job.text, job.coordinator_run_id) == ("completed", "Coffee it is.", "job-2")
    assert (waiting.total_steps, job.total_steps, [run.steps for run in job.runs]) == (2, 4, [3, 1])
    (request,) = provider.requests
    assert [message.type for message in request.messages] == [
        "userMessage",
        "expertMessage",
        "toolMessage",
        "expertMessage",
        "toolMessage",
    ]
    assert request.messages[-1].contents[0].contents[0].text == "Coffee"
    assert [event.by.user for event in branch.of("finishToolCall")] == ["ann"]
    spent = (branch.of("finishRun")[0].total_usage.input_tokens, job.usage.input_tokens)
    assert spent == (0, 7), "what was spent is spent once"
    assert wait_for(host.audit.replay("job")).ok
    assert wait_for(host.audit.verify("job")).ok
    assert wait_for(host.exports.export("perstack", "job"))
    again = wait_for(bench.host(provider, expert("a", ask=True)).continue_job("a", "And now?", job_id="job"))
    assert again.status == "completed"
    old = wait_for(host.jobs.checkpoint(place))
    assert (old.status, [call.tool_name for call in old.open_calls]) == ("stoppedByInteractiveTool", ["askUser"])


def test_a_branch_asks_what_else_was_asked_and_calls_the_tool_at_work_again(bench: Bench) -> None:
    script = [turn(tool("book", {"who": "ann"}), tool("askUser", {"question": "Sure?"})), text("ok")]
    travel, seen = Travel(), Seen()
    traveller_who_asks = expert("a", ask=True)
    skills = (*traveller_who_asks.skills, McpStdioSkill(name="travel", command="x"))
    a = traveller_who_asks.model_copy(update={"skills": skills})
    wait_for(bench.host(script, a, plugins=(travel,)).run("a", "q", job_id="job", on_event=seen))
    place = seen.of("stopRunByInteractiveTool")[0].checkpoint_id
    for said in ("Rome", "yes"):
        job = wait_for(bench.host(script, a, plugins=(travel,)).answer(said, job_id="job"))
    assert job.status == "completed"
    branch = Seen()
    job = wait_for(bench.host(script, a, plugins=(travel,)).answer("Oslo", resume_from=place, on_event=branch))
    assert job.question == "Sure?"
    job = wait_for(bench.host(script, a, plugins=(travel,)).answer("no", job_id="job", on_event=branch))
    assert (job.status, results(branch)) == ("completed", ["accept Oslo", "no"])
    assert len(set(travel.keys)) == 2, "another Run's call has a key of its own"
    assert wait_for(bench.host(script).audit.replay("job")).ok


def test_where_nothing_was_asked_there_is_nothing_to_answer_anew(bench: Bench) -> None:
    script = [tool("todo", {"newTodos": ["t"]}), tool("askUser", {"question": "?", "options": ["yes", "no"]})]
    seen = Seen()
    wait_for(bench.host(script, expert("a", ask=True)).run("a", "q", job_id="job", on_event=seen))
    host = bench.host(script, expert("a", ask=True))
    step, place = seen.of("finishStep")[0].checkpoint_id, seen.of("stopRunByInteractiveTool")[0].checkpoint_id
    with pytest.raises(UsageError, match=f"nothing was asked at {step}; its log shows where") as refused:
        wait_for(host.answer("x", resume_from=step))
    assert refused.value.next_steps == (Inspect("questions", "job"),)
    with pytest.raises(UsageError, match="answer yes or no"):
        wait_for(host.answer("maybe", resume_from=place))
    assert len(wait_for(host.job("job")).runs) == 1, "a refused answer begins no branch"


def test_what_a_delegate_asked_is_not_answered_anew(bench: Bench) -> None:
    script = {"[[boss]]": [tool("a", {"query": "x"}), text("done")], "[[a]]": [tool("book"), text("booked")]}
    experts, seen = (expert("boss", delegates=("a",)), traveller("a")), Seen()
    host = bench.host(script, *experts, plugins=(Travel(),))
    wait_for(host.run("boss", "q", job_id="job", on_event=seen))
    places = {event.run_id: event.checkpoint_id for event in seen.of("stopRunByInteractiveTool")}
    with pytest.raises(UsageError, match="delegates were running at"):
        wait_for(host.answer("Rome", resume_from=places["job-1"]))
    with pytest.raises(UsageError, match="delegate's checkpoint"):
        wait_for(host.answer("Rome", resume_from=places["job-2"]))
