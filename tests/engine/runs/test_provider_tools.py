"""Tools that a provider runs itself: which are offered, recorded, and shown to a person."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts import Bench, Seen, crashing, expert, project_of, until_it_crashes, wait_for

from perstack.core.definitions.experts import Expert, ProviderToolOptions, WebToolOptions
from perstack.core.definitions.models import Price
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.to_toml import toml_of
from perstack.core.messages.adaptations import Adaptation
from perstack.core.messages.messages import ProviderToolPart
from perstack.errors import ProviderError, UsageError
from perstack.ports.provider import Generation, GenerationRequest, OfferedProviderTool, ProviderTool
from perstack.streams.events import TextDelta, ToolCall, ToolResult
from perstack.testing.crashing_storage import CrashPoint
from perstack.testing.scripted import Cost, ProviderUse, ScriptedProvider, Turn, text, tool, turn
from perstack_acp.updates import Updates, replay_updates
from perstack_tui.view.items import CallItem
from perstack_tui.view.transcript import Transcript

PAGE = "https://example.com"
SEARCH = ProviderUse(name="webSearch", input={"query": "Paris"}, result=f"Paris {PAGE}")
SEARCHES = Turn(text="It is Paris.", provider_tools=(SEARCH,))
LIMITS = WebToolOptions(max_uses=2)


def searching(**fields) -> Expert:
    options = ProviderToolOptions(web_search=LIMITS)
    return expert("a", provider_tools=("webSearch",), provider_tool_options=options, **fields)


def test_an_expert_is_offered_what_it_names_and_a_delegate_what_its_own_definition_names(bench: Bench) -> None:
    provider = ScriptedProvider({"[[a]]": [tool("b", {"query": "go"}), text("Done.")], "[[b]]": [text("Part.")]})
    wait_for(bench.host(provider, searching(delegates=("b",)), expert("b")).run("a", "q"))
    offered = {request.expert_key: request.provider_tools for request in provider.requests}
    assert offered == {"a": (OfferedProviderTool("webSearch", LIMITS),), "b": ()}


@pytest.mark.parametrize(
    ("permissions", "said"),
    [
        (Permissions(deny=("webSearch",)), "the rule webSearch of [experts.a.permissions].deny"),
        (Permissions(deny=("provider/*",)), "the rule provider/* of [experts.a.permissions].deny"),
        (Permissions(default="deny"), "the default of [experts.a.permissions]"),
        (Permissions(ask=("webSearch",)), "the rule webSearch asks, and the provider runs it"),
        (Permissions(default="ask"), "the default asks, and the provider runs it"),
    ],
)
def test_a_tool_that_a_rule_keeps_away_is_not_offered_and_the_log_says_why(
    bench: Bench, permissions: Permissions, said: str
) -> None:
    provider, seen = ScriptedProvider([turn(tool("think", {"thought": "x"})), text("Done.")]), Seen()
    host = bench.host(provider, searching(permissions=permissions))
    wait_for(host.run("a", "q", on_event=seen))
    assert all(request.provider_tools == () for request in provider.requests)
    first, *others = seen.of("startGeneration")
    assert said in first.unreachable["webSearch"]
    assert all(event.unreachable == {} for event in others)


def test_a_rule_of_a_run_above_holds_for_a_delegate(bench: Bench) -> None:
    provider = ScriptedProvider({"[[a]]": [tool("b", {"query": "go"}), text("Done.")], "[[b]]": [text("Part.")]})
    lead = expert("a", delegates=("b",), permissions=Permissions(deny=("webSearch",)))
    wait_for(bench.host(provider, lead, expert("b", provider_tools=("webSearch",))).run("a", "q"))
    assert [request.provider_tools for request in provider.requests] == [(), (), ()]


def test_a_use_is_recorded_with_its_result_and_the_log_verifies(bench: Bench) -> None:
    seen = Seen()
    host = bench.host([SEARCHES], searching())
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.text, job.usage.provider_tools) == ("It is Paris.", {"webSearch": 1})
    (event,) = seen.of("finishGeneration")
    assert event.message.provider_tools == (
        ProviderToolPart(id="use_1_0", tool_name="webSearch", args={"query": "Paris"}, result=f"Paris {PAGE}"),
    )
    assert wait_for(host.audit.replay(job.id)).ok
    assert wait_for(host.audit.verify(job.id)).ok


def test_a_resumed_job_is_offered_what_it_began_with(bench: Bench) -> None:
    script = [turn(tool("think", {"thought": "x"})), text("Done.")]
    with until_it_crashes():
        dying = bench.host(script, searching(), wrap=crashing(CrashPoint("after", 3)))
        wait_for(dying.run("a", "q", job_id="j"))
    provider = ScriptedProvider(script)
    job = wait_for(bench.host(provider, expert("a")).resume("j"))
    assert job.text == "Done."
    assert provider.requests
    assert all(request.provider_tools == (OfferedProviderTool("webSearch", LIMITS),) for request in provider.requests)


def test_a_paused_reply_is_no_result_and_the_next_step_goes_on(bench: Bench) -> None:
    seen = Seen()
    provider = ScriptedProvider([turn(text="I look.", finish_reason="paused"), text("Done.")])
    host = bench.host(provider, searching())
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.text, job.total_steps) == ("Done.", 2)
    assert seen.types()[1:7] == [
        *("startGeneration", "finishGeneration", "finishStep"),
        *("startGeneration", "finishGeneration", "finishStep"),
    ]
    assert [message.type for message in provider.requests[1].messages] == ["userMessage", "expertMessage"]
    assert wait_for(host.audit.replay(job.id)).ok


def test_what_the_passes_of_a_search_have_read_together_does_not_fill_the_context(bench: Bench) -> None:
    # each pass reads the context again, and the endpoint reports their sum
    often = Turn(
        provider_tools=(SEARCH,) * 9, tools=(tool("think", {"thought": "x"}),), usage=Cost(input_tokens=90_000)
    )
    seen = Seen()
    host = bench.host([often, text("Done.")], searching(context_window=20_000))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.status, job.text, job.usage.input_tokens) == ("completed", "Done.", 90_000)
    assert seen.of("startCompaction", "compactHistory") == []


def test_events_of_the_stream_show_a_use_like_a_call(bench: Bench) -> None:
    async def scenario() -> list:
        async with bench.host([SEARCHES], searching()).stream("a", "q") as events:
            return [event async for event in events]

    shown = [one for one in wait_for(scenario()) if isinstance(one, ToolCall | ToolResult)]
    (call, result) = shown
    assert (call.name, call.arguments, call.skill_name) == ("webSearch", {"query": "Paris"}, "provider")
    assert (result.name, result.text, result.is_error) == ("webSearch", f"Paris {PAGE}", False)
    assert not isinstance(call, TextDelta)


def test_the_terminal_program_and_editors_show_a_use_like_a_call(bench: Bench, tmp_path: Path) -> None:
    seen, transcript, updates = Seen(), Transcript(), Updates(tmp_path)
    host = bench.host([SEARCHES], searching())
    wait_for(host.run("a", "q", on_event=seen))
    told = [update for event in seen.events for update in updates.of(event)]
    for event in seen.events:
        transcript.apply(event)
    (item,) = [item for item in transcript.root.items if isinstance(item, CallItem)]
    assert (item.activity.name, item.activity.result) == ("webSearch", f"Paris {PAGE}")
    (event,) = seen.of("finishGeneration")
    again = list(replay_updates([event.message]))
    for updates_of in (told, again):
        (shown,) = [one for one in updates_of if one.session_update == "tool_call"]
        assert (shown.title, shown.status, shown.raw_input) == ("webSearch Paris", "completed", {"query": "Paris"})


def test_a_price_of_the_definition_holds_for_uses_too(bench: Bench) -> None:
    price = Price(name="scripted/scripted", input=1.0, output=1.0, uses={"webSearch": 10.0})
    job = wait_for(bench.host([SEARCHES], searching(), prices=(price,)).run("a", "q"))
    assert job.usage.cost_usd == 0.01
    unpriced = Price(name="scripted/scripted", input=1.0, output=1.0)
    job = wait_for(bench.host([SEARCHES], searching(), prices=(unpriced,)).run("a", "q"))
    assert job.usage.cost_usd is None


class OneTool(ScriptedProvider):
    """A provider that runs one tool."""

    tools = (ProviderTool("webSearch", "searchOfTheirs", frozenset({"maxUses"})),)


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        (("webSerch",), "experts.a.providerTools[0]: provider scripted has no tool `webSerch`; it has: webSearch; did"),
        (("webSearch", "x"), "experts.a.providerTools[1]: provider scripted has no tool `x`; it has: webSearch"),
    ],
)
def test_a_run_with_an_unknown_tool_does_not_begin(bench: Bench, tools: tuple[str, ...], said: str) -> None:
    host = bench.host(OneTool([text("never")]), expert("a", provider_tools=tools), expert("b", delegates=("a",)))
    for key in ("a", "b"):
        with pytest.raises(UsageError) as caught:
            wait_for(host.run(key, "q"))
        assert str(caught.value).startswith(said)
    assert wait_for(host.jobs.list()).jobs == ()


def test_a_tool_may_have_another_name_for_one_provider(bench: Bench) -> None:
    provider = OneTool([text("Done.")])
    searcher = expert("a", provider_tools=("searchOfTheirs",))
    wait_for(bench.host(provider, searcher).run("a", "q"))
    assert provider.requests[0].provider_tools == (OfferedProviderTool("webSearch"),)


class Refusing(ScriptedProvider):
    """An endpoint that does not take the tool that it should run itself."""

    async def generate(self, request: GenerationRequest, on_delta) -> Generation:
        if request.provider_tools:
            self.requests.append(request)
            raise ProviderError("web_search is not supported by this model", name="BadRequest", status_code=400)
        return await super().generate(request, on_delta)

    def adapt(self, request: GenerationRequest, error: ProviderError) -> list[Adaptation]:
        return [Adaptation(part="providerTool", form="omitted", name=tool.name) for tool in request.provider_tools]


def test_a_tool_that_the_endpoint_refuses_is_left_out_with_one_line_in_all_runs_of_the_job(bench: Bench) -> None:
    turns = [turn(tool("b", {"query": "go"})), text("Done.")]
    provider, seen = Refusing({"[[a]]": turns, "[[b]]": [text("Part.")]}), Seen()
    host = bench.host(provider, searching(delegates=("b",)), expert("b", provider_tools=("webSearch",)))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert job.text == "Done."
    assert [bool(request.provider_tools) for request in provider.requests] == [True, False, False, False]
    refused, learned = seen.of("adaptRequest")
    assert refused.words == "without the provider's tool webSearch (scripted/scripted refused it)"
    assert learned.error is None
    assert not any(event.unreachable for event in seen.of("startGeneration")), "it is told once"
    assert wait_for(host.audit.replay(job.id)).findings == ()
    assert wait_for(host.audit.verify(job.id)).findings == ()


def test_an_option_that_the_provider_cannot_apply_is_refused(bench: Bench) -> None:
    options = ProviderToolOptions(web_search=WebToolOptions(allowed_domains=("example.com",)))
    searcher = expert("a", provider_tools=("webSearch",), provider_tool_options=options)
    with pytest.raises(UsageError, match="no such option for webSearch; it has: maxUses"):
        wait_for(bench.host(OneTool([]), searcher).run("a", "q"))


def test_a_definition_without_provider_tools_is_recorded_as_before_and_one_with_them_is_written_back() -> None:
    assert b"rovider" not in expert("a").to_json().replace(b'"provider":null', b"")
    written = toml_of(project_of(searching()))
    assert 'providerTools = [\n    "webSearch",\n]' in written
    assert "maxUses = 2" in written
