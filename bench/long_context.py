"""The figures of docs/long-jobs.md: many steps in a small context window, in process, on an instant scripted model.

python bench/long_context.py --steps 5000 --window 32000
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import Overrides
from perstack.core.messages.messages import Message
from perstack.host import Host
from perstack.ports.provider import Generation, GenerationRequest
from perstack.testing.scripted import Cost, ScriptedProvider, Turn, text, tool, turn

RESULT = "twenty bytes of text"
"""As in bench.py."""


@dataclass
class Endpoint:
    """Model endpoint that counts what it receives, and how much of it begins like the request before (cache hits)."""

    steps: int
    times: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    """Processor time of this process, which other processes on the machine disturb less than elapsed time."""
    memory: list[float] = field(default_factory=list)
    sent: int = 0
    cached: int = 0
    summaries: int = 0
    _sizes: dict[int, int] = field(default_factory=dict)
    _latest: list[Message] = field(default_factory=list)

    def reply(self, request: GenerationRequest) -> Turn:
        if not request.tools:
            self.summaries += 1
            return text("Notes: files were read.", usage=(2_000, 50))
        self.times.append(time.perf_counter())
        self.busy.append(time.process_time())
        if request.step % 250 == 0:
            self.memory.append(resident_mb())
        messages = list(request.messages)
        sizes = {id(message): self._sizes.get(id(message)) or len(message.to_json()) // 4 for message in messages}
        shared = 0
        for message, earlier in zip(messages, self._latest, strict=False):
            if message is not earlier:
                break
            shared += sizes[id(message)]
        tokens = sum(sizes.values()) + 1_500
        self._sizes, self._latest = sizes, messages
        self.sent += tokens
        self.cached += shared + 1_500 if shared else 0
        if request.step >= self.steps:
            return text("done", usage=(tokens, 5))
        read = tool("readTextFile", {"path": f"f{request.step % 7}.txt"})
        return turn(read, usage=Cost(input_tokens=tokens, output_tokens=30))


class Model(ScriptedProvider):
    """Scripted model that keeps no requests."""

    async def generate(self, request: GenerationRequest, on_delta: object) -> Generation:
        self.requests.clear()
        return await super().generate(request, on_delta)  # type: ignore[arg-type]


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def measure_row(steps: int, window: int, compaction: str, storage: str) -> str:
    folder = Path(tempfile.mkdtemp(prefix="perstack-long-"))
    for number in range(7):
        (folder / f"f{number}.txt").write_text(RESULT)
    endpoint = Endpoint(steps)
    expert = Expert(key="a", instruction="Read.", context_window=window, compaction=compaction)
    overrides = Overrides(provider="scripted", max_steps=0)
    async with Host(
        Project(experts={"a": expert}, max_repeats=0),
        workspace=folder,
        storage=storage,
        env={},
        overrides=overrides,
        plugins=[Model(endpoint.reply)],
    ) as host:
        job = await host.run("a", "read on")
        assert job.status == "completed", job.error
        findings = (await host.audit.replay(job.id)).findings
        assert findings == (), findings
    times, tenth = endpoint.times, len(endpoint.times) // 10
    step_ms = (times[-1] - times[0]) / (len(times) - 1) * 1000
    cpu_ms = (endpoint.busy[-1] - endpoint.busy[0]) / (len(times) - 1) * 1000
    last_cpu_ms = (endpoint.busy[-1] - endpoint.busy[-tenth - 1]) / tenth * 1000
    disk = sum(path.stat().st_size for path in (folder / "perstack").rglob("*") if path.is_file()) / steps / 1000
    growth_mb = endpoint.memory[-1] - endpoint.memory[len(endpoint.memory) // 5]
    return (
        f"| {steps:,} | {window:,} | {compaction} | {storage.partition(':')[0]} | {step_ms:.1f} | {cpu_ms:.2f} |"
        f" {last_cpu_ms:.2f} | {disk:.2f} | {endpoint.memory[-1]:.0f} (+{growth_mb:.1f}) | {endpoint.summaries} |"
        f" {endpoint.cached / endpoint.sent:.0%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--window", type=int, action="append")
    parser.add_argument("--storage", default="file:perstack")
    parser.add_argument("--compaction", default="auto")
    options = parser.parse_args()
    print(
        "| steps | window | compaction | storage | ms a step | CPU ms a step | CPU ms in the last tenth | KB a step |"
        " MB (grown in the last 4/5) | summaries | cache hit rate |"
    )
    print(f"| {' | '.join(['---'] * 11)} |")
    for window in options.window or [8_000, 32_000]:
        print(asyncio.run(measure_row(options.steps, window, options.compaction, options.storage)), flush=True)


if __name__ == "__main__":
    main()
