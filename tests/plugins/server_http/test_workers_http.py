"""A worker's health and its metrics, and its log."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from engine_workers import queued
from hosts import Bench, expert, wait_for
from terminal import SECONDS

from perstack.core.base.usage import Usage
from perstack.doors.cli.worker import json_line, text_line
from perstack.doors.cli.worker_health import make_app, served
from perstack.doors.cli.worker_metrics import metrics_text
from perstack.doors.shared.http_connections import ListenAddress
from perstack.testing.scripted import text, tool, turn
from perstack.workers.reports import MAX_MODELS, OTHERS, WorkerCounters, WorkerReport
from perstack.workers.worker import MAX_SILENCE_S

DONE = [turn(tool("todo", {"newTodos": ["a"]}), usage=(100, 10)), text("Done.", usage=(200, 20))]


def values(page: str) -> dict[str, float]:
    matches = re.findall(r"^(perstack_\w+(?:\{[^}]*\})?) (\S+)$", page, re.MULTILINE)
    return {name: float(value) for name, value in matches}


def test_health_and_figures_are_served_and_change_with_the_work(tmp_path: Path) -> None:
    async def work() -> None:
        bench = Bench(tmp_path, "file:perstack")
        engine = await queued(bench, "job")
        await engine.submit("later", due=1 << 50)
        host, address = bench.host(DONE, expert("a"), dispatcher=engine.dispatcher), ListenAddress.parse("127.0.0.1:0")
        async with engine.at_work(host) as at_work:
            await at_work.wait_for_report("ended")
            worker = at_work.worker
            app = make_app(worker, engine.dispatcher, host.clock, address)
            async with served(app, address) as place, httpx.AsyncClient(base_url=place) as client:
                healthy = await client.get("/healthz")
                assert (healthy.status_code, healthy.json()) == (200, {"status": "ok", "worker": worker.name})
                page = (await client.get("/metrics")).text
                assert "job-1" not in page
                assert values(page) == {
                    "perstack_dispatcher_up": 1,
                    "perstack_jobs_queued": 0,
                    "perstack_jobs_later": 1,
                    "perstack_jobs_oldest_seconds": 0,
                    "perstack_jobs_running": 0,
                    "perstack_steps_total": 2,
                    'perstack_tokens_total{kind="input",model="scripted/scripted"}': 300,
                    'perstack_tokens_total{kind="output",model="scripted/scripted"}': 30,
                    "perstack_retries_total": 0,
                    "perstack_takeovers_total": 0,
                }
                elsewhere = await client.get("/metrics", headers={"Host": "evil.example"})
                assert elsewhere.status_code == 400
                assert (await client.post("/healthz")).status_code == 405
                worker.health._last_answers["storage"] -= MAX_SILENCE_S + 1
                ill = await client.get("/healthz")
                assert ill.status_code == 503
                assert ill.json()["reason"].startswith("the storage has not answered for 1")
                worker.leave()
                assert (await client.get("/healthz")).json()["reason"] == "the worker is leaving"

    wait_for(work())


def test_names_of_models_are_bounded_and_every_token_is_in_one_kind() -> None:
    tally = WorkerCounters()
    for number in range(MAX_MODELS + 20):
        tally.add(Usage.of(10, 5, reasoning=2, cached=4), f'p/m"\n{number}')
    page = metrics_text(tally, None, 0).decode()
    assert len({model for _, model in tally.tokens}) == MAX_MODELS + 1
    assert tally.tokens["input", OTHERS] == 20 * 6
    assert sum(tally.tokens.values()) == (MAX_MODELS + 20) * 15
    assert all(line.startswith(("#", "perstack_")) for line in page.splitlines())
    assert values(page)["perstack_dispatcher_up"] == 0
    assert "perstack_jobs_queued" not in page


def test_a_line_is_one_line_for_people_and_one_object_for_programs() -> None:
    news = WorkerReport(
        event="ended", level="warning", job="haiku", text="failed:\x1b[2J two\nlines", facts={"steps": 3, "job": 1}
    )
    assert text_line(news, 0).endswith("warning: job haiku failed: [2J two lines")
    line = json_line(news, "w-1a2b", 1_000)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:01.000Z",
        "level": "warning",
        "event": "ended",
        "worker": "w-1a2b",
        "job": "haiku",
        "text": "failed: [2J two lines",
        "steps": 3,
    }


def test_a_malformed_body_sent_to_a_worker_leaves_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        bench = Bench(tmp_path, "file:perstack")
        engine = await queued(bench, "job")
        host, address = bench.host(DONE, expert("a"), dispatcher=engine.dispatcher), ListenAddress.parse("127.0.0.1:0")
        async with (
            engine.at_work(host) as at_work,
            served(make_app(at_work.worker, engine.dispatcher, host.clock, address), address) as place,
        ):
            for target in ("/healthz", "/metrics", "/nowhere"):
                url = urlsplit(place)
                reader, writer = await asyncio.open_connection(url.hostname, url.port)
                head = f"POST {target} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
                writer.write(head.encode() + b"zz\r\n")
                async with asyncio.timeout(SECONDS):
                    await reader.read()
                writer.close()

    wait_for(work())
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
