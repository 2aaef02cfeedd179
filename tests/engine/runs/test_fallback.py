"""Fallback models: when and in which order they are used, what is recorded, and crashes in between."""

from __future__ import annotations

import pytest
from hosts import OPENED, Bench, Seen, crashing, expert, open_storage, project_of, until_it_crashes, wait_for

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.models import Price
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import Budget, Overrides
from perstack.core.runs.events.generations import SwitchModel
from perstack.doors.cli.jobs import costs_by
from perstack.doors.shared.activity import JobActivity
from perstack.errors import MissingCredential, UsageError
from perstack.host import Host
from perstack.testing.crashing_storage import CrashPoint, crash_points
from perstack.testing.scripted import ScriptedProvider, ScriptLike, fail, text, tool, turn

FIVE_MINUTES = 300_000
LIST = ("first/a", "second/b")


def model(name: str, script: ScriptLike) -> ScriptedProvider:
    """Return a provider of that name on a script."""
    provider = ScriptedProvider(script)
    provider.name = name
    return provider


class Keyless(ScriptedProvider):
    """A provider whose key is missing."""

    def create(self, config: object) -> ScriptedProvider:
        raise MissingCredential("set THIRD_API_KEY")


def host(bench: Bench, *providers: ScriptedProvider, experts: tuple[Expert, ...] = (), **fields: object) -> Host:
    """Return a Host on these providers; by default with the Expert `a`, whose models are `LIST`."""
    wrap, overrides = fields.pop("wrap", None), fields.pop("overrides", Overrides(max_retries=1))
    project: Project = project_of(*(experts or (expert("a", model=LIST),))).model_copy(update=fields)
    fallback_host = Host(
        project,
        workspace=bench.workspace,
        storage=bench.storage if wrap is None else wrap(open_storage(bench.storage, bench.workspace)),
        env={"PATH": "/usr/bin:/bin"},
        overrides=overrides,
        plugins=list(providers),
        clock=bench.clock,
    )
    OPENED.append(fallback_host)
    return fallback_host


def switches(seen: Seen) -> list[tuple[str, str, str]]:
    return [(event.before, event.to, event.reason) for event in seen.of("switchModel")]


@pytest.mark.parametrize(
    ("failing", "tries", "reason"),
    [
        (fail(429, "slow down", name="RateLimit", retry_after=0, repeat=True), 2, "rateLimit"),
        (fail(429, "come back tomorrow", name="RateLimit", retry_after=86_400, repeat=True), 1, "rateLimit"),
        (fail(529, "busy", name="Overloaded", retry_after=0, repeat=True), 2, "overloaded"),
        (fail(500, "oops", name="ServerError", retry_after=0, repeat=True), 2, "serverError"),
        (
            fail(None, "no connection", name="ConnectError", retryable=True, retry_after=0, repeat=True),
            2,
            "unreachable",
        ),
        (fail(None, "silent", name="Stall", retryable=True, retry_after=0, repeat=True), 2, "timeout"),
        (fail(429, "no money", name="QuotaExceeded", retryable=False, repeat=True), 1, "quota"),
        (turn(text="I will not.", finish_reason="refusal", usage=(5, 2), repeat=True), 1, "refusal"),
    ],
)
def test_the_next_model_stands_in_where_the_first_cannot_and_its_tries_are_used_up(
    bench: Bench, failing: object, tries: int, reason: str
) -> None:
    first, second, seen = model("first", [failing]), model("second", [text("from b", usage=(3, 1))]), Seen()
    used = host(bench, first, second)
    job = wait_for(used.run("a", "q", on_event=seen))
    assert (job.status, job.text, job.total_steps) == ("completed", "from b", 1)
    assert switches(seen) == [("first/a", "second/b", reason)]
    assert len(first.requests) == tries
    assert [request.model for request in second.requests] == ["b"]
    assert wait_for(used.audit.replay(job.id)).ok
    assert wait_for(used.audit.verify(job.id)).ok


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_what_is_wrong_with_the_request_or_the_key_is_an_error_and_no_other_model_is_asked(
    bench: Bench, status: int
) -> None:
    second = model("second", [text("never")])
    job = wait_for(host(bench, model("first", [fail(status, "their words")]), second).run("a", "q"))
    assert (job.status, job.error) == ("stoppedByError", "their words")
    assert not second.requests


