"""Results parsed by a pydantic model of the caller, including its validators."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

import pytest
from hosts import Bench, Seen, expert, wait_for
from pydantic import BaseModel, RootModel, field_validator

from perstack import Finished, Question
from perstack.errors import UsageError
from perstack.testing.scripted import ScriptedProvider, text, tool


class City(BaseModel):
    """A city."""

    name: str
    people: int
    founded: date | None = None

    @field_validator("people")
    @classmethod
    def _at_least_one(cls, people: int) -> int:
        if people < 1:
            raise ValueError("nobody lives there")
        return people


ULM = '{"name": "Ulm", "people": 128000, "founded": "0854-07-22"}'
NOBODY = '{"name": "Ulm", "people": 0}'


def test_the_result_is_an_object_of_the_model_and_the_log_holds_its_schema(bench: Bench) -> None:
    seen = Seen()
    host = bench.host([text(ULM)], expert("a"))
    job = wait_for(host.run("a", "q", output=City, on_event=seen))
    assert job.output == City(name="Ulm", people=128000, founded=date(854, 7, 22))
    assert job.result is not None
    assert job.result["founded"] == "0854-07-22"
    assert seen.of("startRun")[0].output == City.model_json_schema()
    assert wait_for(host.job(job.id)).output is None, "another caller has no model"
    assert wait_for(host.audit.replay(job.id)).ok
    assert wait_for(host.audit.verify(job.id)).ok


def test_what_a_validator_refuses_is_shown_to_the_model_which_may_correct_it(bench: Bench) -> None:
    provider, seen = ScriptedProvider([text(NOBODY), text(ULM)]), Seen()
    host = bench.host(provider, expert("a"))
    job = wait_for(host.run("a", "q", output=City, on_event=seen))
    assert job.output is not None
    assert (job.output.people, job.total_steps) == (128000, 2)
    (rejected,) = seen.of("rejectResult")
    assert rejected.problem == "it does not fit: `people`: nobody lives there"
    assert rejected.by_program
    assert "nobody lives there" in provider.requests[1].messages[-1].contents[0].text
    assert wait_for(host.audit.replay(job.id)).ok, "a replay does not have the validator"


def test_a_second_result_that_a_validator_refuses_fails_the_job(bench: Bench) -> None:
    host = bench.host([text(NOBODY), text(NOBODY)], expert("a"))
    job = wait_for(host.run("a", "q", output=City))
    assert (job.status, job.output) == ("stoppedByError", None)
    assert job.error is not None
    assert "nobody lives there" in job.error


def test_a_resume_elsewhere_holds_the_result_to_the_schema_alone(bench: Bench) -> None:
    first = bench.host([tool("nothing"), text(ULM)], expert("a"), max_steps=1)
    job = wait_for(first.run("a", "q", output=City))
    assert job.status == "stoppedByMaxSteps"
    script = [text('{"name": "Ulm"}'), text(NOBODY)]
    other = bench.host(script, expert("a"))
    resumed = wait_for(other.resume(job.id, max_steps=9))
    assert (resumed.status, resumed.result) == ("completed", {"name": "Ulm", "people": 0})


class Town(BaseModel):
    """Another class than City: its schema differs."""

    name: str


def test_a_resume_with_the_model_counts_its_validators_and_returns_the_object(bench: Bench) -> None:
    first = bench.host([tool("nothing"), text(ULM)], expert("a"), max_steps=1)
    job = wait_for(first.run("a", "q", output=City))
    other = bench.host([tool("nothing"), text(NOBODY), text(ULM)], expert("a"))
    seen = Seen()
    resumed = wait_for(other.resume(job.id, max_steps=9, output=City, on_event=seen))
    assert resumed.output == City.model_validate_json(ULM)
    (rejected,) = seen.of("rejectResult")
    assert rejected.problem == "it does not fit: `people`: nobody lives there"
    assert wait_for(other.audit.verify(job.id)).ok


def test_an_answer_with_the_model_returns_the_object(bench: Bench) -> None:
    first = bench.host([tool("askUser", {"question": "Which?"})], expert("a", ask=True))
    job = wait_for(first.run("a", "q", output=City))
    assert (job.status, job.output) == ("stoppedByInteractiveTool", None)
    other = bench.host([tool("askUser", {"question": "Which?"}), text(NOBODY), text(ULM)], expert("a", ask=True))
    answered = wait_for(other.answer("Ulm", job_id=job.id, output=City))
    assert (answered.output, answered.total_steps) == (City.model_validate_json(ULM), 3)


def test_a_continued_job_takes_the_schema_of_the_model_for_its_new_run(bench: Bench) -> None:
    seen = Seen()
    host = bench.host([text("Ulm is old."), text(ULM), text('{"name": "Ulm"}')], expert("a"))
    job = wait_for(host.run("a", "q"))
    second = wait_for(host.continue_job("a", "As data.", job_id=job.id, output=City, on_event=seen))
    assert second.output == City.model_validate_json(ULM)
    assert seen.of("startRun")[0].output == City.model_json_schema()
    third = wait_for(host.continue_job("a", "Only the name.", job_id=job.id, output=Town))
    assert third.output == Town(name="Ulm")


def test_an_answer_in_a_branch_takes_the_schema_of_the_model(bench: Bench) -> None:
    asks = expert("a", ask=True)
    host = bench.host([tool("askUser", {"question": "Which?"}), text(ULM)], asks)
    job = wait_for(host.run("a", "q"))
    place = wait_for(host.jobs.checkpoints(job.id)).ids[-1]
    wait_for(host.answer("Bonn", job_id=job.id))
    branch = wait_for(host.answer("Ulm", resume_from=place, output=City))
    assert branch.output == City.model_validate_json(ULM)


@pytest.mark.parametrize(
    ("begun_with", "given", "words"),
    [
        (
            City,
            Town,
            "was begun with another JSON schema, not with that of Town: leave the model out, or pass the model that",
        ),
        (None, City, "was begun without a schema, not with that of City: leave the model out$"),
    ],
)
def test_a_model_whose_schema_is_not_the_recorded_one_is_refused_and_nothing_is_written(
    bench: Bench, begun_with: type[BaseModel] | None, given: type[BaseModel], words: str
) -> None:
    script = [tool("askUser", {"question": "Which?"}), tool("nothing"), text(ULM)]
    host = bench.host(script, expert("a", ask=True), max_steps=2)
    job = wait_for(host.run("a", "q", output=begun_with))

    def size() -> int:
        return len(wait_for(host.events(job.coordinator_run_id)))

    before = size()
    with pytest.raises(UsageError, match=words) as error:
        wait_for(host.answer("Ulm", job_id=job.id, output=given))
    assert "\n" not in str(error.value)
    assert size() == before
    assert wait_for(host.answer("Ulm", job_id=job.id, output=begun_with)).status == "stoppedByMaxSteps"
    with pytest.raises(UsageError, match=words):
        wait_for(host.resume(job.id, max_steps=9, output=given))
    resumed = wait_for(host.resume(job.id, max_steps=9, output=begun_with))
    assert resumed.output == (None if begun_with is None else City.model_validate_json(ULM))


def test_a_model_is_not_given_with_the_answer_to_a_stream_which_goes_on_after_it(bench: Bench) -> None:
    host = bench.host([tool("askUser", {"question": "Which?"}), text(ULM)], expert("a", ask=True))

    async def work() -> object:
        async for event in host.stream("a", "q", output=City):
            if isinstance(event, Question):
                with pytest.raises(UsageError, match="pass `output` to `stream`: its `Finished` has the result"):
                    await host.answer("Ulm", question=event, output=City)
                await host.answer("Ulm", question=event)
            if isinstance(event, Finished):
                return event.summary.output
        return None

    assert wait_for(work()) == City.model_validate_json(ULM)


def test_a_validator_with_a_mistake_is_an_error_with_its_name(bench: Bench) -> None:
    class Broken(BaseModel):
        name: str

        @field_validator("name")
        @classmethod
        def _check(cls, name: str) -> str:
            raise KeyError(name)

    job = wait_for(bench.host([text('{"name": "Ulm"}')] * 2, expert("a")).run("a", "q", output=Broken))
    assert job.error is not None
    assert "KeyError: 'Ulm'" in job.error


def test_a_delegate_is_not_held_to_the_model(bench: Bench) -> None:
    turns = {"[[a]]": [tool("b", {"query": "go"}), text(ULM)], "[[b]]": [text("two")]}
    job = wait_for(bench.host(turns, expert("a", delegates=("b",)), expert("b")).run("a", "q", output=City))
    assert job.output is not None
    assert job.output.name == "Ulm"


def test_the_last_event_of_a_stream_has_the_object_also_after_an_answer(bench: Bench) -> None:
    host = bench.host([tool("askUser", {"question": "Which?"}), text(NOBODY), text(ULM)], expert("a", ask=True))

    async def work() -> object:
        async for event in host.stream("a", "q", output=City):
            if isinstance(event, Question):
                await host.answer("Ulm", question=event)
            if isinstance(event, Finished):
                return event.summary.output
        return None

    assert wait_for(work()) == City.model_validate_json(ULM)


class _Function(BaseModel):
    call: Callable[[], int]


class _Cities(RootModel[list[City]]):
    pass


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (_Function, "output: _Function has no JSON schema: .*; use types that pydantic reads from JSON"),
        (_Cities, "output: _Cities is not an object but array: make it a field of a model"),
        (dict, "output must be a class that inherits from pydantic's BaseModel, not <class 'dict'>"),
        (City(name="Ulm", people=1), "output must be a class that inherits from pydantic's BaseModel, not City"),
    ],
)
def test_a_model_that_cannot_be_a_schema_is_one_clear_error_before_anything_is_written(
    bench: Bench, model: object, words: str
) -> None:
    host = bench.host([text("never")], expert("a"))
    with pytest.raises(UsageError, match=words) as error:
        wait_for(host.run("a", "q", output=model))
    assert "\n" not in str(error.value)
    assert not wait_for(host.jobs.list()).jobs
