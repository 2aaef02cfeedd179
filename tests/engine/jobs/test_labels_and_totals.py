"""Data about Jobs besides their status: labels, usage by Expert, version, and Runs."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from hosts import Bench, expert, wait_for
from hypothesis import given
from hypothesis import strategies as some

from perstack.core.jobs.job_choice import check_labels, has_labels, parse_labels
from perstack.core.jobs.summary import JobSummary
from perstack.errors import UsageError
from perstack.testing.scripted import text, tool, turn
from perstack.version import VERSION


def test_labels_are_in_the_log_in_the_summary_and_find_a_job(bench: Bench) -> None:
    host = bench.host(lambda request: "done", expert("a"))
    blue = wait_for(host.run("a", "q", labels={"team": "blue", "tier": "1"}))
    wait_for(host.run("a", "q", labels={"team": "red"}))
    assert blue.labels == {"team": "blue", "tier": "1"}
    assert wait_for(host.events(blue.coordinator_run_id))[0].event.labels == blue.labels
    found = wait_for(host.jobs.list(labels={"team": "blue"})).jobs
    assert [job.id for job in found] == [blue.id]
    assert wait_for(host.jobs.list(labels={"team": "blue", "tier": "2"})).jobs == ()


def test_a_continued_job_keeps_its_labels_and_gets_new_ones(bench: Bench) -> None:
    host = bench.host(lambda request: "done", expert("a"))
    job = wait_for(host.run("a", "q", labels={"team": "blue", "stage": "draft"}))
    job = wait_for(host.continue_job("a", "more", job_id=job.id, labels={"stage": "final"}))
    assert job.labels == {"team": "blue", "stage": "final"}


def test_labelled_jobs_are_found_page_by_page_among_many_others(bench: Bench) -> None:
    host = bench.host(lambda request: "done", expert("a"))
    wanted = []
    for n in range(12):
        job = wait_for(host.run("a", "q", labels={"n": str(n % 4)}))
        wanted += [job.id] if n % 4 == 0 else []
    ids, after = [], None
    while True:
        page = wait_for(host.jobs.list(limit=2, after=after, labels={"n": "0"}))
        ids += [job.id for job in page.jobs]
        after = page.next
        if after is None:
            break
    assert ids == wanted[::-1]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"": "x"}, "a key is 1 to 63"),
        ({"a b": "x"}, "a key is 1 to 63"),
        ({"a": "x" * 257}, "at most 256"),
        ({"a": "x\x1b[2J"}, "printable"),
        ({str(n): "" for n in range(33)}, "32 labels"),
    ],
)
def test_a_label_that_is_none_is_refused_before_anything_is_written(bench: Bench, labels, words: str) -> None:
    host = bench.host(lambda request: "done", expert("a"))
    with pytest.raises(UsageError, match=words):
        wait_for(host.run("a", "q", labels=labels))
    assert wait_for(host.jobs.list()).jobs == ()


@given(some.dictionaries(some.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}", fullmatch=True), some.text(max_size=20)))
def test_labels_that_are_taken_are_read_back_as_typed(labels: dict[str, str]) -> None:
    try:
        checked = check_labels(labels)
    except UsageError:
        return
    assert parse_labels(f"{key}={value}" for key, value in checked.items()) == checked
    assert has_labels(checked, checked)
    assert has_labels(checked, {})


def test_a_label_typed_without_a_value_or_with_two_is_refused() -> None:
    with pytest.raises(UsageError, match="KEY=VALUE"):
        parse_labels(["team"])
    with pytest.raises(UsageError, match="twice"):
        parse_labels(["team=a", "team=b"])
    assert parse_labels(["team=a", "team=a", "empty=", "eq=a=b"]) == {"team": "a", "empty": "", "eq": "a=b"}


def test_usage_is_told_by_expert_and_adds_up_to_the_jobs(bench: Bench) -> None:
    script = {
        "lead": [turn(tool("helper", {"query": "one"}), tool("helper", {"query": "two"}), usage=(10, 5)), text("end")],
        "helper": [turn(text="ok", repeat=2)],
    }
    job = wait_for(bench.host(script, expert("lead", delegates=["helper"]), expert("helper")).run("lead", "q"))
    by = job.usage_by_expert
    assert set(by) == {"lead", "helper"}
    assert by["lead"] + by["helper"] == job.usage
    assert by["helper"] == job.runs[1].usage + job.runs[2].usage


def test_job_json_names_the_coordinators_expert_the_version_and_the_limit(bench: Bench) -> None:
    host = bench.host(lambda request: "done", expert("a"), max_steps=7)
    job = wait_for(host.run("a", "q"))
    kept = json.loads(wait_for(host.storage.summary(job.id)))
    assert (kept["coordinatorExpertKey"], kept["runtimeVersion"], kept["maxSteps"]) == ("a", VERSION, 7)


def test_a_summary_of_an_older_version_is_still_read(bench: Bench) -> None:
    host = bench.host(lambda request: "done", expert("a"))
    job = wait_for(host.run("a", "q"))
    older = json.loads(job.to_json())
    for key in ("coordinatorExpertKey", "runtimeVersion", "usageByExpert"):
        del older[key]
    read = JobSummary.model_validate_json(json.dumps(older))
    assert (read.runtime_version, read.labels, read.usage_by_expert) == ("", {}, {})


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_the_runs_of_all_jobs_are_listed_page_by_page(bench: Bench, limit: int) -> None:
    host = bench.host(lambda request: "done", expert("a"))
    one = wait_for(host.run("a", "q"))
    wait_for(host.continue_job("a", "more", job_id=one.id))
    two = wait_for(host.run("a", "q"))
    wait_for(host.continue_job("a", "more", job_id=two.id))
    ids, after = [], None
    while True:
        page = wait_for(host.jobs.runs(limit=limit, after=after))
        assert len(page.runs) <= limit
        ids += [(run.job_id, run.id) for run in page.runs]
        after = page.next
        if after is None:
            break
    assert ids == [(job.id, f"{job.id}-{n}") for job in (two, one) for n in (1, 2)]
    with pytest.raises(UsageError, match="not a cursor of the list of Runs"):
        wait_for(host.jobs.runs(after="nonsense"))


class _Nesting(HTMLParser):
    """An HTML parser that checks that each element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.shown: list[tuple[int, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.shown.append((self.open.count("ul"), data))


def test_a_notebook_shows_the_result_the_tree_of_runs_and_the_cost_escaped(bench: Bench) -> None:
    evil = "<script>alert(1)</script> & \x1b[31m"
    turns = {"[[a]]": [tool("b", {"query": "x"}), text(evil)], "[[b]]": [tool("c", {"query": "x"}), text("b")]}
    experts = (expert("a", delegates=("b",)), expert("b", delegates=("c",)), expert("c"))
    job = wait_for(bench.host({**turns, "[[c]]": [text("c")]}, *experts).run("a", "q"))
    html, read = job._repr_html_(), _Nesting()
    assert "<script" not in html
    assert "\x1b" not in html
    read.feed(html)
    assert read.open == []
    assert (0, "<script>alert(1)</script> & [31m") in read.shown
    runs = [(depth, words.partition(" ")[0]) for depth, words in read.shown if depth]
    assert runs == [(1, "a"), (2, "b"), (3, "c")]
    assert any("4 steps" in words or "5 steps" in words for _, words in read.shown)
