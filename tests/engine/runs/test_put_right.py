"""Runs that failed before their model replied, resumed after the cause was fixed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hosts import Bench, Seen, expert, wait_for
from terminal import Terminal, reply

from perstack.core.definitions.skills import PluginSkill
from perstack.core.runs.evolve import difference
from perstack.errors import UsageError
from perstack.testing.scripted import ScriptedProvider, fail, text, tool

WRONG_MODEL = [fail(404, "no such model", repeat=True)]


def failed(bench: Bench, one=None, script=None, **overrides) -> str:
    """Run a Job that fails at its first generation, and return its id."""
    job = wait_for(bench.host(script or WRONG_MODEL, one or expert("a", model="wrong"), **overrides).run("a", "q"))
    assert job.status == "stoppedByError"
    return job.id


def test_the_definition_is_read_again_and_the_log_says_so(bench: Bench) -> None:
    job_id = failed(bench)
    provider, seen = ScriptedProvider([text("here")]), Seen()
    right = expert("a", model="right", instruction="[[a]] works better.", timeout=5_000)
    job = wait_for(bench.host(provider, right).resume(job_id, on_event=seen))
    assert (job.status, job.text, job.total_steps) == ("completed", "here", 1)
    (request,) = provider.requests
    assert request.model == "right"
    assert "works better" in request.instruction
    (resumed,) = seen.of("resumeRun")
    assert (resumed.definition.model, resumed.definition.expert.key, resumed.limits.timeout) == ("right", "a", 5_000)
    host = bench.host([])
    loaded = wait_for(host.jobs.load(job_id))
    assert loaded.runs[job.coordinator_run_id].start.model == "right"
    assert wait_for(host.audit.verify(job_id)).ok
    assert wait_for(host.audit.replay(job_id)).ok


def test_nothing_is_recorded_anew_if_nothing_has_changed(bench: Bench) -> None:
    one = expert("a", model="m")
    job_id, seen = failed(bench, one), Seen()
    assert wait_for(bench.host([text("ok")], one).resume(job_id, on_event=seen)).status == "completed"
    (resumed,) = seen.of("resumeRun")
    assert (resumed.definition, resumed.limits) == (None, None)


def test_it_may_fail_and_be_put_right_again_and_again(bench: Bench) -> None:
    job_id = failed(bench)
    for model in ("other", "another"):
        assert wait_for(bench.host(WRONG_MODEL, expert("a", model=model)).resume(job_id)).status == "stoppedByError"
    provider = ScriptedProvider([text("at last")])
    assert wait_for(bench.host(provider, expert("a", model="right")).resume(job_id)).text == "at last"
    assert provider.requests[0].model == "right"
    assert wait_for(bench.host([]).audit.replay(job_id)).ok


def test_a_skill_that_was_declared_wrongly_can_be_put_right(bench: Bench) -> None:
    wrong = expert("a").model_copy(update={"skills": (PluginSkill(name="mine", plugin="nowhere"),)})
    job_id = failed(bench, wrong, [text("never")])
    assert wait_for(bench.host([text("ok")], expert("a")).resume(job_id)).text == "ok"


def test_once_the_model_has_replied_the_run_keeps_its_definition(bench: Bench) -> None:
    script = [tool("think", {"thought": "x"}), fail(401, "bad key")]
    job_id, seen = failed(bench, expert("a", model="first"), script), Seen()
    provider = ScriptedProvider([tool("think", {"thought": "x"}), text("ok")])
    assert wait_for(bench.host(provider, expert("a", model="second")).resume(job_id, on_event=seen)).text == "ok"
    assert provider.requests[0].model == "first"
    assert seen.of("resumeRun")[0].definition is None
    with pytest.raises(UsageError, match="with a new query"):
        wait_for(bench.host([], expert("a"), model="third").resume(job_id))


def test_what_the_caller_chose_holds_until_something_else_is_chosen(bench: Bench) -> None:
    one = expert("a", model="of the file")
    job_id = failed(bench, one, model="chosen", max_steps=7)
    provider, seen = ScriptedProvider([text("ok")]), Seen()
    job = wait_for(bench.host(provider, one, max_retries=0).resume(job_id, on_event=seen))
    assert (job.text, provider.requests[0].model, job.max_steps) == ("ok", "chosen", 7)
    assert seen.of("resumeRun")[0].definition is None
    job_id, provider = failed(bench, one, model="wrong"), ScriptedProvider([text("ok")])
    assert wait_for(bench.host(provider, one, model="right").resume(job_id)).text == "ok"
    assert provider.requests[0].model == "right"


def test_replay_finds_a_definition_that_was_changed_under_a_model_that_had_replied(bench: Bench) -> None:
    job_id, seen = failed(bench), Seen()
    wait_for(bench.host([text("ok")], expert("a", model="right")).resume(job_id, on_event=seen))
    (resumed,) = seen.of("resumeRun")
    (run,) = wait_for(bench.host([]).jobs.load(job_id)).runs.values()
    assert run.has_generated
    stopped = replace(run, status="stoppedByError")
    assert "the model has replied under the first" in str(difference(stopped, resumed))
    assert difference(stopped, resumed.model_copy(update={"definition": None})) is None


def test_from_the_command_line(terminal: Terminal) -> None:
    toml = 'model = "wrong"\n[experts.solo]\ninstruction = "You work."\n'
    terminal.project(toml, solo=[{"error": {"status": 404, "message": "no such model"}}])
    result = terminal.call("run", "solo", "q", "--provider", "scripted", "--job-id", "job")
    assert (result.code, "perstack resume job" in result.err) == (1, True)
    terminal.project(toml.replace("wrong", "right"), solo=[reply("ok")])
    resumed = terminal.call("resume", "job")
    assert resumed.code == 0, resumed.err
    (event,) = [event for event in resumed.events if event["type"] == "resumeRun"]
    assert (event["definition"]["model"], event["definition"]["provider"]) == ("right", "scripted")
    setting = json.loads((terminal.jobs() / "job" / "runs" / "job-1" / "run-setting.json").read_text())
    assert setting["model"] == "right"
