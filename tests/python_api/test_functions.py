"""`Expert(…, tools=[find_order])`: functions of a program are tools, and a definition has their names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts import wait_for

from perstack import Expert, Host, Overrides, PluginError, ToolContext, UsageError, tool
from perstack.core.definitions.skills import PluginSkill
from perstack.core.messages.messages import ToolMessage
from perstack.ports.provider import GenerationRequest
from perstack.testing.scripted import ScriptedProvider, text, turn
from perstack.testing.scripted import tool as use


def find_order(number: str) -> str:
    """Find an order.

    Args:
        number: as on the receipt
    """
    return f"order {number}"


@tool(effect="readOnly", name="count")
async def count_orders(context: ToolContext, since: str = "") -> dict[str, object]:
    """Count the orders."""
    return {"orders": 3, "in": context.workspace.name, "since": since}


def clerk(*functions: object, name: str = "clerk", **keys) -> Expert:
    return Expert(name=name, instruction=f"[[{name}]]", tools=[*functions], **keys)


def results_of(request: GenerationRequest) -> list[str]:
    last = request.messages[-1]
    parts = last.contents if isinstance(last, ToolMessage) else ()
    return ["".join(getattr(content, "text", "") for content in part.contents) for part in parts]


def host_of(folder: Path, model: ScriptedProvider, *experts: Expert) -> Host:
    chosen = Overrides(provider="scripted")
    return Host.of(experts=experts, workspace=folder, env={}, overrides=chosen, plugins=[model])


def test_plain_and_async_functions_with_and_without_a_context_are_tools(tmp_path: Path) -> None:
    model = ScriptedProvider([turn(use("find_order", {"number": "7"}), use("count", {"since": "May"})), text("Done.")])
    host = host_of(tmp_path, model, clerk(find_order, count_orders))
    assert host.run_sync("clerk", "Where is 7?").text == "Done."
    offered = {spec.name: spec for spec in model.requests[0].tools if spec.skill_name == "tools"}
    assert {name: spec.effect for name, spec in offered.items()} == {"find_order": "sideEffect", "count": "readOnly"}
    assert offered["find_order"].input_schema["properties"] == {
        "number": {"type": "string", "description": "as on the receipt"}
    }
    assert results_of(model.requests[1]) == ["order 7", f'{{"orders":3,"in":"{tmp_path.name}","since":"May"}}']
    assert host.project.experts["clerk"].tools == ()


def test_two_experts_have_functions_of_one_name_each_its_own(tmp_path: Path) -> None:
    def look() -> str:
        """Look."""
        return "in the shop"

    def other() -> str:
        """Look."""
        return "in the store"

    other.__name__ = "look"
    boss = clerk(look, name="boss", delegates=("hand",))
    calls = turn(use("look", {}), use("hand", {"query": "go"}))
    model = ScriptedProvider(
        {"[[boss]]": [calls, text("Done.")], "[[hand]]": [use("look", {}), text("ok")]},
    )
    host = host_of(tmp_path, model, boss, clerk(other, name="hand"))
    assert host.run_sync("boss", "Go.").text == "Done."
    found = [result for request in model.requests for result in results_of(request)]
    assert {"in the shop", "in the store"} <= {*found}


def test_a_job_is_resumed_by_a_program_that_gives_the_functions_again_and_by_no_other(tmp_path: Path) -> None:
    def model() -> ScriptedProvider:
        return ScriptedProvider([use("find_order", {"number": "7"}), text("Done.")])

    host = host_of(tmp_path, model(), clerk(find_order, count_orders))
    job = host.run_sync("clerk", "Where is 7?", job_id="one")
    assert job.status == "completed"

    stopped = Host.of(
        experts=[clerk(find_order, count_orders)],
        workspace=tmp_path,
        env={},
        overrides=Overrides(provider="scripted", max_steps=1),
        plugins=[model()],
    )
    assert stopped.run_sync("clerk", "Where is 7?", job_id="two").status == "stoppedByMaxSteps"
    without = wait_for(host_of(tmp_path, model(), clerk()).resume("two", max_steps=5))
    assert without.status == "stoppedByError"
    assert without.error is not None
    assert (
        "Expert 'clerk' has Python functions (find_order, count) that this program does not provide: run it from a"
        " program that does, with Expert(name='clerk', …, tools=[find_order, count])" in without.error
    )
    fewer = wait_for(host_of(tmp_path, model(), clerk(find_order)).resume("two", max_steps=5))
    assert fewer.error is not None
    assert "count: the Run began with this Python function" in fewer.error
    done = wait_for(host_of(tmp_path, model(), clerk(find_order, count_orders)).resume("two", max_steps=5))
    assert (done.status, done.text) == ("completed", "Done.")


def test_a_definition_in_use_can_get_functions_later(tmp_path: Path) -> None:
    model = ScriptedProvider([use("find_order", {"number": "7"}), text("Done.")])
    host = host_of(tmp_path, model, clerk())
    project = host.project
    host.use(project.model_copy(update={"experts": {"clerk": clerk(find_order)}}))
    assert host.run_sync("clerk", "Where is 7?").text == "Done."
    assert results_of(model.requests[1]) == ["order 7"]


def test_what_cannot_be_a_tool_is_refused_in_one_line(tmp_path: Path) -> None:
    def untyped(number):
        """Find."""

    def find(a: int) -> int:
        """Find."""
        return a

    model = ScriptedProvider([text("Done.")])
    with pytest.raises(PluginError, match="parameter number has no type; annotate it, as in `number: str`"):
        host_of(tmp_path, model, clerk(untyped))
    with pytest.raises(PluginError, match="has two tools 'find'; rename one"):
        host_of(tmp_path, model, clerk(find, find))
    with pytest.raises(UsageError, match=r"takes functions, as in tools=\[find_order\], not str"):
        clerk("find_order")
    with pytest.raises(UsageError, match="a skill is named `tools`, like the skill with the functions: rename it"):
        clerk(find_order, skills=(PluginSkill(name="tools", plugin="x"),))
    with pytest.raises(UsageError, match="find_order: a Python function cannot be written as TOML"):
        host_of(tmp_path, model, clerk(find_order)).project.to_toml()


def test_no_record_has_functions_and_none_is_read_from_one() -> None:
    expert = clerk(find_order)
    line = expert.to_json()
    assert b'"functions":["find_order"]' in line
    again = Expert.model_validate_json(line[:-1] + b',"tools":["os.system"]}')
    assert again.tools == ()
    assert again == expert.model_copy(update={"tools": ()})
