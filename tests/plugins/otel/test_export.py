"""`perstack export --format otlp`: the trace of a Job as OTLP JSON, whatever happened to its processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from hosts import Bench, crashing, expert, sampled, until_it_crashes, wait_for
from long_jobs import LONG, long_job
from terminal import TEAM, Terminal, reply

from perstack.errors import NotFound
from perstack.host import Host
from perstack.testing.crashing_storage import CrashingStorage, CrashPoint, crash_points
from perstack.testing.scripted import text, tool, turn
from perstack_otel.export import trace_of_job, trace_with_content_of_job
from perstack_otel.otlp_json import request_line
from perstack_otel.spans import TraceSpan, trace_id_of

SCRIPT = {
    "[[boss]]": [
        turn(tool("helper", {"query": "L"}), tool("think", {"thought": "hm"}), usage=(10, 1)),
        turn(tool("askUser", {"question": "sure?"}), usage=(10, 1)),
        text("all is done", usage=(10, 1)),
    ],
    "[[helper]]": [
        turn(tool("appendTextFile", {"path": "log.txt", "text": "secret words\n"}), usage=(10, 1)),
        text("helper is done", usage=(10, 1)),
    ],
}
EXPERTS = (expert("boss", delegates=("helper",), ask=True), expert("helper"))


def spans_in(trace: bytes) -> list[dict[str, Any]]:
    """Return the spans of a file in OTLP JSON. Checks the form of its lines."""
    spans: list[dict[str, Any]] = []
    for line in trace.splitlines():
        (resource,) = json.loads(line)["resourceSpans"]
        (scope,) = resource["scopeSpans"]
        assert resource["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "perstack"}}]
        spans += scope["spans"]
    for span in spans:
        assert re.fullmatch("[0-9a-f]{32}", span["traceId"])
        assert re.fullmatch("[0-9a-f]{16}", span["spanId"])
        assert re.fullmatch("[0-9a-f]{16}", span.get("parentSpanId", "0" * 16))
        assert 0 < int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
        assert span["kind"] in (1, 3)
    return spans


def ids(spans: Iterable[dict[str, Any]]) -> list[str]:
    return [span["spanId"] for span in spans]


def attribute(span: dict[str, Any], name: str) -> object:
    return next((next(iter(one["value"].values())) for one in span["attributes"] if one["key"] == name), None)


async def has_begun(host: Host) -> bool:
    try:
        await host.job("job")
    except NotFound:
        return False
    return True


async def drive(host: Host) -> None:
    """Start or continue the Job, as far as it gets."""
    with until_it_crashes():
        if not await has_begun(host):
            await host.run("boss", "go", job_id="job")
        elif (await host.job("job")).question is None:
            await host.resume("job")
        if (await host.job("job")).question is not None:
            await host.answer("yes", job_id="job")


async def appends(bench: Bench) -> int:
    async with bench.host(SCRIPT, *EXPERTS, wrap=crashing_counter) as host:
        await drive(host)
        storage = host.storage
        assert isinstance(storage, CrashingStorage)
        return storage.appends


def crashing_counter(inner: Any) -> CrashingStorage:
    return CrashingStorage(inner, None)


def test_a_job_is_exported_by_the_command_line(terminal: Terminal) -> None:
    terminal.project(TEAM, lead=[reply("The result")])
    assert terminal.run("run", "lead", "Say it", "--provider", "scripted", "--job-id", "job").code == 0

    done = terminal.run("export", "job", "--format", "otlp", "--to", "job.jsonl")
    shown = terminal.run("export", "job", "--format", "otlp-content")

    assert done.code == 0, done.err
    chat, run = spans_in((terminal.workspace / "job.jsonl").read_bytes())
    assert (run["name"], chat["parentSpanId"]) == ("invoke_agent lead", run["spanId"])
    assert {chat["traceId"], run["traceId"]} == {trace_id_of("job")}
    assert "The result" not in (terminal.workspace / "job.jsonl").read_text()
    assert "The result" in shown.out


def test_other_formats_do_not_import_it(terminal: Terminal) -> None:
    terminal.project(TEAM, lead=[reply("Done.")])
    assert terminal.run("run", "lead", "Go", "--provider", "scripted").code == 0
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "perstack", "export", "@last", "--format", "json"],
        cwd=terminal.workspace, env=terminal.env, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "perstack_otel.spans" not in shown.stderr


def test_an_export_is_the_same_each_time_and_a_later_one_only_adds(bench: Bench) -> None:
    async def check() -> None:
        async with bench.host(SCRIPT, *EXPERTS) as host:
            assert (await host.run("boss", "go", job_id="job")).question is not None
            waiting = spans_in(await trace_of_job(host, "job"))
            await host.answer("yes", job_id="job")
        async with bench.host(SCRIPT, *EXPERTS) as host:
            trace = await trace_of_job(host, "job")
            assert trace == await trace_of_job(host, "job")
            content = await trace_with_content_of_job(host, "job")
        spans = spans_in(trace)
        assert [span for span in waiting if span not in spans] == []
        assert len(spans) > len(waiting)
        assert ids(spans_in(content)) == ids(spans)
        assert b"secret words" in content
        assert b"secret words" not in trace

    wait_for(check())


def test_a_process_that_dies_at_any_write_leaves_no_span_twice_and_none_out(bench: Bench) -> None:
    number = wait_for(appends(bench))
    assert number > 8
    for index, point in enumerate(sampled(crash_points(number))):
        wait_for(_crash(bench.beside(bench.workspace / str(index)), point))


async def _crash(bench: Bench, point: CrashPoint) -> None:
    bench.workspace.mkdir()
    async with bench.host(SCRIPT, *EXPERTS, wrap=crashing(point)) as host:
        await drive(host)
    async with bench.host(SCRIPT, *EXPERTS) as host:
        before = spans_in(await trace_of_job(host, "job")) if await has_begun(host) else []
        if not before or (await host.job("job")).status != "completed":
            await drive(host)
        job = await host.job("job")
        assert job.status == "completed"
        spans = spans_in(await trace_of_job(host, "job"))
        events = [line.event for run in job.runs for line in await host.events(run.id)]
    assert [span for span in before if span not in spans] == []
    assert len({*ids(spans)}) == len(spans)
    whole = [span for span in spans if attribute(span, "perstack.interrupted") is None]
    for operation, kinds in (("chat", ["finishGeneration"]), ("execute_tool", ["finishToolCall", "attemptCompletion"])):
        named = [span for span in whole if attribute(span, "gen_ai.operation.name") == operation]
        assert len(named) == sum(event.type in kinds for event in events)
    assert {span["parentSpanId"] for span in spans if "parentSpanId" in span} <= {*ids(spans)}


def test_a_line_has_a_limited_number_of_spans(bench: Bench) -> None:
    wait_for(long_job(bench, 300))

    trace = wait_for(trace_of_job(bench.host([], LONG), "long"))

    assert [len(spans_in(line)) for line in trace.splitlines()] == [512, 300 + 299 + 1 - 512]


def test_values_keep_their_types() -> None:
    attributes = {"text": "é", "yes": True, "count": 2**60, "cost": 0.5, "list": ("a",)}
    span = TraceSpan("0" * 32, "1" * 16, "", "chat", "chat m", 1, 2, attributes, is_error=True)

    (written,) = spans_in(request_line([span]))

    assert {one["key"]: one["value"] for one in written["attributes"]} == {
        "text": {"stringValue": "é"},
        "yes": {"boolValue": True},
        "count": {"intValue": str(2**60)},
        "cost": {"doubleValue": 0.5},
        "list": {"arrayValue": {"values": [{"stringValue": "a"}]}},
    }
    assert (written["startTimeUnixNano"], written["endTimeUnixNano"]) == ("1000000", "2000000")
    assert (written["kind"], written["status"]) == (3, {"code": 2})


def test_a_job_that_does_not_exist_is_named(terminal: Terminal) -> None:
    terminal.project(TEAM, lead=[reply("Done.")])

    result = terminal.run("export", "nobody", "--format", "otlp")

    assert result.code == 2
    assert "nobody" in result.err


def test_a_damaged_log_is_named_and_nothing_is_written(terminal: Terminal) -> None:
    terminal.project(TEAM, lead=[reply("Done.")])
    assert terminal.run("run", "lead", "Go", "--provider", "scripted", "--job-id", "job").code == 0
    (log,) = terminal.workspace.rglob("jobs/job/runs/*/events.jsonl")
    log.write_bytes(log.read_bytes().replace(b"Done.", b"Gone."))

    result = terminal.run("export", "job", "--format", "otlp", "--to", "job.jsonl")

    assert result.code == 1
    assert "job-1" in result.err
    assert not (terminal.workspace / "job.jsonl").exists()


def test_a_name_that_a_model_made_up_for_a_tool_is_content(bench: Bench) -> None:
    script = {"[[boss]]": [turn(tool("tellSECRET", {"a": "b"})), text("done")]}

    async def traces() -> tuple[bytes, bytes]:
        async with bench.host(script, expert("boss")) as host:
            await host.run("boss", "go", job_id="job")
            return await trace_of_job(host, "job"), await trace_with_content_of_job(host, "job")

    plain, full = wait_for(traces())

    assert b"SECRET" not in plain
    assert [span["name"] for span in spans_in(plain) if "tool" in span["name"]] == ["execute_tool unknown"]
    assert "execute_tool tellSECRET" in [span["name"] for span in spans_in(full)]
