"""Many tools: those beyond a budget are found by a search, and stay available."""

from __future__ import annotations

import json

from hosts import Bench, Seen, results, wait_for
from hypothesis import given
from hypothesis import strategies as st
from many_tools import City, mayor

from perstack.core.definitions.skills import ToolSpec
from perstack.core.messages.tool_search import AUTO_BUDGET_TOKENS, SEARCH_TOOL, divide, search, tokens_of
from perstack.testing.scripted import ScriptedProvider, text, tool


def names(request) -> list[str]:
    return [spec.name for spec in request.tools]


def test_an_expert_with_two_hundred_tools_finds_and_calls_the_right_one(bench: Bench) -> None:
    provider, seen = (
        ScriptedProvider([tool(SEARCH_TOOL, {"query": "delete museum"}), tool("deleteMuseum9"), text("ok")]),
        Seen(),
    )
    job = wait_for(bench.host(provider, mayor(), plugins=(City(),)).run("a", "q", on_event=seen))
    assert job.status == "completed"
    first, second, third = (names(request) for request in provider.requests)
    assert SEARCH_TOOL in first
    assert "deleteMuseum9" not in first
    shown = [spec for spec in provider.requests[0].tools if spec.skill_name == "city"]
    assert sum(map(tokens_of, shown)) <= AUTO_BUDGET_TOKENS
    found = [one["name"] for one in json.loads(results(seen)[0])["tools"]]
    assert second == [*first, *found], "what is found is added at the end: the prefix stays"
    assert third == second
    assert "deleteMuseum9" in found
    assert results(seen)[1] == "deleteMuseum9 done"


def test_a_continued_run_still_has_what_was_found(bench: Bench) -> None:
    script = [tool(SEARCH_TOOL, {"query": "deleteBudget9, setMayor9"}), text("found"), tool("setMayor9"), text("done")]
    provider, seen = ScriptedProvider(script), Seen()
    wait_for(bench.host(provider, mayor(), plugins=(City(),)).run("a", "q", job_id="job"))
    again = ScriptedProvider(script)
    job = wait_for(
        bench.host(again, mayor(), plugins=(City(),)).continue_job("a", "go on", job_id="job", on_event=seen)
    )
    assert job.status == "completed"
    assert {"deleteBudget9", "setMayor9"} <= set(names(again.requests[0]))
    assert results(seen) == ["setMayor9 done"]


def test_it_can_be_turned_off_and_on(bench: Bench) -> None:
    for choice, expected in (("off", 200), ("on", 0)):
        provider = ScriptedProvider([text("ok")])
        wait_for(bench.host(provider, mayor(tool_search=choice), plugins=(City(),)).run("a", "q"))
        offered = provider.requests[0].tools
        assert sum(spec.skill_name == "city" for spec in offered) == expected
        assert (SEARCH_TOOL in names(provider.requests[0])) is (choice == "on")
        assert "readTextFile" in names(provider.requests[0]), "the base skill is always shown"


def test_a_search_that_finds_nothing_tells_what_there_is(bench: Bench) -> None:
    seen = Seen()
    script = [tool(SEARCH_TOOL, {"query": "xyzzy"}), text("ok")]
    wait_for(bench.host(script, mayor(tool_search="on"), plugins=(City(),)).run("a", "q", on_event=seen))
    result = json.loads(results(seen)[0])
    assert result["tools"] == []
    assert len(result["names"]) + result["more"] == 200


def test_the_host_says_what_an_expert_is_offered(bench: Bench) -> None:
    offered = wait_for(bench.host([], mayor(), plugins=(City(),)).experts.tools("a"))
    assert len(offered.shown) + len(offered.deferred) > 200
    assert offered.problems == ()


specs = st.lists(
    st.builds(ToolSpec, name=st.text("abcXYZ", min_size=1), description=st.text(max_size=200)), max_size=60
)


@given(specs, st.sampled_from(["auto", "on", "off"]), st.text())
def test_every_tool_is_shown_or_deferred_and_a_search_finds_only_deferred_ones(found, choice, query) -> None:
    division = divide(((spec, True) for spec in found), choice)
    both = [spec for spec in (*division.shown, *division.deferred) if spec.name != SEARCH_TOOL]
    assert sorted(map(id, both)) == sorted(map(id, found))
    assert (SEARCH_TOOL in {spec.name for spec in division.shown}) is bool(division.deferred)
    assert {id(spec) for spec in search(query, division.deferred)} <= {id(spec) for spec in division.deferred}
    for spec in division.deferred:
        assert search(f"use {spec.name} please", division.deferred, limit=100)[0].name == spec.name
