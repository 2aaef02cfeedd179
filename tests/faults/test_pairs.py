"""Two commands at once on one Job: one after the other would have made the same of it, or one of them is refused."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from command_model import (
    KINDS,
    STAGES,
    TOKENS,
    Op,
    Outcome,
    Planned,
    State,
    apply_command,
    explains,
    query_for,
    read_plan,
)
from hosts import Bench, expert, other_address
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from payment_tool import SKILL, till

from perstack.core.definitions.experts import Expert
from perstack.core.messages.messages import ExpertMessage
from perstack.core.runs.events import Event, StoredEvent
from perstack.core.runs.events.generations import FinishGeneration
from perstack.core.runs.events.tool_calls import FinishToolCall
from perstack.errors import Conflict, NotFound, UsageError
from perstack.host import Host
from perstack.oversight.cloud_events import CloudEvent
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import GenerationRequest
from perstack.ports.storage import RunRef
from perstack.testing.in_memory_storage import InMemoryStorages
from perstack.testing.scripted import Turn, fail, text, tool, turn

JOBS = ("alpha", "beta")
ALPHA, BETA = JOBS
HOUR = 3_600_000
DRIVES = ("run", "resume", "answer", "signal")
PAUSES = (0.0, 0.0, 0.0005, 0.002, 0.005)
"""Seconds by which the second begins later: before the first has done anything, up to when it is at its end."""
PLANS = st.lists(st.sampled_from(STAGES), max_size=4).map(tuple)
TRIED: Counter[tuple[str, str]] = Counter()


class Memory:
    """The storage that keeps everything in memory, as a plugin."""

    def __init__(self) -> None:
        self.stores = InMemoryStorages()

    @hookimpl
    def perstack_storages(self) -> list[InMemoryStorages]:
        return [self.stores]


class World:
    """A store, the Hosts on it, and what their Jobs do to the world."""

    def __init__(self, open_bench: Callable[[], Bench]) -> None:
        self.bench = open_bench()
        self.paid: Counter[str] = Counter()
        self.looked: Counter[str] = Counter()
        self.played: set[tuple[str, int]] = set()
        """The generations that have failed: by Job and place in its plan."""
        self.memory = Memory()
        self.hosts = [self.open() for _ in range(2)]

    def open(self) -> Host:
        payer = expert("payer", ask=True)
        skills = (*payer.skills, SKILL)
        payer = Expert.model_validate({**payer.model_dump(), "skills": skills})
        return self.bench.host(self.reply, payer, plugins=(till(self.paid, lambda key: "seen"), self.memory))

    def reply(self, request: GenerationRequest) -> Turn:
        """What the plan says next."""
        plan, nonce = read_plan(str(request.messages[0]))
        replies = sum(isinstance(message, ExpertMessage) for message in request.messages)
        if replies >= len(plan):
            return text("done", usage=(TOKENS, 0))
        stage, key = plan[replies], f"{nonce}-{replies}"
        if stage in ("fail", "limit") and (nonce, replies) not in self.played:
            self.played.add((nonce, replies))
            return fail(400, "no") if stage == "fail" else fail(429, "come back", retry_after=3600)
        if stage == "ask":
            return turn(tool("askUser", {"question": key}), usage=(TOKENS, 0))
        name = "pay" if stage == "pay" else "look"
        return turn(tool(name, {"key": key}), usage=(TOKENS, 0), delay_ms=3 if stage == "look" else 0)


class Pairs(RuleBasedStateMachine):
    """Two Hosts on one store, and a model of its Jobs."""

    make: Callable[[], Bench]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.world = World(self.make)
        self.jobs: dict[str, State] = dict.fromkeys(JOBS)
        self.logs: dict[str, dict[str, list[bytes]]] = {}
        self.shown: dict[str, list[bytes]] = {}
        self.nonces = count(1)

    def teardown(self) -> None:
        for host in self.world.hosts:
            self.runner.run(host.close())
        self.runner.close()

    @rule(
        kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)),
        jobs=st.sampled_from([(ALPHA, ALPHA)] * 3 + [(BETA, BETA), (ALPHA, BETA)]),
        hosts=st.tuples(st.integers(0, 1), st.integers(0, 1)),
        plans=st.tuples(PLANS, PLANS),
        signals=st.tuples(st.sampled_from("xyz"), st.sampled_from("xyz")),
        named=st.booleans(),
        pause=st.sampled_from(PAUSES),
    )
    def pair(self, kinds, jobs, hosts, plans, signals, named, pause) -> None:
        """Two at once."""
        ops = [self.op(*one, named) for one in zip(kinds, jobs, hosts, plans, signals, strict=True)]
        TRIED[min(kinds), max(kinds)] += 1
        self.perform(ops, pause)

    @rule(kind=st.sampled_from(DRIVES), job=st.sampled_from(JOBS), host=st.integers(0, 1), plan=PLANS)
    def alone(self, kind: str, job: str, host: int, plan: tuple[str, ...]) -> None:
        """One, so that Jobs come to every state."""
        op = self.op(kind, job, host, plan, "alone", named=False)
        expected = apply_command(self.jobs[job], op)
        (outcome,) = self.perform([op], 0)
        assert (self.jobs[job], outcome.accepted) == expected

    @rule(job=st.sampled_from([None, *JOBS]), host=st.integers(0, 1))
    def a_process_ends(self, job: str | None, host: int) -> None:
        """Another begins. It may have made a Job, and not begun it."""
        if job is not None and self.jobs[job] is None:
            self.runner.run(self.world.hosts[host].storage.create_job(job))
            self.jobs[job] = Planned((), "")
        self.runner.run(self.world.hosts[host].close())
        self.world.hosts[host] = self.world.open()

    def op(self, kind: str, job: str, host: int, plan: tuple[str, ...], signal: str, named: bool) -> Op:
        op = Op(kind, job, host, plan, f"n{next(self.nonces)}", signal=signal)
        state = self.jobs[job]
        if kind == "answer" and named and state is not None and state.status == "asks":
            asking = self.runner.run(self.world.hosts[0].job(job)).asking
            return Op(kind, job, host, question=state.question_count, question_id=asking.id)
        return op

    def perform(self, ops: Sequence[Op], pause: float) -> list[Outcome]:
        before, self.shown = dict(self.jobs), {job: [] for job in JOBS}
        outcomes = self.runner.run(self.at_once(ops, pause))
        for op, outcome in zip(ops, outcomes, strict=True):
            assert outcome.accepted or outcome.cancelled or op.job in outcome.refusal, (op, outcome)
            assert "\n" not in outcome.refusal
            assert op.kind in DRIVES or not outcome.cancelled, (op, "was not what somebody cancelled")
        for job in JOBS:
            mine = [(op, out) for op, out in zip(ops, outcomes, strict=True) if op.job == job or op.kind == "run-due"]
            now = self.now(job, *ops)
            assert explains(before[job], [op for op, _ in mine], [out for _, out in mine], now), (
                f"{job} was {before[job]}, met {mine}, and is {now}"
            )
            # two hours go by after this
            self.jobs[job] = replace(now, is_due=now.status == "limited") if now is not None else None
        self.check_logs(ops)
        self.world.bench.clock.move(2 * HOUR)
        return outcomes

    async def at_once(self, ops: Sequence[Op], pause: float) -> list[Outcome]:
        async def begin(number: int, op: Op) -> None:
            if number:
                await asyncio.sleep(pause)
            await self.do(op)

        async with asyncio.timeout(30):
            done = await asyncio.gather(*(begin(*one) for one in enumerate(ops)), return_exceptions=True)
        return [outcome_of(one) for one in done]

    async def do(self, op: Op) -> object:
        host = self.world.hosts[op.host]
        match op.kind:
            case "run":
                return await host.run("payer", query_for(op.plan, op.nonce), job_id=op.job, on_event=self.collect_event)
            case "resume":
                return await host.resume(op.job, on_event=self.collect_event)
            case "answer":
                return await host.answer("yes", job_id=op.job, question_id=op.question_id, on_event=self.collect_event)
            case "signal":
                event = CloudEvent(specversion="1.0", id=op.signal, source="test", type="go", data="yes")
                return await host.jobs.signal(op.job, event, on_event=self.collect_event)
            case "cancel":
                return await host.cancel(op.job)
            case "delete":
                return await host.jobs.delete(op.job)
        woken = await host.scheduler.once()
        assert all(one.error is None for one in woken), woken
        return woken

    def collect_event(self, event: Event, line: bytes) -> None:
        if isinstance(event, StoredEvent):
            self.shown[event.job_id].append(line)

    def now(self, job: str, *ops: Op) -> State:
        return self.runner.run(self.stands(job, ops))

    async def stands(self, job: str, ops: Sequence[Op]) -> State:
        """The model's view of what is stored, which the fold of its logs and both Hosts agree on."""
        one, other = self.world.hosts
        if not await one.storage.has_job(job):
            assert not await other.storage.has_job(job)
            return None
        assert await one.storage.lease_info(job) is None
        try:
            summary = await one.job(job)
        except NotFound:
            with pytest.raises(NotFound):
                await other.job(job)
            made = next((op for op in ops if op.kind == "run" and op.job == job), None)
            was = self.jobs[job]
            if made is not None and (was is None or was.status != "unbegun"):
                return Planned(made.plan, made.nonce)
            return was if was is not None else Planned((), "")
        assert await other.job(job) == summary
        loaded = await one.jobs.load(job)
        events = [event for run in loaded.runs for event in await self.events(one, run)]
        plan, nonce = read_plan(summary.query)
        limited = summary.pause_reason == "rate_limit"
        statuses = {"stoppedByInteractiveTool": "asks", "stoppedByError": "failed", "completed": "completed"}
        replies = sum(isinstance(event, FinishGeneration) for event in events)
        assert summary.usage.total_tokens == replies * TOKENS
        status = statuses.get(summary.status, "limited" if limited else "interrupted")
        assert status != "interrupted" or summary.status == "stoppedByInterrupt"
        assert summary.total_steps - replies in {"interrupted": (0, 1), "asks": (0,), "completed": (0,)}.get(
            status, (1,)
        )
        return Planned(
            plan,
            nonce,
            status,
            replies,
            sum(isinstance(event, FinishToolCall) and event.tool_name == "askUser" for event in events),
            frozenset(place for name, place in self.world.played if name == nonce),
            frozenset(key.partition(" ")[2] for key in loaded.signals),
        )

    async def events(self, host: Host, run_id: str) -> list[StoredEvent]:
        return [line.event for line in await host.events(run_id)]

    def check_logs(self, ops: Sequence[Op]) -> None:
        """Nothing that was stored or shown is gone, and nothing is there twice."""
        logs = self.runner.run(self.read_logs())
        for job, runs in logs.items():
            assert all(number == 1 for number in Counter(line for lines in runs.values() for line in lines).values())
            if not any(op.kind == "delete" and op.job == job for op in ops):
                for run_id, lines in self.logs.get(job, {}).items():
                    assert runs[run_id][: len(lines)] == lines, run_id
                stored = {line for lines in runs.values() for line in lines}
                assert stored.issuperset(self.shown[job])
        assert all(number == 1 for lines in self.shown.values() for number in Counter(lines).values())
        self.logs = logs

    async def read_logs(self) -> dict[str, dict[str, list[bytes]]]:
        storage = self.world.hosts[0].storage
        return {
            job: {run: await storage.read(RunRef(job, run)) for run in (await storage.runs(job)).ids}
            for job, state in self.jobs.items()
            if state is not None
        }

    @invariant()
    def what_is_stored_is_whole_and_nothing_was_done_twice(self) -> None:
        assert all(number == 1 for number in self.world.paid.values()), self.world.paid
        for job, state in self.jobs.items():
            if state is None or state.status == "unbegun":
                continue
            for host in self.world.hosts:
                assert self.runner.run(host.audit.verify(job)).findings == ()
            assert self.runner.run(self.world.hosts[0].audit.replay(job)).findings == ()
            if state.status == "completed":
                paid = [f"{state.nonce}-{place}" for place, stage in enumerate(state.plan) if stage == "pay"]
                assert all(self.world.paid[key] == 1 for key in paid), (state, self.world.paid)


