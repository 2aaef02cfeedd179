"""Experts whose only skill is a Toolkit of the test."""

from __future__ import annotations

from hosts import Bench, Seen, expert, wait_for
from pydantic import BaseModel, Field, SecretStr

from perstack.core.definitions.skills import PluginSkill
from perstack.testing.scripted import ScriptedProvider, ToolUse, text, turn
from perstack.toolkit import Toolkit


class Settings(BaseModel):
    sides: int = Field(default=6, ge=2)
    secret: SecretStr = SecretStr("")


def with_kit(key: str = "a", plugin: str = "kit", **settings):
    return expert(key).model_copy(update={"skills": (PluginSkill(name="mine", plugin=plugin, settings=settings),)})


def call(bench: Bench, kit: Toolkit, *uses: ToolUse, **settings) -> tuple[Seen, ScriptedProvider]:
    """Drive a Run that makes these calls in one step, and check that it completes."""
    seen, provider = Seen(), ScriptedProvider([turn(*uses), text("ok")])
    job = wait_for(bench.host(provider, with_kit(**settings), plugins=(kit,)).run("a", "q", on_event=seen))
    assert job.status == "completed"
    return seen, provider