def test_the_models_are_asked_in_their_order_and_the_last_error_is_the_runs(bench: Bench) -> None:
    failing = [fail(503, "down", name="ServerError", retry_after=0, repeat=True)]
    experts = (expert("a", model=("first/a", "second/b", "first/c")),)
    seen = Seen()
    used = host(bench, model("first", failing), model("second", failing), experts=experts)
    job = wait_for(used.run("a", "q", on_event=seen))
    assert job.status == "stoppedByError"
    assert switches(seen) == [("first/a", "second/b", "serverError"), ("second/b", "first/c", "serverError")]
    seen = Seen()
    used = host(bench, model("first", [text("better")]), model("second", []), experts=experts)
    job = wait_for(used.resume(job.id, on_event=seen))
    assert job.text == "better"
    assert switches(seen) == [("first/c", "first/a", "triedAgain")], "whoever resumes has put something right"
    assert wait_for(used.audit.replay(job.id)).ok


def test_after_five_minutes_the_first_model_is_tried_again_and_that_is_recorded(bench: Bench) -> None:
    def second(request: object) -> object:
        bench.clock.move(FIVE_MINUTES // 2)
        return tool("todo", {"newTodos": ["x"]})

    broken = [fail(529, name="Overloaded", retry_after=0, repeat=2)]
    first = model("first", [*broken, tool("todo", {}), tool("todo", {}), text("from a")])
    seen = Seen()
    used = host(bench, first, model("second", second))
    job = wait_for(used.run("a", "q", on_event=seen))
    assert (job.status, job.text) == ("completed", "from a")
    assert switches(seen) == [("first/a", "second/b", "overloaded"), ("second/b", "first/a", "triedAgain")]
    away, back = seen.of("switchModel")
    assert back.timestamp - away.timestamp >= FIVE_MINUTES
    assert [event.step_number for event in seen.of("finishGeneration")] == [1, 2, 3]
    assert wait_for(used.audit.replay(job.id)).ok


@pytest.mark.parametrize("point", crash_points(8), ids=str)
def test_a_kill_at_any_write_goes_on_with_the_model_that_the_log_names(bench: Bench, point: CrashPoint) -> None:
    def overloaded_model() -> ScriptedProvider:
        return model("first", [fail(529, name="Overloaded", retry_after=0, repeat=True)])

    shown, seen = Seen(), Seen()
    dying = host(bench, overloaded_model(), model("second", [text("b")]), wrap=crashing(point))

    async def die() -> None:
        async with dying:
            await dying.run("a", "q", job_id="j", on_event=shown)

    with until_it_crashes():
        wait_for(die())
    if point == CrashPoint("before", 1):
        return  # nothing was begun
    asked = overloaded_model()
    used = host(bench, asked, model("second", [text("b")]))
    job = wait_for(used.job("j"))
    if job.status != "completed":
        job = wait_for(used.resume("j", on_event=seen))
    assert (job.status, job.text, job.total_steps) == ("completed", "b", 1)
    if shown.of("switchModel"):
        assert not asked.requests, "what was switched stays so"
    events = [line.event for line in wait_for(used.events(job.coordinator_run_id))]
    switched = [event for event in events if isinstance(event, SwitchModel)]
    assert [(event.before, event.to) for event in switched] == [LIST]
    assert wait_for(used.audit.replay("j")).ok
    assert wait_for(used.audit.verify("j")).ok


def test_a_model_that_has_no_key_is_said_at_the_start_and_passed_over(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    experts = (expert("a", model=("first/a", "third/x", "second/b")),)
    first = model("first", [fail(529, "busy", name="Overloaded", retry_after=0, repeat=True)])
    seen = Seen()
    used = host(bench, first, model("second", [text("b")]), keyless("third"), experts=experts)
    job = wait_for(used.run("a", "q", on_event=seen))
    assert job.text == "b"
    assert capsys.readouterr().err.count("third/x cannot replace a: set THIRD_API_KEY") == 1
    assert switches(seen) == [("first/a", "third/x", "overloaded"), ("third/x", "second/b", "notConfigured")]
    assert wait_for(used.audit.replay(job.id)).ok


def test_a_first_model_without_a_key_is_an_error_before_anything_is_written(bench: Bench) -> None:
    used = host(bench, keyless("third"), model("first", []), experts=(expert("a", model=("third/x", "first/a")),))
    with pytest.raises(MissingCredential, match="THIRD_API_KEY"):
        wait_for(used.run("a", "q"))
    assert not wait_for(used.jobs.list()).jobs


@pytest.mark.parametrize("asked", [LIST, "models.both"])
def test_a_run_is_resumed_with_the_same_models_asked_for(bench: Bench, asked: str | tuple[str, ...]) -> None:
    def used(*script: object) -> Host:
        both = (model("first", list(script)), model("second", [fail(401, "no")]))
        overrides = Overrides(model=asked, max_retries=0)
        return host(bench, *both, experts=(expert("a"),), overrides=overrides, models={"both": LIST})

    job = wait_for(used(tool("todo", {"newTodos": ["x"]}), fail(401, "wrong key")).run("a", "q"))
    assert job.status == "stoppedByError"
    other = host(bench, model("first", []), model("second", []), overrides=Overrides(model=("second/b", "first/a")))
    with pytest.raises(UsageError, match="resumed with the model that it was started with, a"):
        wait_for(other.resume(job.id))
    assert wait_for(used(tool("todo", {"newTodos": ["x"]}), text("done")).resume(job.id)).text == "done"


def test_each_delegate_has_models_of_its_own(bench: Bench) -> None:
    boss, worker = expert("boss", model=("first/a",), delegates=("worker",)), expert("worker", model=LIST)
    first = model(
        "first",
        {
            "[[boss]]": [tool("worker", {"query": "x"}), text("done")],
            "[[worker]]": [fail(529, name="Overloaded", retry_after=0, repeat=True)],
        },
    )
    seen = Seen()
    job = wait_for(
        host(bench, first, model("second", [text("b")]), experts=(boss, worker)).run("boss", "q", on_event=seen)
    )
    assert job.text == "done"
    assert [event.run_id.rpartition("-")[2] for event in seen.of("switchModel")] == ["2"]
    assert {**job.usage_by_model}.keys() == {"first/a", "second/b"}


def test_usage_and_prices_are_those_of_the_model_that_was_called(bench: Bench) -> None:
    prices = (Price(name="first/a", input=1, output=1), Price(name="second/b", input=100, output=100))
    script = [tool("todo", {"newTodos": ["x"]}), fail(529, name="Overloaded", retry_after=0, repeat=True)]
    script[0] = turn(script[0], usage=(100, 0))
    used = host(
        bench,
        model("first", script),
        model("second", [text("?"), text("b", usage=(10, 0))]),
        prices=prices,
        budget=Budget(max_cost=10.0),
    )
    job = wait_for(used.run("a", "q"))
    assert job.status == "completed"
    assert {name: usage.total_tokens for name, usage in job.usage_by_model.items()} == {"first/a": 100, "second/b": 10}
    assert job.usage.cost_usd == pytest.approx(100 / 1e6 + 10 * 100 / 1e6)
    (run,) = job.runs
    assert run.model == "first/a"
    assert {name: share.usage.cost_usd for name, share in run.by_model.items()} == {
        "first/a": pytest.approx(0.0001),
        "second/b": pytest.approx(0.001),
    }


def test_what_a_stand_in_costs_is_reserved_and_its_price_must_be_known_before_anything_is_sent(bench: Bench) -> None:
    first = model("first", [fail(529, name="Overloaded", retry_after=0, repeat=True)])
    cheap = Price(name="first/a", input=0, output=0)
    used = host(bench, first, model("second", []), prices=(cheap,), budget=Budget(max_cost=0.01))
    with pytest.raises(Exception, match="the price of second/b is not known"):
        wait_for(used.run("a", "q"))
    assert not first.requests
    dear, seen = Price(name="second/b", input=1_000_000, output=1_000_000), Seen()
    second = model("second", [text("never")])
    used = host(bench, first, second, prices=(cheap, dear), budget=Budget(max_cost=0.01))
    job = wait_for(used.run("a", "q", on_event=seen))
    assert job.status == "stoppedByBudget"
    assert not second.requests
    assert switches(seen) == [("first/a", "second/b", "overloaded")]


def test_one_time_for_all_tries_leaves_each_model_its_share(bench: Bench) -> None:
    never = [turn(text="never", delay_ms=60_000, repeat=True)]
    seen = Seen()
    experts = (expert("a", model=LIST, retry_timeout=400),)
    used = host(bench, model("first", never), model("second", [text("b")]), experts=experts)
    job = wait_for(used.run("a", "q", on_event=seen))
    assert job.text == "b"
    assert switches(seen) == [("first/a", "second/b", "timeout")]
    assert "200 ms" in seen.of("switchModel")[0].error.message
    seen = Seen()
    used = host(bench, model("first", never), model("second", never), experts=experts)
    job = wait_for(used.run("a", "q", on_event=seen), 5)
    assert job.status == "stoppedByError"
    assert "`retryTimeout`" in (job.error or "")


def test_a_single_model_records_what_it_always_did(bench: Bench) -> None:
    seen = Seen()
    wait_for(
        host(bench, model("first", [text("x")]), experts=(expert("a", model=("first/a",)),)).run(
            "a", "q", on_event=seen
        )
    )
    assert seen.types() == ["startRun", "startGeneration", "finishGeneration", "finishStep", "finishRun"]
    assert b"fallbacks" not in seen.lines[1]


def test_names_of_models_are_resolved_and_a_wrong_one_is_refused_with_those_there_are(bench: Bench) -> None:
    named = {"fast": "first/a", "deep": ("first/c", "second/b")}
    experts = (expert("a", model=("models.deep", "models.fast")), expert("b", model="models.slow"))
    first, seen = model("first", [text("x")]), Seen()
    used = host(bench, first, model("second", []), experts=experts, models=named)
    wait_for(used.run("a", "q", on_event=seen))
    start = seen.of("startRun")[0]
    assert (start.provider, start.model, start.fallbacks) == ("first", "c", ("second/b", "first/a"))
    assert start.expert.model == ("models.deep", "models.fast"), "as it is written"
    with pytest.raises(
        UsageError, match=r"there is no `models.slow` in \[models\]; available: models.deep, models.fast"
    ):
        wait_for(used.run("b", "q"))


@pytest.mark.parametrize(
    ("asked", "started"),
    [
        (Overrides(), ("first", "a", ("second/b",))),
        (Overrides(model="z", provider="second"), ("second", "z", ())),
        (Overrides(provider="second"), ("second", "b", ())),
        (Overrides(model="models.other"), ("second", "y", ("first/a",))),
        (Overrides(model=("second/q", "first/r")), ("second", "q", ("first/r",))),
    ],
)
def test_what_a_caller_asks_for_comes_before_the_list(
    bench: Bench, asked: Overrides, started: tuple[str, str, tuple[str, ...]]
) -> None:
    both, seen = (model("first", [text("x")]), model("second", [text("x")])), Seen()
    used = host(bench, *both, overrides=asked, models={"other": ("second/y", "first/a")})
    wait_for(used.run("a", "q", on_event=seen))
    start = seen.of("startRun")[0]
    assert (start.provider, start.model, start.fallbacks) == started


def test_people_are_shown_a_switch_with_its_reason_and_what_was_streamed_is_void(bench: Bench) -> None:
    broken = turn(text="half a th").model_copy(update={"error": fail(529, "busy", name="Overloaded").error})
    seen = Seen()
    used = host(bench, model("first", [broken]), model("second", [text("b")]), overrides=Overrides(max_retries=0))
    wait_for(used.run("a", "q", on_event=seen))
    live, shown = JobActivity(), []
    for event in seen.events:
        shown += [update.row for update in live.apply(event)]
        if event.type == "streamText" and event.delta.startswith("half"):
            assert next(iter(live.lanes.values())).text
        if event.type == "switchModel":
            assert not next(iter(live.lanes.values())).text
    assert ("switches", "from first/a to second/b: overloaded (busy)") in [(row.word, row.text) for row in shown]


def keyless(name: str) -> Keyless:
    found = Keyless([])
    found.name = name
    return found


def test_where_nothing_can_stand_in_the_error_is_that_of_the_model_that_failed_and_says_why(bench: Bench) -> None:
    first = model("first", [fail(529, "busy", name="Overloaded", retry_after=0, repeat=True)])
    experts = (expert("a", model=("first/a", "third/x")),)
    used = host(bench, first, keyless("third"), experts=experts)
    job = wait_for(used.run("a", "q"))
    assert (job.status, job.error) == (
        "stoppedByError",
        "busy; the fallback third/x is not available: set THIRD_API_KEY",
    )
    assert wait_for(used.audit.replay(job.id)).ok


def test_a_run_whose_stand_in_has_no_key_any_more_goes_back_to_the_first_in_the_middle_of_a_step(bench: Bench) -> None:
    experts = (expert("a", model=LIST, ask=True),)
    busy = fail(529, "busy", name="Overloaded", retry_after=0, repeat=2)
    second = model("second", [tool("askUser", {"question": "?"})])
    job = wait_for(host(bench, model("first", [busy]), second, experts=experts).run("a", "q"))
    assert job.status == "stoppedByInteractiveTool"
    bench.clock.move(FIVE_MINUTES)
    seen = Seen()
    answering = model("first", [tool("askUser", {}), text("from a")])
    used = host(bench, answering, keyless("second"), experts=experts)
    job = wait_for(used.answer("yes", job_id=job.id, on_event=seen))
    assert (job.status, job.text) == ("completed", "from a")
    assert switches(seen) == [("second/b", "first/a", "triedAgain")]
    assert wait_for(used.audit.replay(job.id)).ok


def test_a_run_that_is_resumed_under_a_definition_of_today_begins_with_the_first_model_of_that(bench: Bench) -> None:
    busy = fail(529, "busy", name="Overloaded", retry_after=0, repeat=2)
    wrong = model("second", [fail(404, "no such model", repeat=True)])
    job = wait_for(host(bench, model("first", [busy]), wrong).run("a", "q"))
    assert (job.status, job.total_steps) == ("stoppedByError", 1)
    first, second = model("first", [text("put right")]), model("second", [text("of the stand-in")])
    used = host(bench, first, second, experts=(expert("a", model=("first/new", "second/new")),))
    seen = Seen()
    job = wait_for(used.resume(job.id, on_event=seen))
    assert (job.text, [request.model for request in first.requests]) == ("put right", ["new"])
    assert switches(seen) == [], "it is on the first model, and need not go back to it"
    assert wait_for(used.audit.replay(job.id)).ok


def test_what_was_spent_by_model_is_told_apart_within_a_run(bench: Bench) -> None:
    busy = fail(529, name="Overloaded", retry_after=0, repeat=2)
    script = [turn(tool("todo", {"newTodos": ["x"]}), usage=(100, 0)), busy]
    used = host(bench, model("first", script), model("second", [text("?"), text("b", usage=(10, 0))]))
    job = wait_for(used.run("a", "q"))
    rows, total = costs_by([job], "model", since=0, day_of=str)
    assert {row.key: row.usage.total_tokens for row in rows} == {"first/a": 100, "second/b": 10}
    assert (total.usage.total_tokens, total.runs) == (110, 1)