def outcome_of(done: object) -> Outcome:
    match done:
        case asyncio.CancelledError():
            return Outcome(False, cancelled=True)
        case Conflict() | UsageError():
            return Outcome(False, str(done))
        case BaseException():
            raise done
    return Outcome(True)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scheme", ["file", "sqlite", "memory", "postgresql", "s3"])
def test_two_commands_at_once_come_to_what_one_after_the_other_would(
    scheme: str, tmp_path: Path, thorough: bool, request: pytest.FixtureRequest
) -> None:
    def make() -> Bench:
        if scheme == "postgresql":
            return Bench(tmp_path, request.getfixturevalue("postgres").address())
        if scheme == "s3":
            return Bench(tmp_path, other_address(request.getfixturevalue("s3_store")))
        return Bench(tmp_path, f"{scheme}:{secrets.token_hex(4)}")

    if scheme == "s3" and not thorough:
        pytest.skip("takes a minute: PERSTACK_FAULTS=all")
    TRIED.clear()
    run_state_machine_as_test(
        type("Machine", (Pairs,), {"make": staticmethod(make)}),
        settings=settings(
            max_examples=(20 if scheme == "s3" else 150) if thorough else 2 if scheme == "postgresql" else 6,
            stateful_step_count=40 if thorough else 25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
        ),
    )
    print(f"{scheme}: {TRIED.total()} pairs, {len(TRIED)} of 28 kinds")
    assert not thorough or scheme == "s3" or len(TRIED) == 28
