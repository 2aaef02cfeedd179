"""The log, the events and the check of a Job in `perstack studio`."""

from __future__ import annotations

import json
import re
from html import unescape

from studio_server import Visitor, serving_studio
from terminal import TEAM, Terminal, reply

from perstack.core.base.chain import EMPTY_LOG, seal
from perstack_studio.views.event import chain_problem
from perstack_studio.views.log import filter_of

HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b[31m"
STEPS = 70


def _texts(page: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def _long_job(terminal: Terminal) -> str:
    """Run a Job with two Runs, whose logs take more than one page."""
    thinking = [reply(HOSTILE, ("think", {"thought": f"{number} {HOSTILE}"})) for number in range(STEPS)]
    turns = [*thinking, reply("", ("helper", {"query": HOSTILE})), reply("Done.")]
    terminal.project(TEAM, lead=turns, helper=[reply(HOSTILE)])
    assert terminal.call("run", "lead", "Go", "--provider", "scripted", "--no-input").code == 0
    return next(terminal.jobs().iterdir()).name


def _check_clean(page: str) -> None:
    assert "<img" not in page
    assert "\u202e" not in page
    assert "\x1b" not in page


def test_the_log_is_shown_page_by_page_with_each_event_one_click_away(terminal: Terminal) -> None:
    job_id = _long_job(terminal)
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        log = f"/jobs/{job_id}/log"
        last = visitor.get(log)
        total = int(re.findall(r"of ([\d,]+) events", last)[0])
        assert total > 300
        assert f"{total - 299} to {total} of {total} events" in last
        assert "lead#1" in last
        assert "helper#2" in last
        _check_clean(last)

        older = re.search(r'rel="prev" href="([^"]+)"', last)
        assert older is not None
        first = visitor.get(log + unescape(older[1]))
        assert f"1 to {total - 300} of {total} events" in first
        assert 'rel="prev"' not in first

        one_run = visitor.get(f"{log}?run={job_id}-1")
        assert "helper#2, " not in one_run
        assert f"of {total - 5} events" in one_run
        _filters(visitor, log)
        _events(visitor, f"/jobs/{job_id}/runs/{job_id}-1/events")
        _checks(visitor, job_id)


def _filters(visitor: Visitor, log: str) -> None:
    found = visitor.client.get(log, params={"filter": '.type == "callDelegate" || .type == "finishRun"'}).text
    assert "1 to 3 of 3 events" in found
    assert "No event is selected" in visitor.client.get(log, params={"filter": ".stepNumber > 999"}).text
    for wrong, problem in (
        (".type ==", "expected a value"),
        ('.typ == "x"', "no event has a field .typ"),
        ("<b>", "column 1"),
    ):
        page = visitor.client.get(log, params={"filter": wrong}).text
        assert re.search(rf'id="problem"[^>]*>[^<]*{re.escape(problem)}', page), page[:3000]
        assert 'aria-invalid="true"' in page
        assert "lead#1" in page


def _events(visitor: Visitor, events: str) -> None:
    first, second = visitor.get(f"{events}/1"), visitor.get(f"{events}/3")
    assert "it begins the log" in first
    assert 'rel="prev"' not in first
    assert "its content has this digest, and its hash follows event 2" in second
    assert f'href="{events}/2"' in second
    assert f'href="{events}/4"' in second
    _check_clean(second)
    line = visitor.client.get(f"{events}/3/line")
    assert line.headers["content-type"] == "application/json"
    assert json.loads(line.text)["digest"] in second
    assert "has no event" in visitor.get(f"{events}/99999", status=404)
    assert "has no event" in visitor.get(f"{events}/0", status=404)


def _checks(visitor: Visitor, job_id: str) -> None:
    assert f'href="/jobs/{job_id}/check">verify and replay' in visitor.get(f"/jobs/{job_id}")
    checked = _texts(visitor.get(f"/jobs/{job_id}/check"))
    assert "no finding: every digest, hash and kept head matches" in checked
    assert "no finding: every decision and request follows from the log" in checked
    assert re.search(r'status good"[^>]*>verify<.*status good"[^>]*>replay<', visitor.get(f"/jobs/{job_id}"))


def test_damage_is_named_and_the_rest_is_shown(terminal: Terminal) -> None:
    job_id = _long_job(terminal)
    path = terminal.log_of(f"{job_id}-1")
    lines = path.read_bytes().splitlines(keepends=True)
    lines[9] = lines[9].replace(b"Number", b"Numbex", 1)
    path.write_bytes(b"".join(lines))
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        log = visitor.get(f"/jobs/{job_id}/log")
        assert "records before it that can be read: 9" in log
        assert f"/runs/{job_id}-1/events/9" in log
        assert f"/runs/{job_id}-1/events/10" not in log
        assert f"/runs/{job_id}-2/events/1" in log
        one_run = visitor.get(f"/jobs/{job_id}/log?run={job_id}-1")
        assert "1 to 9 of 9 events" in one_run
        assert "its hash follows event 8" in visitor.get(f"/jobs/{job_id}/runs/{job_id}-1/events/9")
        assert "line 10" in visitor.get(f"/jobs/{job_id}/runs/{job_id}-1/events/10", status=503)
        assert "line 10" in visitor.get(f"/jobs/{job_id}/runs/{job_id}-1/steps/2")
        assert "line 10" not in visitor.get(f"/jobs/{job_id}/runs/{job_id}-1/steps/1")
        assert "line 10" in visitor.get(f"/jobs/{job_id}/runs/{job_id}-1/steps/40", status=503)
        checked = visitor.get(f"/jobs/{job_id}/check")
        assert 'class="status long bad"' in checked
        assert f"{job_id}-1, event 10" in checked


def test_an_event_says_whether_it_follows_the_one_before_it() -> None:
    lines, _ = seal(EMPTY_LOG, [b'{"a":1}', b'{"a":2}', b'{"a":3}'])

    assert chain_problem(b"", lines[0], 1) == ""
    assert chain_problem(lines[0], lines[1], 2) == ""
    assert "does not follow" in chain_problem(lines[0], lines[2], 2)
    assert "does not match its digest" in chain_problem(lines[0], lines[1].replace(b"2", b"3", 1), 2)
    assert chain_problem(b"", b"not a line", 1) != ""


def test_a_filter_is_a_condition_or_says_what_is_wrong() -> None:
    assert filter_of("") == (None, "")
    assert filter_of(".stepNumber > 5")[1] == ""
    assert filter_of('.type == "x')[1].startswith("column 10: a quote is not closed")
    assert filter_of(".x" * 600)[0] is None
