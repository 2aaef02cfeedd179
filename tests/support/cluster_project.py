"""The project of a cluster: its Experts, their scripts, their tool, and a listener."""

from __future__ import annotations

from typing import Any

from perstack.core.definitions.project import Workers
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
"""Schedules; each occurs every minute."""


def project(*, distributed: bool = False) -> str:
    """Return the perstack.toml. With `distributed`, delegates of Jobs are queued for all workers."""
    lines = ["maxSteps = 20", "[provider]", 'providerName = "scripted"']
    if distributed and "delegates" in Workers.model_fields:  # older versions cannot
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
from perstack.toolkit import ToolContext, Toolkit

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
    """An Expert, with the expected totals of its undisturbed Job."""

    turns: tuple[tuple[str, ...], ...]
    """The tools called in each reply."""
    delegates: tuple[str, ...] = ()
    seconds: float = 0.0
    """Duration of the second reply in seconds, if longer than usual."""

    @property
    def steps(self) -> int:
        """Steps in the whole tree."""
        return len(self.turns) + sum(KINDS[one].steps for turn in self.turns for one in turn if one in self.delegates)

    @property
    def appends(self) -> int:
        """Calls of the ledger in the whole tree."""
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
    """Return the script of all Experts. Each reply takes `delay` milliseconds."""
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
    """Return the Expert for the Job with this number."""
    return ("plain", "both", "boss", "asker", "plain", "boss", "asker", "plain", "boss", "slow")[number % 10]
