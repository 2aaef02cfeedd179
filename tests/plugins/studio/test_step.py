"""A step in `perstack studio`: what the model was sent, why its calls were allowed, and what can be started from it."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hosts import Bench, expert, wait_for
from long_jobs import long_job
from long_runs import SmallModel, is_summary
from studio_server import Visitor, serving_studio
from terminal import Terminal, reply

from perstack.core.definitions.permissions import Permissions, RuleSet, Widening
from perstack.core.definitions.skills import DecidedCall
from perstack.core.runs import events
from perstack.errors import NotFound
from perstack.ports.provider import GenerationRequest
from perstack.ports.storage import RunRef
from perstack.testing.scripted import ScriptedProvider, TurnLike, tool, turn
from perstack_studio.call_reasons import reasons_of, rules_after
from perstack_studio.run_lines import RunLines
from perstack_studio.sent_requests import sent_request
from perstack_studio.views.step import read_step

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m"
PROJECT = """
[experts.writer]
instruction = "You write. <b>bold</b>"
[permissions]
ask = ["writeTextFile"]
deny = ["deleteFile"]
"""
WRITES = reply(
    "I write.",
    ("writeTextFile", {"path": "a.txt", "text": HOSTILE}),
    ("deleteFile", {"path": "b.txt"}),
    ("readTextFile", {"path": HOSTILE}),
    thinking=HOSTILE,
)


def _texts(page: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def _started_job(terminal: Terminal) -> str:
    terminal.project(PROJECT, writer=[WRITES, reply("Done."), reply("Again."), reply("And again.")])
    terminal.call("run", "writer", HOSTILE, "--provider", "scripted", "--no-input")
    return next(terminal.jobs().iterdir()).name


def _approve(visitor: Visitor, job_id: str) -> None:
    question = re.search(r'href="(/questions/[^"]+)"', visitor.get(f"/jobs/{job_id}"))
    assert question is not None
    visitor.send(visitor.get(question[1]), question[1], answer="yes")
    _wait_until(visitor, job_id, "completed")


def _wait_until(visitor: Visitor, job_id: str, status: str) -> None:
    with visitor.client.stream("GET", f"/jobs/{job_id}/events") as stream:
        for line in stream.iter_lines():
            if f">{status}<" in line:
                return


def test_a_step_says_what_was_sent_and_why_its_calls_were_allowed(terminal: Terminal) -> None:
    job_id = _started_job(terminal)
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        _approve(visitor, job_id)
        path = f"/jobs/{job_id}/runs/{job_id}-1/steps"
        page = visitor.get(f"{path}/1")
        shown = _texts(page)

        assert "writeTextFile call_0_0 a person had to approve it" in shown
        assert re.search(r"decided yes, by \S*, studio event \d+", shown)
        assert "refused by rules" in shown
        assert "readTextFile call_0_2 allowed: no rule asks about it or denies it" in shown
        assert re.search(r"rules in force perstack.toml \[permissions\], default \w+", shown)
        assert "it matches the digest that was recorded when it was sent" in shown
        assert "You write. <b>bold</b>" in shown
        assert 'href="#sent"' in page
        assert f'rel="next" href="{path}/2"' in page
        assert 'rel="prev"' not in page

        second = visitor.get(f"{path}/2")
        assert f'rel="prev" href="{path}/1"' in second
        assert re.search(r"3 event \d+ new", _texts(second))
        assert "error of deleteFile" in _texts(second)
        for hostile in (page, second):
            assert "<script>" not in hostile
            assert "\u202e" not in hostile
            assert "\x1b" not in hostile

        assert "has no step 3" in visitor.get(f"{path}/3", status=404)
        assert "has no Run" in visitor.get(f"/jobs/{job_id}/runs/x-1/steps/1", status=404)
        _branches_and_reruns(visitor, job_id, second, f"{path}/2")


def test_a_step_that_is_too_long_for_a_page_links_to_the_rest(terminal: Terminal) -> None:
    long = reply("x" * 2_000, *[("readTextFile", {"path": f"{n}" * 99_000}) for n in range(15)])
    terminal.project("[experts.writer]\ninstruction = 'You write.'", writer=[long, reply("Done.")])
    terminal.call("run", "writer", "Go", "--provider", "scripted", "--no-input")
    job_id = next(terminal.jobs().iterdir()).name
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        page = visitor.get(f"/jobs/{job_id}/runs/{job_id}-1/steps/1")
        link = re.search(r'href="([^"]+)#([^"]+)">\d+ more entries', page)
        assert link is not None
        assert f'id="{link[2]}"' not in page
        assert f'id="{link[2]}"' in visitor.get(unescape(link[1]))


def _branches_and_reruns(visitor: Visitor, job_id: str, page: str, path: str) -> None:
    visitor.send(page, f"{path}/branch", status=400, query=" ")
    branched = visitor.send(page, f"{path}/branch", query="Try again")
    assert branched.headers["Location"] == f"/jobs/{job_id}"
    _wait_until(visitor, job_id, "completed")
    assert "Try again" in visitor.get(f"/jobs/{job_id}/runs/{job_id}-2")

    visitor.send(page, f"{path}/rerun", model="scripted/other", query="Go on otherwise", **{"from": "here"})
    _wait_until(visitor, job_id, "completed")
    assert "scripted/other" in visitor.get(f"/jobs/{job_id}/runs/{job_id}-3")

    rerun = visitor.send(page, f"{path}/rerun", model="scripted/third", **{"from": "start"})
    other_id = rerun.headers["Location"].rpartition("/")[2]
    assert other_id != job_id
    assert "scripted/third" in visitor.get(f"/jobs/{other_id}/runs/{other_id}-1")

    visitor.send(page, f"{path}/rerun", status=400, model=" ")


def test_a_studio_that_only_shows_has_no_forms_on_a_step(terminal: Terminal) -> None:
    job_id = _started_job(terminal)
    with serving_studio(terminal, "--read-only") as server:
        page = server.visitor().get(f"/jobs/{job_id}/runs/{job_id}-1/steps/1")

    assert "<form" not in page
    assert "waits for approval" in page


class _CountedReads:
    """A storage that counts how many lines are read from it."""

    def __init__(self, storage) -> None:
        self._storage = storage
        self.lines = 0

    async def read(self, ref: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        found = await self._storage.read(ref, after, limit)
        self.lines += len(found)
        return found


def test_a_step_of_a_long_log_is_found_without_reading_the_log(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "file:.perstack")
    wait_for(long_job(bench, 500))
    host = bench.host([], expert("writer"))
    storage = _CountedReads(host.storage)
    run_lines = RunLines(storage, RunRef("long", "long-1"))

    found = {step: wait_for(run_lines.step(step)) for step in (1, 2, 250, 499, 500)}

    for step, lines in found.items():
        assert {item.entry.step for item in lines.entries} == {step}
        assert lines.previous == (step - 1 or None)
        assert lines.next == (step + 1 if step < 500 else None)
        assert lines.entries[-1].entry.type == ("finishRun" if step == 500 else "finishStep")
    assert storage.lines < 5 * (2 * 2 * 14 + 60)  # two searches each, and the lines around the step
    with pytest.raises(NotFound):
        wait_for(run_lines.step(501))


def _thinks(request: GenerationRequest) -> TurnLike:
    words = "words that fill the context " * 60
    return "done" if request.step > 20 else turn(tool("think", {"thought": f"{request.step}: {words}"}), usage=(0, 400))


def test_the_request_of_each_step_is_the_one_that_the_provider_received(tmp_path: Path) -> None:
    host = Bench(tmp_path, "file:.perstack").host(
        provider := ScriptedProvider(SmallModel(_thinks, 8_000)), expert("a", context_window=8_000)
    )
    job = wait_for(host.run("a", "count the stars"))
    studio: Any = SimpleNamespace(host=host)
    run_lines = RunLines(host.storage, RunRef(job.id, f"{job.id}-1"))
    received = {request.step: request for request in provider.requests if not is_summary(request)}
    compacted = 0

    for number, request in received.items():
        step = wait_for(read_step(run_lines, number))
        seq, event = step.generations[-1]
        before = (
            next((item.event for item in step.lines.entries if item.seq == step.reductions[0][0] - 1), None)
            if (step.reductions)
            else None
        )
        sent = wait_for(sent_request(studio, job.id, event, None if before is None else before.id, None))
        assert sent.is_checked, sent.check
        assert sent.total == len(request.messages)
        assert [tool.name for tool in sent.tools] == [spec.name for spec in request.tools]
        assert sent.model.endswith(request.model)
        compacted += bool(step.reductions)
        assert bool(sent.removed) is (before is not None)
        assert seq == step.generations[-1][0]

    assert compacted


def test_calls_without_a_decision_have_no_reason() -> None:
    assert reasons_of([], None) == []


def _reason_texts(rule_sets: tuple[RuleSet, ...] | None) -> tuple[str, list[str]]:
    decided = DecidedCall(id="c", skill_name="@perstack/base", tool_name="readTextFile", kind="tool")
    event = events.CallTools.model_construct(type="callTools", calls=(decided,))
    (reason,) = reasons_of([(3, event)], None, rule_sets)
    return reason.verdict, [fact.text for fact in reason.facts if fact.name == "rules in force"]


def test_a_call_is_allowed_by_default_only_if_it_is_known_that_no_rule_was_in_force() -> None:
    assert _reason_texts(()) == ("allowed by default: no rule was in force", [])
    verdict, texts = _reason_texts(None)
    assert verdict == "allowed: no rule asks about it or denies it"
    assert [text.partition(":")[0] for text in texts] == ["unknown"]


def test_a_widening_is_named_as_a_source_of_the_rules_in_force() -> None:
    rule_sets = (RuleSet(source="perstack.toml", permissions=Permissions(default="ask")),)
    widening = events.WidenPermissions.model_construct(
        type="widenPermissions", widening=Widening(source="mine.toml", default="allow", deny=("deleteFile",))
    )
    verdict, texts = _reason_texts(rules_after(rule_sets, widening))
    assert verdict == "allowed: no rule asks about it or denies it"
    assert texts == ["perstack.toml + mine.toml, default allow"]
