"""What the workers of a cluster have to do: its Experts, what their models say, their tool, and what listens."""

from __future__ import annotations

from typing import Any

from perstack.core.workers import Workers
from perstack.dataclass import dataclass

_LEDGER = """[experts.{0}.skills.ledger]
type = "pluginSkill"
plugin = "cluster-ledger"
"""

_ASKS = """[experts.asker.skills.user]
type = "interactiveSkill"
[experts.asker.skills.user.tools.askUser]
description = "Ask"
inputJsonSchema = '{"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}'
"""

SCHEDULES = ("first", "second", "third", "fourth")
"""Each occurs every minute."""


def project(*, distributed: bool = False) -> str:
    """Its perstack.toml; with `distributed` a worker leaves the delegates of its Jobs to whoever has a place."""
    lines = ["maxSteps = 20", "[provider]", 'providerName = "scripted"']
    if distributed and "delegates" in Workers.model_fields:  # else it is a version that does not do that
        lines += ["[workers]", 'delegates = "distributed"']
    for name, kind in KINDS.items():
        lines += [f"[experts.{name}]", f'instruction = "You are {name}."']
        if kind.delegates:
            lines.append(f"delegates = {list(kind.delegates)}".replace("'", '"'))
        lines.append(_LEDGER.format(name))
    lines.append(_ASKS)
    for number, name in enumerate(SCHEDULES):
        overlap = ("skip", "queue")[number % 2]
        lines += [f"[schedules.{name}]", 'cron = "* * * * *"', f'expert = "timed"\nquery = "go"\noverlap = "{overlap}"']
    return "\n".join(lines)


PLUGIN = '''
"""A tool whose effects can be counted, and a listener that keeps what this process was told was written."""

import asyncio
import os
from hashlib import sha256

from perstack.ports.hooks import hookimpl
from perstack.ports.toolkit import ToolContext, Toolkit

kit = Toolkit("cluster-ledger", required_env=("CLUSTER_LEDGER",))
perstack_skills = kit.perstack_skills
APPENDS = os.O_WRONLY | os.O_APPEND | os.O_CREAT


@kit.tool(effect="sideEffect")
async def append(context: ToolContext) -> str:
    """Append a line."""
    await asyncio.sleep(0.05)
    file = os.open(context.env["CLUSTER_LEDGER"], APPENDS)
    try:
        os.write(file, f"{context.call.key}\\n".encode())
        os.fsync(file)
    finally:
        os.close(file)
    await asyncio.sleep(0.15)
    return f"kept {context.call.key}"


class Told:
    """Each event that was written, in a file of this process: what it has written survives its death."""

    path, file = "", -1

    def on_event(self, event: object, line: bytes) -> None:
        if b'","hash":"' not in line:
            return  # it is only shown
        path = f"{os.environ['CLUSTER_TOLD']}/{os.getpid()}"
        if path != self.path:
            self.path, self.file = path, os.open(path, APPENDS)
        os.write(self.file, f"{event.id} {sha256(line).hexdigest()}\\n".encode())


TOLD = Told()


@hookimpl
def perstack_listeners() -> list[object]:
    return [TOLD]
'''


@dataclass(frozen=True, slots=True)
class Kind:
    """An Expert, and what a Job of it comes to if nothing disturbs it."""

    turns: tuple[tuple[str, ...], ...]
    """The tools of each of its replies."""
    delegates: tuple[str, ...] = ()
    seconds: float = 0.0
    """How long its second reply takes, if it takes longer than others."""

    @property
    def steps(self) -> int:
        """Over its whole tree."""
        return len(self.turns) + sum(KINDS[one].steps for turn in self.turns for one in turn if one in self.delegates)

    @property
    def appends(self) -> int:
        """Calls of the ledger over its whole tree."""
        used = [one for turn in self.turns for one in turn]
        return used.count("append") + sum(KINDS[one].appends for one in used if one in self.delegates)


KINDS = {
    "plain": Kind((("append",), ("append",), ("append",), ())),
    "both": Kind((("append", "append"), ("append", "append"), ())),
    "side": Kind((("append",), ("append",), ())),
    "other": Kind((("append",), ())),
    "boss": Kind((("side", "other"), ("append",), ()), delegates=("side", "other")),
    "asker": Kind((("append",), ("askUser",), ("append",), ())),
    "slow": Kind((("append",), ("append",), ()), seconds=8.0),
    "timed": Kind((("append",), ())),
}

INPUT, OUTPUT = 100, 10
"""Tokens of each reply."""


def script(delay: float) -> dict[str, Any]:
    """What each Expert's model says, after so many milliseconds each time."""
    return {"experts": {name: {"turns": _turns(kind, delay)} for name, kind in KINDS.items()}}


def _turns(kind: Kind, delay: float) -> list[dict[str, Any]]:
    inputs: dict[str, dict[str, str]] = {"append": {}, "askUser": {"question": "Sure?"}}
    usage = {"inputTokens": INPUT, "outputTokens": OUTPUT}
    turns: list[dict[str, Any]] = []
    for number, used in enumerate(kind.turns):
        tools = [{"name": name, "input": inputs.get(name, {"query": "go"})} for name in used]
        after = kind.seconds * 1000 if kind.seconds and number == 1 else delay
        turns.append({"text": "" if used else "done", "tools": tools, "delayMs": after, "usage": usage})
    return turns


def kind_of(number: int) -> str:
    """Of the Job of that number."""
    return ("plain", "both", "boss", "asker", "plain", "boss", "asker", "plain", "boss", "slow")[number % 10]
