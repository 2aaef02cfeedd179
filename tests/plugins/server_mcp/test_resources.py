"""Jobs and Experts as resources, with completion and subscriptions, and prompts."""

from __future__ import annotations

import json

import pytest
from editor import ERAS, attached, structure
from hosts import wait_for
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated
from mcp_types import (
    ResourceTemplateReference,
    ResourceUpdatedNotification,
    TextContent,
    TextResourceContents,
)
from terminal import Terminal, reply


def text_of(read) -> str:
    (content,) = read.contents
    assert isinstance(content, TextResourceContents)
    return content.text


@pytest.mark.parametrize("era", ERAS)
def test_jobs_runs_checkpoints_and_experts_can_be_read(terminal: Terminal, era: str) -> None:
    terminal.script(solo=[reply("", ("think", {"thought": "x"})), reply("Done.")])

    async def work() -> None:
        async with attached(terminal, era=era) as editor:
            client = editor.client
            job_id = structure(await editor.call("solo", query="Do it"))["id"]
            listed = await client.list_resources()
            assert [resource.uri for resource in listed.resources][:2] == ["perstack://jobs", "perstack://experts/solo"]
            assert "perstack://experts/@team%2Flead" in {resource.uri for resource in listed.resources}
            templates = {one.uri_template for one in (await client.list_resource_templates()).resource_templates}
            assert templates == {
                "perstack://jobs/{id}",
                "perstack://checkpoints/{id}",
                "perstack://runs/{id}/events",
                "perstack://experts/{key}",
            }
            jobs = json.loads(text_of(await client.read_resource("perstack://jobs")))
            assert [job["id"] for job in jobs["jobs"]] == [job_id]
            job = json.loads(text_of(await client.read_resource(f"perstack://jobs/{job_id}")))
            assert (job["status"], job["text"]) == ("completed", "Done.")
            events = text_of(await client.read_resource(f"perstack://runs/{job_id}-1/events")).splitlines()
            place = next(json.loads(line)["checkpointId"] for line in events if '"finishStep"' in line)
            checkpoint = json.loads(text_of(await client.read_resource(f"perstack://checkpoints/{place}")))
            assert checkpoint["messages"][1]["contents"][0]["text"] == "Do it"
            expert = json.loads(text_of(await client.read_resource("perstack://experts/@team%2Flead")))
            assert expert["key"] == "@team/lead"
            for wrong in (
                "perstack://jobs/none",
                "perstack://nothing",
                "perstack://jobs/../../etc",
                "file:///etc/passwd",
            ):
                with pytest.raises(MCPError):
                    await client.read_resource(wrong)

    wait_for(work(), 60)


def test_ids_are_completed(terminal: Terminal, era: str) -> None:
    terminal.script(solo=[reply("", ("think", {"thought": "x"})), reply("Done.")])

    async def work() -> None:
        async with attached(terminal, era=era) as editor:
            job_id = structure(await editor.call("solo", query="Do it"))["id"]

            async def completed(template: str, name: str, typed: str) -> list[str]:
                reference = ResourceTemplateReference(uri=template)
                return (await editor.client.complete(reference, {"name": name, "value": typed})).completion.values

            assert await completed("perstack://jobs/{id}", "id", job_id[:4]) == [job_id]
            assert await completed("perstack://runs/{id}/events", "id", "") == [f"{job_id}-1"]
            places = await completed("perstack://checkpoints/{id}", "id", f"{job_id}-1-")
            assert places
            assert all(place.startswith(f"{job_id}-1-") for place in places)
            assert await completed("perstack://experts/{key}", "key", "@t") == ["@team/lead"]
            assert await completed("perstack://jobs/{id}", "id", "no such") == []

    wait_for(work(), 60)


SLOW = {**reply("", ("think", {"thought": "x"})), "delayMs": 300}


@pytest.mark.filterwarnings("ignore:resources/(un)?subscribe is removed")
def test_who_subscribes_to_a_job_is_told_when_it_moves_on(terminal: Terminal) -> None:
    terminal.script(solo=[SLOW, SLOW, reply("Done.")])
    uris: list[str] = []

    async def hear(message: object) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            uris.append(message.params.uri)

    async def work() -> None:
        async with attached(terminal, message_handler=hear) as editor:
            job_id = structure(await editor.call("solo", query="Do it", wait=False))["id"]
            uri = f"perstack://jobs/{job_id}"
            await editor.client.subscribe_resource(uri)
            await editor.wait_for_status(job_id, "completed")
            while not uris:
                await editor.job(job_id)
            assert set(uris) == {uri}
            await editor.client.unsubscribe_resource(uri)

    wait_for(work(), 60)


def test_who_listens_to_a_run_is_told_too(terminal: Terminal) -> None:
    terminal.script(solo=[SLOW, SLOW, reply("Done.")])

    async def work() -> None:
        async with attached(terminal, era="stateless") as editor:
            job_id = structure(await editor.call("solo", query="Do it", wait=False))["id"]
            uri = f"perstack://runs/{job_id}-1/events"
            async with editor.client.listen(resource_subscriptions=[uri]) as changes:
                async for event in changes:
                    assert event == ResourceUpdated(uri=uri)
                    break

    wait_for(work(), 60)


@pytest.mark.parametrize("era", ERAS)
def test_each_expert_has_a_prompt(terminal: Terminal, era: str) -> None:
    async def work() -> None:
        async with attached(terminal, era=era) as editor:
            prompts = (await editor.client.list_prompts()).prompts
            assert {prompt.title for prompt in prompts} == {"solo", "@team/lead", "researcher"}
            tools = {tool.name for tool in (await editor.client.list_tools()).tools}
            assert {prompt.name for prompt in prompts} <= tools
            filled = await editor.client.get_prompt("solo", {"query": "Count the files"})
            (message,) = filled.messages
            assert isinstance(message.content, TextContent)
            assert message.content.text.endswith("Count the files")
            assert "tool solo" in message.content.text
            with pytest.raises(MCPError, match="needs a query"):
                await editor.client.get_prompt("solo", {})
            with pytest.raises(MCPError, match="Unknown prompt"):
                await editor.client.get_prompt("nobody", {"query": "x"})

    wait_for(work(), 60)
