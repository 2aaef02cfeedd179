"""Speed of the studio: `python bench/studio.py [--only long|many|live|watched|pages] [--browser /usr/bin/chromium]`.

- long: Jobs of 20,000 and 100,000 events: the first answer of a server that was just started, a jump to a step, first
  paint, and the memory of the page in a browser (only if playwright is installed)
- many: 10,000 Jobs: the list, a filter, and a page that shows the number of open questions
- live: 50 viewers on 200 Jobs that another process drives: processor time of the studio
- watched: a live Job of a step a second whose conversation and page stay open for `--minutes` (an hour): memory of the
  pages and of the studio, twelve times; only if asked for (`--minutes 6 --watched-step-s 0.1` has as many steps)
- pages: bytes, requests and first paint of the list of Jobs and of a Job, and of each `--url` of another server, which
  for example `adk web` or `devui` has started
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event as Flag

import httpx

from perstack.core.base.chain import EMPTY_LOG, Head, open_line, seal
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import Overrides
from perstack.host import Host
from perstack.ports.provider import Delta, Generation, GenerationRequest
from perstack.testing.scripted import ScriptedProvider, text, tool, turn

PERSTACK = str(Path(sys.executable).with_name("perstack"))
TOML = '[experts.writer]\ninstruction = "Write."\n'
STEP_S = 5.0  # seconds that each step of a live Job takes
LIVE_JOBS, VIEWERS, WATCH_S = 200, 50, 20.0
PAGE_LOADS = 5  # loads of each page, of which the median is printed
WATCHED_STEP_S = 1.0  # seconds that each step takes of the Job that is watched for an hour
REPLY = turn(tool("think", {"thought": "hm " * 30}), text="I look at it again.")


class SlowModel(ScriptedProvider):
    """A model that takes some seconds for each reply, and never ends."""

    def __init__(self, step_s: float) -> None:
        super().__init__(lambda _: REPLY)
        self.step_s = step_s

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        await asyncio.sleep(self.step_s)
        return await super().generate(request, on_delta)


def open_host(folder: Path, provider: ScriptedProvider) -> Host:
    overrides = Overrides(provider="scripted", max_steps=0)
    project = Project(max_repeats=0, experts={"writer": Expert(key="writer", instruction="Write.")})
    return Host(project, workspace=folder, plugins=[provider], overrides=overrides)


async def write_job(folder: Path, job_id: str, events: int) -> None:
    """Write a completed Job of about so many events, whose steps are alike."""
    provider = ScriptedProvider([REPLY, text("Done.")])
    async with open_host(folder, provider) as host:
        await host.run("writer", "Go", job_id=job_id)
        (log,) = await host.jobs.logs(job_id)
        summary = json.loads(await host.storage.summary(job_id) or b"")
    payloads = [json.loads(open_line(line).payload) for line in log.lines]
    end = next(at for at, event in enumerate(payloads) if event["type"] == "finishStep")
    first = next(at for at, event in enumerate(payloads) if event["type"] == "startGeneration")
    step, last, new_events = payloads[first : end + 1], payloads[end + 1 :], payloads[:first]
    steps = max(1, (events - first - len(last)) // len(step))
    for number in range(1, steps + 1):
        new_events += [move_event(event, number, len(new_events) + at) for at, event in enumerate(step, 1)]
    new_events += [move_event(event, steps + 1, len(new_events) + at) for at, event in enumerate(last, 1)]
    lines, head = sealed_by_step(new_events)
    job = next(folder.rglob(f"jobs/{job_id}"))  # noqa: ASYNC240 - nothing else runs in this loop
    for path in job.rglob("checkpoints/*.json"):
        path.unlink()
    next(job.rglob("events.jsonl")).write_bytes(b"".join(line + b"\n" for line in lines))
    summary["totalSteps"] = summary["runs"][0]["steps"] = steps + 1
    summary["runs"][0] |= {"headSeq": head.seq, "headHash": head.hash}
    (job / "job.json").write_text(json.dumps(summary, separators=(",", ":")))


def sealed_by_step(new_events: list[dict[str, object]]) -> tuple[list[bytes], Head]:
    """Return the lines of a log that each step was appended to by itself, as a host does, and its head."""
    lines, head = list[bytes](), EMPTY_LOG
    for _, step in groupby(new_events, lambda event: event["stepNumber"]):
        payloads = [json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() for event in step]
        added, head = seal(head, payloads)
        lines += added
    return lines, head


def move_event(event: dict[str, object], step: int, seq: int) -> dict[str, object]:
    """Return the event at another place of its log."""
    event_id = f"{event['runId']}-{seq}"
    changed = {**event, "id": event_id, "stepNumber": step, "timestamp": int(str(event["timestamp"])) + step * 1000}
    return {**changed, "checkpointId": event_id} if "checkpointId" in event else changed


def copy_job(job: Path, number: int) -> None:
    """Write the Job once more under another id."""
    old, new = job.name, f"copy{number:06}"
    (log,) = job.rglob("events.jsonl")
    run = job.with_name(new) / "runs" / log.parent.name.replace(old, new)
    run.mkdir(parents=True)
    lines = log.read_bytes().replace(old.encode(), new.encode()).splitlines()
    (run / log.name).write_bytes(b"\n".join([*seal(EMPTY_LOG, [open_line(line).payload for line in lines])[0], b""]))
    summary = json.loads((job / "job.json").read_text().replace(old, new))
    summary["query"] = f"Go {number}"
    (job.with_name(new) / "job.json").write_text(json.dumps(summary, separators=(",", ":")))


@contextmanager
def serving(folder: Path) -> Iterator[tuple[httpx.Client, subprocess.Popen[str], str]]:
    """Start the studio, and let a client in."""
    env = {**os.environ, "PERSTACK_TRUST": str(folder)}
    process = subprocess.Popen(
        [PERSTACK, "studio", "--http", "127.0.0.1:0"], cwd=folder, env=env, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        found = re.search(r"(http://[^/]+)(/\S+)", process.stderr.readline())
        assert found is not None
        with httpx.Client(base_url=found[1], timeout=60) as client:
            client.get(found[2])
            yield client, process, found[1]
    finally:
        process.terminate()
        process.wait()


def time_request(client: httpx.Client, path: str) -> float:
    began = time.perf_counter()
    response = client.get(path, follow_redirects=True)
    assert response.status_code == 200, response.text
    return (time.perf_counter() - began) * 1000


def bench_long(folder: Path, browser: str) -> None:
    for events in (20_000, 100_000):
        job = f"long{events // 1000}"
        asyncio.run(write_job(folder, job, events))
        for path in (f"/jobs/{job}", f"/jobs/{job}/conversation"):
            with serving(folder) as (client, _, url):
                print(f"{events:7,} events  {path:32} {time_request(client, path):6.0f} ms, the first after a start")
        with serving(folder) as (client, process, url):
            run = re.search(rf"/jobs/{job}/runs/([^/?\"]+)", client.get(f"/jobs/{job}/conversation").text)
            assert run is not None
            jump = f"/jobs/{job}/runs/{run[1]}?step={events // 10}"
            print(f"{events:7,} events  first jump to step {events // 10:,}: {time_request(client, jump):6.0f} ms")
            other = jump.replace(str(events // 10), str(events // 9))
            print(f"{events:7,} events  next jump, to step {events // 9:,}: {time_request(client, other):6.0f} ms")
        with serving(folder) as (client, process, url):
            client.get(f"/jobs/{job}/conversation")
            time.sleep(1)  # a person reads, and the log is verified meanwhile
            print(f"{events:7,} events  first jump after a second: {time_request(client, jump):6.0f} ms")
            in_browser(browser, client, url, [f"/jobs/{job}", f"/jobs/{job}/conversation", jump])
            print(f"{events:7,} events  memory of the studio: {anonymous_mb(process.pid):.0f} MB")


def in_browser(browser: str, client: httpx.Client, url: str, paths: list[str]) -> None:
    """Print first contentful paint and the memory of the page."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("(playwright is not installed: first paint and memory are not measured)")
        return
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        context = chromium.new_context()
        context.add_cookies(
            [{"name": cookie.name, "value": cookie.value or "", "url": url} for cookie in client.cookies.jar]
        )
        page = context.new_page()
        for path in paths:
            page.goto(url + path, wait_until="load")
            page.wait_for_timeout(2_000)
            paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1")
            processes = chromium.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
            memory = max(anonymous_mb(one["id"]) for one in processes if one["type"] == "renderer")
            elements = page.evaluate("document.querySelectorAll('*').length")
            print(f"    {path[:60]:60} first paint {paint:5.0f} ms, {memory:4.0f} MB, {elements:,} elements")
        for _ in range(20):
            page.evaluate("scrollTo(0, 0)")
            page.wait_for_timeout(300)
        memory = max(anonymous_mb(one["id"]) for one in processes if one["type"] == "renderer")
        print(f"    after scrolling back: {page.locator('.entry').count():,} entries, {memory:.0f} MB")
        chromium.close()


