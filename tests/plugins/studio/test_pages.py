"""The pages of `perstack studio`, with links and forms alone."""

from __future__ import annotations

import json
import re

from studio_server import serving_studio
from terminal import TEAM, Terminal, reply

WRITER = """
[experts.writer]
instruction = "You write."
[permissions]
ask = ["writeTextFile"]
"""
WRITES = reply("I write.", ("writeTextFile", {"path": "a.txt", "text": "one\n<b>two</b>\n"}))


def _job_id(text: str) -> str:
    match = re.search(r'/jobs/([a-z0-9]+)"', text)
    assert match is not None
    return match[1]


def test_a_job_is_started_by_a_form_and_shown(terminal: Terminal) -> None:
    terminal.project(TEAM, lead=[reply("The **result**.")])
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        form = visitor.get("/experts/lead/start")

        started = visitor.send(form, "/jobs", query="Say it")
        job_id = started.headers["Location"].rpartition("/")[2]
        with visitor.client.stream("GET", f"/jobs/{job_id}/events") as stream:
            for line in stream.iter_lines():
                if "completed" in line:
                    break
        page = visitor.get(f"/jobs/{job_id}")

        assert "The <strong>result</strong>." in page
        assert "Say it" in visitor.get("/jobs")
        assert "Say it" in visitor.get(f"/jobs/{job_id}/conversation")


def test_a_call_is_approved_after_its_diff_was_read(terminal: Terminal) -> None:
    terminal.project(WRITER, writer=[WRITES, reply("Done.")])
    assert terminal.run("run", "writer", "Write", "--provider", "scripted", "--no-input").code != 1
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        inbox = visitor.get("/")
        match = re.search(r'href="(/questions/[^"]+)"', inbox)
        assert match is not None
        question = visitor.get(match[1])
        assert "&lt;b&gt;two&lt;/b&gt;" in question

        visitor.send(question, match[1], answer="yes")
        late = visitor.send(question, match[1], status=409, answer="yes")

        assert "answered already" in late.text
    assert (terminal.workspace / "a.txt").read_text() == "one\n<b>two</b>\n"
    events = [json.loads(line) for line in next(terminal.jobs().glob("*/runs/*/events.jsonl")).read_text().splitlines()]
    decided = next(event for event in events if event["type"] == "decideApproval")
    assert decided["by"]["door"] == "studio"
