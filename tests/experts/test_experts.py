"""Every Expert that ships with the project is loaded and run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts import wait_for
from terminal import trusting

from perstack.core.definitions.settings import Overrides
from perstack.host import Host
from perstack.testing.scripted import ScriptedProvider, text, tool, turn
from perstack.trust.definition_files import load_project

ROOT = Path(__file__).parents[2]
LOADED = load_project(ROOT / "perstack.toml")


def test_the_shipped_definitions_have_no_problem() -> None:
    assert LOADED.warnings == ()
    assert set(LOADED.project.experts) >= {"editor", "writer"}


@pytest.mark.parametrize("key", sorted(LOADED.project.experts))
def test_each_shipped_expert_runs_and_may_call_what_it_is_told_of(key: str, tmp_path: Path) -> None:
    expert = LOADED.project.experts[key]
    delegates = [tool(name, {"query": "a part"}) for name in expert.delegates]
    script = {one: [text(f"{one} is done")] for one in LOADED.project.experts}
    script[key] = [turn(*delegates, text="to work"), text("done")] if delegates else [text("done")]
    provider = ScriptedProvider(script)
    with trusting(ROOT):
        host = Host(
            LOADED.project,
            workspace=tmp_path,
            env={},
            overrides=Overrides(provider="scripted"),
            plugins=[provider],
        )
        job = wait_for(host.run(key, "a query"))
    assert (job.status, job.text) == ("completed", "done")
    offered = {spec.name for spec in provider.requests[0].tools}
    assert {*expert.delegates, *(name for skill in expert.skills for name in skill.pick)} <= offered
