"""Cost of a budget per step: the same Job with and without one, in turns, in one process.

    .venv/bin/python bench/budget.py [steps] [rounds]

The model answers at once, so all of the work is the host's. Jobs of both kinds alternate, and the median of each
counts. Processor time is measured: a budget waits for nothing, and makes no sync.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.models import Price
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import Overrides
from perstack.host import Host
from perstack.ports.provider import GenerationRequest
from perstack.testing.scripted import ScriptedProvider, TurnLike, text, tool, turn

EXPERT = Expert(key="bench", instruction="Thinks, again and again.")
PRICE = Price(name="scripted/scripted", input=1, output=10)


def script(steps: int) -> ScriptedProvider:
    def reply(request: GenerationRequest) -> TurnLike:
        number = len(request.messages) // 2
        if number >= steps - 1:
            return text("done", usage=(1000, 50))
        return turn(tool("think", {"thought": f"thought {number}"}), usage=(1000, 50))

    return ScriptedProvider(reply)


async def measure_step(steps: int, overrides: Overrides) -> float:
    """Return the processor milliseconds per step of one Job."""
    with tempfile.TemporaryDirectory(prefix="perstack-bench-") as folder:
        host = Host(
            Project(experts={EXPERT.key: EXPERT}, prices=(PRICE,)),
            workspace=Path(folder),
            env={},
            overrides=overrides,
            plugins=[script(steps)],
        )
        async with host:
            began = time.process_time()
            job = await host.run(EXPERT.key, "go")
            seconds = time.process_time() - began
    if job.status != "completed":
        raise RuntimeError(job.error or job.status)
    return seconds * 1000 / steps


async def main(steps: int, rounds: int) -> None:
    unlimited = Overrides(provider="scripted", max_steps=0)
    kinds = {
        "without a budget": unlimited,
        "maxTokens": Overrides(provider="scripted", max_steps=0, max_tokens=10**9),
        "maxCost": Overrides(provider="scripted", max_steps=0, max_cost=10**6),
    }
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for name in kinds:
        await measure_step(20, kinds[name])
    for _ in range(rounds):
        for name, overrides in kinds.items():
            times[name].append(await measure_step(steps, overrides))
    base = median(times["without a budget"])
    for name, step_times in times.items():
        print(f"{name}: {median(step_times):.2f} ms a step, {median(step_times) - base:+.2f}")


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    asyncio.run(main(*numbers, *(200, 15)[len(numbers) :]))
