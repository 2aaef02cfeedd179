"""A corpus of Jobs that every version must record, verify, replay and print in the same way.

Each seed stands for one Job: a random team on a scripted model, with questions, approvals, failures, limits, budgets,
delegates, compaction and resumes. The clock stands still and ids are fixed, so two versions that behave alike write
the same events. `tests/corpus.json` keeps a digest for each seed, made before the code was restructured:

    python tests/support/corpus.py             compare all seeds; print those that differ
    python tests/support/corpus.py --dump DIR  write what each digest stands for, to compare two versions with diff
    python tests/support/corpus.py --write     keep the digests of this version, for a deliberate change
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from approval_jobs import ME, files
from hosts import Bench, expert

from perstack.core.definitions.experts import Expert, Permissions
from perstack.core.definitions.models import Price
from perstack.core.definitions.project import Workspace
from perstack.core.definitions.settings import Budget
from perstack.core.jobs.summary import JobSummary
from perstack.errors import PerstackError
from perstack.host import Host
from perstack.testing.scripted import Turn, fail, text, tool, turn

DIGESTS = Path(__file__).parents[1] / "corpus.json"
SEEDS = 200
NAMES = ("boss", "left", "right", "leaf")
RULES = ("appendTextFile", "exec(*)", "todo", "left")
_WORKSPACE = Path("/tmp/perstack-corpus")
"""The same path for all versions: instructions name it, so request digests depend on it."""
_UNSTABLE = re.compile(r',?\s*"(durationMs|hash|digest|headHash)":\s*("[^"]*"|\d+)|,?\s*"sha256": "[^"]*"')
"""Fields that depend on the machine's speed, and the hashes over them."""


class StoppedClock:
    """A stopped clock, at a moment that depends on the seed."""

    def __init__(self, seed: int) -> None:
        self._now = 4_102_444_800_000 + seed * 60_000

    def now(self) -> int:
        return self._now


def random_turns(random: Random, name: str, delegates: tuple[str, ...]) -> Iterator[Turn]:
    """Yield the turns of one Expert: up to six steps, then a reply that usually ends its Run."""
    for number in range(random.randint(0, 5)):
        if random.random() < 0.1:
            yield fail(random.choice([400, 429, 500]), f"{name} failed", retryable=False)
        calls = [random_call(random, name, delegates, number) for _ in range(random.choice([1, 1, 1, 2, 3]))]
        if len(calls) > 1:  # only immediate calls: others' results arrive in any order
            calls = [tool("todo", {"newTodos": [f"{name} {number}"]}), tool("think", {"thought": name})][: len(calls)]
        yield turn(
            *calls,
            text=random.choice(["", f"{name} thinks."]),
            thinking=random.choice(["", "Hm."]),
            usage=(random.choice([20, 300, 900, 2_700]), random.randint(0, 90)),
        )
    if random.random() < 0.1:
        yield turn(text="cut", finish_reason=random.choice(["length", "refusal"]), usage=(5, 5))
    if random.random() < 0.2:
        yield turn(tool("attemptCompletion", {"result": f"{name} is done"}), usage=(3, 1))
    yield text(f"{name} says {random.random():.3f}", usage=(7, 7))


def random_call(random: Random, name: str, delegates: tuple[str, ...], number: int):
    """Return one call: of an existing tool, of an unknown one, or with invalid arguments."""
    calls = [
        tool("todo", {"newTodos": [f"{name} {number}"]}),
        tool("think", {"thought": "hm " * random.randint(1, 40)}),
        tool("appendTextFile", {"path": f"{name}.txt", "text": f"{number}\n"}),
        tool("writeTextFile", {"path": f"new/{name}{number}.txt", "text": "é\n" * random.randint(0, 50)}),
        tool("readTextFile", {"path": f"{random.choice(NAMES)}.txt"}),
        tool("readTextFile", {"path": random.choice(["nosuch", "../outside", "perstack.toml"])}),
        tool("exec", {"command": "echo", "args": [name, str(number)]}),
        tool("askUser", {"question": f"{name} asks {number}?"}),
        tool("noSuchTool", {"a": 1}),
        tool("todo", "not an object"),
        tool("appendTextFile", {"path": 7}),
    ]
    if delegates and random.random() < 0.5:
        return tool(random.choice(delegates), {"query": f"do {number}"})
    return random.choice(calls)


def random_team(random: Random) -> tuple[Expert, ...]:
    """Return four Experts: a boss with two delegates, one of which has a delegate."""
    delegates = {"boss": ("left", "right"), "left": ("leaf",)}
    more: dict[str, dict[str, object]] = {name: {} for name in NAMES}
    if random.random() < 0.2:
        more[random.choice(NAMES)]["budget"] = Budget(max_tokens=random.randint(500, 5_000))
    if random.random() < 0.15:
        more["boss"] |= {"context_window": 3_000}
    if random.random() < 0.2:
        more[random.choice(NAMES)]["max_steps"] = random.randint(1, 4)
    return tuple(
        expert(
            name,
            delegates=delegates.get(name, ()),
            ask=True,
            description=f"{name} works",
            **_existing_fields(more[name]),
        )
        for name in NAMES
    )


