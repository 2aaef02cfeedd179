"""The log determines each request to a model: digests, the tools' blob, and a replay that rebuilds it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hosts import Bench, Seen, crashing, expert, wait_for
from many_tools import City, mayor
from request_form import digest_of_request, form

from perstack.audit.verification_report import Report
from perstack.core.base.records import JsonObject
from perstack.core.definitions.settings import ProviderSetting
from perstack.core.messages.tool_search import SEARCH_TOOL
from perstack.core.runs.request_digest import tools_blob
from perstack.errors import NotFound
from perstack.host import Host
from perstack.ports.provider import Provider, ProviderConfig
from perstack.testing.crashing_storage import Crash, CrashPoint
from perstack.testing.scripted import ScriptedProvider, fail, text, tool, turn

SEARCHING = [
    tool("todo", {"newTodos": ["x"]}),
    fail(503, "busy", retry_after=0),
    tool(SEARCH_TOOL, {"query": "deleteMuseum9"}),
    tool("deleteMuseum9"),
    turn(tool("helper", {"query": "one"}), tool("helper", {"query": "two"})),
    tool("todo", {"completedTodos": [0]}),
    tool("attemptCompletion", {}),
    text("All of it."),
]
HELPING = [tool("think", {"thought": "hm"}), text("helped")]


def searching(**fields: Any):
    return mayor(delegates=("helper",), **fields), expert("helper", description="helps")


def provider() -> ScriptedProvider:
    return ScriptedProvider({"a": SEARCHING, "helper": HELPING})


def generation_starts(seen: Seen) -> dict[tuple[str, int, bool], Any]:
    return {(event.run_id, event.step_number, event.final): event for event in seen.of("startGeneration")}


def checked(host: Host, job_id: str = "job") -> tuple[Report, Report]:
    return wait_for(host.audit.verify(job_id)), wait_for(host.audit.replay(job_id))


async def tools_of(host: Host, digest: str) -> list[Any]:
    return json.loads(await host.storage.blob("job", tools_blob(digest) or ""))


def test_the_digests_are_those_of_what_the_provider_was_handed(bench: Bench) -> None:
    model, seen = provider(), Seen()
    host = bench.host(model, *searching(), plugins=(City(),), max_retries=1, reasoning_budget="low")
    job = wait_for(host.run("a", "q", job_id="job", on_event=seen))
    assert (job.status, len(job.runs)) == ("completed", 3)
    again = ScriptedProvider({"a": [*SEARCHING, tool("deleteMuseum9"), text("more")], "helper": HELPING})
    host = bench.host(again, *searching(), plugins=(City(),))
    assert wait_for(host.continue_job("a", "go on", job_id="job", on_event=seen)).status == "completed"
    events, asked = generation_starts(seen), [*model.requests, *again.requests]
    assert len(asked) > len(events) >= 13, "a second try is the same request"
    for request in asked:
        event = events[request.run_id, request.step, not request.allow_tools]
        assert event.request_digest == digest_of_request(request)
        kept = wait_for(tools_of(host, event.tools_digest))
        assert kept == [
            {"name": one.name, "description": one.description, "inputSchema": one.input_schema} for one in request.tools
        ]
    found = {event.tools_digest for event in seen.of("startGeneration", run="-1")}
    assert len(found) == 2, "a search has added tools"
    assert any(event.final for event in events.values())
    verified, replayed = checked(host)
    assert (verified.findings, replayed.findings) == ((), ())
    assert (replayed.checked.requests, replayed.unchecked) == (len(seen.of("startGeneration")), ())


def test_tools_are_kept_once_and_before_the_event_that_names_them(bench: Bench) -> None:
    host = bench.host(provider(), *searching(), plugins=(City(),), max_retries=1)
    put: list[bytes] = []
    storage, named = host.storage, []
    keep = storage.put_blob

    async def counted_put(job_id: str, data: bytes) -> str:
        put.append(data)
        return await keep(job_id, data)

    storage.put_blob = counted_put  # type: ignore[method-assign]

    def on_event(event, _: bytes) -> None:
        if event.type == "startGeneration":
            named.append((event.tools_digest, len(put)))

    wait_for(host.run("a", "q", on_event=on_event))
    assert len(put) == len(set(put)) == len({digest for digest, _ in named}) == 3
    assert named[0][1] == 1


def test_an_interrupted_generation_and_a_branch_replay_equal(bench: Bench) -> None:
    script = [tool("think", {"thought": "a"}), tool("think", {"thought": "b"}), text("end")]
    host = bench.host(script, expert("a"), wrap=crashing(CrashPoint("after", 4)))
    with pytest.raises((Crash, BaseExceptionGroup)):
        wait_for(host.run("a", "q", job_id="job"))
    seen = Seen()
    host = bench.host([tool("think", {"thought": "a"}), tool("think", {"thought": "b"}), text("end")], expert("a"))
    assert wait_for(host.resume("job", on_event=seen)).status == "completed"
    first_step = wait_for(host.jobs.checkpoints("job")).ids[0]
    branch = bench.host(lambda request: "branched", expert("a", instruction="Other."))
    wait_for(branch.continue_job("a", "instead", job_id="job", resume_from=first_step, on_event=seen))
    verified, replayed = checked(host)
    assert (verified.findings, replayed.findings, replayed.unchecked) == ((), (), ())


def test_the_same_request_has_the_same_digest_whichever_way_it_came_about(bench: Bench) -> None:
    seen = Seen()
    host = bench.host(lambda request: "same", expert("a"))
    wait_for(host.run("a", "q", job_id="job", on_event=seen))
    end = wait_for(host.jobs.checkpoints("job")).ids[-1]
    for _ in range(2):
        wait_for(host.continue_job("a", "again", job_id="job", resume_from=end, on_event=seen))
    hints = [event.request_digest.split(".") for event in seen.of("startGeneration")]
    assert hints[1][3:] == hints[2][3:] != hints[0][3:], "of messages: the instruction says when the Run began"


# --- settings of providers --------------------------------------------------------------------------------------------


class Tuned(ScriptedProvider):
    """A provider with settings, one of which is secret."""

    def create(self, config: ProviderConfig) -> Provider:
        provider = super().create(config)
        settings: JsonObject = {"temperature": config.setting.get("temperature")}
        provider.reply_settings = settings
        return provider


def with_setting(host: Host, temperature: float) -> Host:
    setting = ProviderSetting(
        provider_name="scripted", setting={"temperature": temperature, "headers": {"x-key": "sk-secret"}}
    )
    host.use(host.project.model_copy(update={"provider": setting}))
    return host


def test_settings_that_change_replies_are_recorded_when_they_change_and_are_in_the_digest(bench: Bench) -> None:
    script = lambda request: turn(tool("think", {"thought": "x"}))  # noqa: E731
    seen, model = Seen(), Tuned(script)
    job = wait_for(
        with_setting(bench.host(model, expert("a"), max_steps=2), 0.5).run("a", "q", job_id="job", on_event=seen)
    )
    assert job.status == "stoppedByMaxSteps"
    other = Tuned(script)
    host = with_setting(bench.host(other, expert("a")), 0.25)
    wait_for(host.resume("job", max_steps=4, on_event=seen))
    events = seen.of("startGeneration")
    assert [event.provider_settings for event in events] == [{"temperature": 0.5}, None, {"temperature": 0.25}, None]
    for event, request in zip(events, [*model.requests, *other.requests], strict=True):
        temperature = 0.5 if event.step_number <= 2 else 0.25
        assert event.request_digest == digest_of_request(request, {"temperature": temperature})
    assert b"sk-secret" not in b"".join(seen.lines)
    assert checked(host)[1].findings == ()


# --- damage -----------------------------------------------------------------------------------------------------------


def blobs_of(workspace: Path) -> list[Path]:
    return sorted((workspace / "perstack/jobs/job/blobs").iterdir())


def test_verify_and_replay_find_tools_that_are_missing_or_changed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "file:perstack")
    host = bench.host([tool("think", {"thought": "x"}), text("ok")], expert("a"))
    wait_for(host.run("a", "q", job_id="job"))
    (blob,) = blobs_of(tmp_path)
    data = blob.read_bytes()
    blob.write_bytes(data.replace(b"think", b"thank"))
    for report in checked(host):
        (finding,) = report.findings
        assert (finding.run_id, finding.seq) == ("job-1", 2)
        assert blob.name in finding.message
    blob.unlink()
    for report in checked(host):
        (finding,) = report.findings
        assert re.search(rf"{blob.name}, are not there", finding.message)
    blob.write_bytes(data)
    for report in checked(host):
        assert report.ok


def test_verify_finds_missing_tools_on_a_storage_without_files(tmp_path: Path) -> None:
    host = Bench(tmp_path, "sqlite:state.db").host([text("ok")], expert("a"))
    wait_for(host.run("a", "q", job_id="job"))

    async def gone(job_id: str, sha256: str) -> bytes:
        raise NotFound("no blob")

    async def changed_blob(job_id: str, sha256: str) -> bytes:
        return form([])

    for blob, words in ((gone, "are not there"), (changed_blob, "were changed")):
        host.storage.blob = blob  # type: ignore[method-assign]
        for report in checked(host):
            assert words in report.findings[0].message
