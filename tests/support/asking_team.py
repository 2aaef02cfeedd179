"""A team in which one delegate asks a person while another works, for as long as the test wants."""

from __future__ import annotations

import asyncio

from hosts import expert

from perstack.core.definitions.skills import PluginSkill
from perstack.testing.scripted import text, tool, turn
from perstack.toolkit import Toolkit

BOTH = turn(tool("asker", {"query": "go"}), tool("worker", {"query": "go"}))


class Gate:
    """A tool that blocks until the test lets it end."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.kit = Toolkit("gate")
        self.kit.tool(effect="readOnly")(self.work)

    async def work(self) -> str:
        """Work."""
        await self.may_end.wait()
        return "worked"


def team():
    skill = PluginSkill(name="gate", plugin="gate")
    return (
        expert("boss", delegates=("asker", "worker", "middle")),
        expert("middle", delegates=("asker",)),
        expert("asker"),
        expert("worker").model_copy(update={"skills": (skill,)}),
    )


def script(*asker, boss=BOTH):
    return {
        "[[boss]]": [boss, text("done")],
        "[[middle]]": [tool("asker", {"query": "go"}), text("middle")],
        "[[asker]]": [*asker, text("asked")],
        "[[worker]]": [tool("work"), text("worked")],
    }