def anonymous_mb(pid: int) -> float:
    found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return 0 if found is None else int(found[1]) / 1024


def bench_many(folder: Path) -> None:
    asyncio.run(write_job(folder, "first", 40))
    for number in range(9_999):
        copy_job(next(folder.rglob("jobs/first")), number)
    with serving(folder) as (client, _, _):
        for name, path in {
            "the list": "/jobs",
            "filtered by text": "/jobs?text=go+77",
            "filtered, nothing found": "/jobs?text=nothing",
            "one Job, first": "/jobs/first",
            "one Job, again": "/jobs/first",
        }.items():
            print(f"10,000 Jobs  {name:24} {time_request(client, path):6.0f} ms")
        client.get("/jobs/first")
        times = sorted(time_request(client, "/jobs/first") for _ in range(200))
        print(f"10,000 Jobs  200 pages of a Job: median {times[100]:.1f} ms, 99 % below {times[197]:.1f} ms")


def bench_live(folder: Path) -> None:
    driver = subprocess.Popen([sys.executable, __file__, "--drive", str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        driver.stdout.readline()
        with serving(folder) as (client, process, _):
            stop, counts = Flag(), [0] * VIEWERS
            runs = [next((path / "runs").iterdir()).name for path in folder.rglob("jobs/live*")][:VIEWERS]

            def view(number: int) -> None:
                run = runs[number]
                job = run.rpartition("-")[0]
                path = f"/jobs/{job}/events" if number % 2 else f"/jobs/{job}/runs/{run}/events"
                with suppress(httpx.HTTPError), client.stream("GET", path, timeout=None) as stream:
                    assert stream.status_code == 200, stream.read()
                    for line in stream.iter_lines():
                        counts[number] += line.startswith("event:")
                        if stop.is_set():
                            return

            with ThreadPoolExecutor(VIEWERS) as pool:
                viewers = [pool.submit(view, number) for number in range(VIEWERS)]
                time.sleep(8)  # the first fold of each Job is not what lasts
                began, used, seen = time.perf_counter(), cpu_s(process.pid), sum(counts)
                time.sleep(WATCH_S)
                seconds = time.perf_counter() - began
                share = (cpu_s(process.pid) - used) / seconds
                rate = (sum(counts) - seen) / seconds
                print(f"{VIEWERS} viewers on {LIVE_JOBS} live Jobs: {share:.0%} of a core, {rate:.1f} messages/s sent")
                stop.set()
                driver.terminate()
                process.terminate()
                for viewer in viewers:
                    viewer.result()
    finally:
        driver.kill()
        driver.wait()


def bench_pages(folder: Path, browser: str, urls: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    asyncio.run(write_job(folder, "short", 100))
    with serving(folder) as (client, _, studio_url), sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for url in (f"{studio_url}/jobs", f"{studio_url}/jobs/short", *urls):
            paints, sizes, requests = list[float](), list[float](), 0
            for _ in range(PAGE_LOADS):
                context = chromium.new_context()  # with an empty cache
                context.add_cookies(
                    [{"name": c.name, "value": c.value or "", "url": studio_url} for c in client.cookies.jar]
                )
                page, received = context.new_page(), dict[str, float]()
                session = context.new_cdp_session(page)
                session.send("Network.enable")
                session.on("Network.loadingFinished", partial(note_size, received))
                page.goto(url, wait_until="load")
                page.wait_for_timeout(1_500)
                paints.append(
                    page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1")
                )
                sizes.append(sum(received.values()))
                requests = len(received)
                context.close()
            paint, size = sorted(paints)[PAGE_LOADS // 2], sorted(sizes)[PAGE_LOADS // 2]
            shown = url.removeprefix(studio_url)
            print(f"{shown:40} {size / 1000:8,.0f} KB in {requests:3} requests, first paint {paint:5.0f} ms")
        chromium.close()


def note_size(received: dict[str, float], event: dict[str, float | str]) -> None:
    """Keep the bytes of a response as they came over the network."""
    received[str(event["requestId"])] = float(event["encodedDataLength"])


def bench_watched(folder: Path, browser: str, minutes: float, step_s: float) -> None:
    command = [sys.executable, __file__, "--drive", str(folder), "--jobs", "1", "--step-s", str(step_s)]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        driver.stdout.readline()
        with (
            serving(folder) as (_, studio, url),
            browser_without_inspector(browser, folder) as (chromium, open_tab),
        ):
            link = subprocess.run(
                [PERSTACK, "studio", "--link", "--http", url.removeprefix("http://")],
                cwd=folder,
                env={**os.environ, "PERSTACK_TRUST": str(folder)},
                capture_output=True,
                text=True,
                check=True,
            )
            open_tab(link.stdout.strip())
            for path in ("/jobs/live000", "/jobs/live000/conversation"):  # the last one is visible, so it is painted
                open_tab(url + path)
            for twelfth in range(13):
                sizes = sorted(map(anonymous_mb, renderers(chromium.pid)), reverse=True)
                pages = " and ".join(f"{size:.0f}" for size in sizes[:2])
                memory = f"the two largest pages {pages} MB, studio {anonymous_mb(studio.pid):.0f} MB"
                print(f"after {minutes * twelfth / 12:4.1f} minutes: {memory}", flush=True)
                time.sleep(minutes * 60 / 12 if twelfth < 12 else 0)
    finally:
        driver.kill()
        driver.wait()


@contextmanager
def browser_without_inspector(
    browser: str, folder: Path
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[str], None]]]:
    """Start a browser, and return it with a function that opens a tab in the foreground.

    Nothing inspects its pages, as nothing does in a person's browser: an inspected page may keep what it received.
    """
    profile = folder / "profile"
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--site-per-process")
    process = subprocess.Popen(
        [browser, *options, f"--user-data-dir={profile}", "about:blank"], stderr=subprocess.DEVNULL
    )
    try:
        port_file = profile / "DevToolsActivePort"
        until = time.monotonic() + 60
        while not (port_file.exists() and port_file.read_text()):
            assert time.monotonic() < until, "the browser does not start"
            time.sleep(0.1)
        control = f"http://127.0.0.1:{port_file.read_text().split()[0]}"

        def open_tab(url: str) -> None:
            httpx.put(f"{control}/json/new?{url}", timeout=60).raise_for_status()
            time.sleep(4)  # until it is loaded: nothing else says so without the inspector

        yield process, open_tab
    finally:
        process.terminate()
        process.wait()


def renderers(browser_pid: int) -> set[int]:
    """Return the ids of the processes of a browser that hold pages."""
    found = set[int]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"--type=renderer" in (folder / "cmdline").read_bytes() and browser_pid in ancestors(folder):
                found.add(int(folder.name))
    return found


def ancestors(folder: Path) -> Iterator[int]:
    """Yield the ids of the parent of a process, of its parent, and so on."""
    while (pid := re.search(r"PPid:\s+(\d+)", (folder / "status").read_text())) and pid[1] != "0":
        yield int(pid[1])
        folder = folder.with_name(pid[1])


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def drive(folder: Path, job_count: int, step_s: float) -> None:
    """Drive Jobs until the process is ended."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 100_000), hard))
    async with open_host(folder, SlowModel(step_s)) as host:
        jobs = []
        for number in range(job_count):
            jobs.append(asyncio.create_task(host.run("writer", "Go on.", job_id=f"live{number:03}")))
            await asyncio.sleep(step_s / job_count)
        print("driven", flush=True)
        await asyncio.gather(*jobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("long", "many", "live", "watched", "pages"))
    parser.add_argument("--url", action="append", default=[])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--watched-step-s", type=float, default=WATCHED_STEP_S)
    parser.add_argument("--browser", default="/usr/bin/chromium")
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=LIVE_JOBS, help=argparse.SUPPRESS)
    parser.add_argument("--step-s", type=float, default=STEP_S, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive is not None:
        asyncio.run(drive(options.drive, options.jobs, options.step_s))
        return
    benches: dict[str, Callable[[Path], None]] = {
        "long": lambda folder: bench_long(folder, options.browser),
        "many": bench_many,
        "live": bench_live,
        "pages": lambda folder: bench_pages(folder, options.browser, options.url),
        "watched": lambda folder: bench_watched(folder, options.browser, options.minutes, options.watched_step_s),
    }
    for name, bench in benches.items():
        if options.only == name or (options.only is None and name != "watched"):
            with TemporaryDirectory() as folder:
                (Path(folder) / "perstack.toml").write_text(TOML)
                bench(Path(folder))


if __name__ == "__main__":
    main()