def _existing_fields(fields: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if name in Expert.model_fields}


def random_permissions(random: Random) -> Permissions | None:
    """Return None, or rules about the tools that are called."""
    if random.random() < 0.4:
        return None
    picked = {rule: random.choice(["ask", "ask", "deny"]) for rule in RULES if random.random() < 0.5}
    return Permissions(
        default="allow", **{kind: tuple(rule for rule, it in picked.items() if it == kind) for kind in ("ask", "deny")}
    )


def host_of(seed: int, workspace: Path) -> Host:
    """Return the Host of one Job of the corpus."""
    random = Random(seed)
    team = random_team(random)
    script = {member.key: list(random_turns(random, member.key, member.delegates)) for member in team}
    rules = random_permissions(random)
    limits = {"max_steps": random.randint(2, 12)} if random.random() < 0.2 else {}
    prices = (Price(name="scripted/scripted", input=1, output=10),) if random.random() < 0.5 else ()
    host = Bench(workspace, "file:perstack").host(
        script, *team, prices=prices, clock=StoppedClock(seed), max_retries=0, **limits
    )
    if rules is not None:
        host.use(host.project.model_copy(update={"permissions": rules}))
    if random.random() < 0.15:
        host.use(host.project.model_copy(update={"workspace": Workspace(snapshots=True)}))
    return host


async def drive(host: Host, seed: int) -> JobSummary | None:
    """Run the Job of one seed: start it, then answer, resume and continue it until nothing is left to do."""
    random = Random(-seed - 1)
    job_id = f"job{seed}"
    job = await host.run("boss", f"Query {seed}.", job_id=job_id, labels={"seed": str(seed % 7)})
    for _ in range(8):
        try:
            if job.status == "stoppedByInteractiveTool":
                answer = random.choice(["yes", "no"]) if job.asking is not None and job.asking.approval else "Take it."
                question_id = None if job.asking is None else job.asking.id
                job = await host.answer(answer, job_id=job_id, question_id=question_id, by=ME)
            elif job.status in ("stoppedByMaxSteps", "stoppedByError") and random.random() < 0.7:
                job = await host.resume(job_id)
            elif job.status == "completed" and random.random() < 0.3:
                job = await host.continue_job("boss", "And now?", job_id=job_id)
            else:
                break
        except PerstackError:  # a Job that cannot continue stays in the corpus as it is
            break
    return job


async def results_text(seed: int, workspace: Path) -> str:
    """Return all results of one Job of the corpus as text: events, summary, verify, replay and messages."""
    files(Bench(workspace, "file:perstack"), *(f"{name}.txt" for name in NAMES))
    async with host_of(seed, workspace) as host:
        await drive(host, seed)
        job_id, lines = f"job{seed}", []
        for log in await host.jobs.logs(job_id):
            lines += [f"{log.run_id} {line.decode()}" for line in log.lines]
        lines.append((await host.job(job_id)).to_json().decode())
        verified, replayed = await host.audit.verify(job_id), await host.audit.replay(job_id)
        lines += [f"verify {finding}" for finding in verified.findings]
        lines += [f"replay {finding}" for finding in replayed.findings]
        lines.append(f"replayed {replayed.checked}")
        lines.append(json.dumps(await host.exports.document(job_id), sort_keys=True, default=str))
    return "\n".join(stable(line, workspace) for line in lines) + "\n"


def stable(line: str, workspace: Path) -> str:
    """Return the line without parts that differ between machines or moments."""
    return _UNSTABLE.sub("", line.replace(str(workspace), "WORKSPACE"))


def digest_of(seed: int) -> tuple[str, str]:
    """Return the digest of one Job, and its text."""
    with _WORKSPACE.with_suffix(".lock").open("w") as lock:  # processes that run the corpus at the same time take turns
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(_WORKSPACE, ignore_errors=True)
        _WORKSPACE.mkdir(mode=0o700)
        try:
            found = asyncio.run(results_text(seed, _WORKSPACE))
        finally:
            shutil.rmtree(_WORKSPACE)
    return hashlib.sha256(found.encode()).hexdigest(), found


def main() -> int:
    """Compare, dump or store the digests. Return 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dump", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    digests: dict[str, str] = {}
    for seed in range(SEEDS):
        digests[str(seed)], results = digest_of(seed)
        if options.dump is not None:
            options.dump.mkdir(parents=True, exist_ok=True)
            (options.dump / f"{seed:03}.txt").write_text(results)
    if options.write:
        DIGESTS.write_text(json.dumps(digests, indent=1) + "\n")
        return 0
    stored = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
    differ = [seed for seed, digest in digests.items() if stored.get(seed) != digest]
    print(f"{len(digests)} Jobs, {len(differ)} differ: {' '.join(differ)}")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
