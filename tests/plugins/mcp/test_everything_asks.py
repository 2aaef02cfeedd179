"""The tools of server-everything that ask the client for something."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts import Seen, expert, project_of, results, wait_for
from mcp_bed import Bed

from perstack.core.definitions.settings import Overrides
from perstack.core.definitions.skills import McpStdioSkill
from perstack.host import Host
from perstack.testing.scripted import ScriptedProvider, text, tool

pytestmark = pytest.mark.timeout(350)  # the first time, packages are installed


def _host(bed: Bed, npm_servers: Path, script) -> Host:
    skill = McpStdioSkill(
        name="all",
        command=str(npm_servers / "mcp-server-everything"),
        args=("stdio",),
        timeout=90_000,
        sampling=True,
    )
    return Host(
        project_of(expert("a").model_copy(update={"skills": (skill,)})),
        workspace=bed.workspace,
        storage="file:perstack",
        env=bed.env,
        overrides=Overrides(provider="scripted"),
        plugins=[ScriptedProvider(script)],
    )


def test_its_form_is_put_to_a_person_and_answered(bed: Bed, npm_servers: Path) -> None:
    script, seen = {"[[a]]": [tool("trigger-elicitation-request"), text("ok")]}, Seen()
    job = wait_for(_host(bed, npm_servers, script).run("a", "q", on_event=seen), 60)
    assert job.asking is not None, results(seen)
    assert "name" in job.asking.requested_schema["properties"]
    done = wait_for(_host(bed, npm_servers, script).answer('{"name": "Ada"}', on_event=seen), 60)
    assert done.status == "completed"
    assert "Ada" in results(seen)[0]


def test_it_is_given_a_generation_of_the_runs_model(bed: Bed, npm_servers: Path) -> None:
    sampling = tool("trigger-sampling-request", {"prompt": "2 + 2?"})
    script, seen = {"[[a]]": [sampling, text("ok")], "You are": [text("four it is")]}, Seen()
    assert wait_for(_host(bed, npm_servers, script).run("a", "q", on_event=seen), 60).status == "completed"
    assert "four it is" in results(seen)[0]


def test_its_address_is_put_to_a_person_to_open(bed: Bed, npm_servers: Path) -> None:
    script, seen = {"[[a]]": [tool("trigger-url-elicitation", {"url": "https://example.com/x"}), text("ok")]}, Seen()
    job = wait_for(_host(bed, npm_servers, script).run("a", "q", on_event=seen), 60)
    assert job.asking is not None, results(seen)
    assert "https://example.com/x" in job.asking.text
    assert wait_for(_host(bed, npm_servers, script).answer("yes", on_event=seen), 60).status == "completed"
