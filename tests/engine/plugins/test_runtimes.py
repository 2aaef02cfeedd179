"""Runtimes from plugins: which programs they start, and under which policy and time limit."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import Process
from pathlib import Path

import pytest
from hosts import Bench, Seen, expert, results, wait_for
from hypothesis import given
from hypothesis import strategies as st

from perstack.core.definitions.experts import Iterate
from perstack.core.definitions.sandbox import Sandbox, SandboxPolicy, narrow_policy, policy_of
from perstack.core.definitions.skills import McpStdioSkill
from perstack.errors import UsageError
from perstack.ports.hooks import hookimpl
from perstack.ports.runtime import LOCAL_RUNTIME, Ending, Program, Runtime, RuntimeFactory, Surroundings
from perstack.tasks.events import WaitingFor
from perstack.testing.scripted import text, tool, turn

MISBEHAVING = Path(__file__).parents[2] / "plugins" / "mcp" / "servers" / "misbehaving.py"
RUN = turn(tool("exec", {"command": "echo", "args": ["hello"]}))


class Noting(RuntimeFactory, Runtime):
    """A runtime that starts programs as `local` does and records them, and its own plugin."""

    def __init__(self, name: str = "noting", *, lacks: tuple[str, ...] = (), limit: str = "") -> None:
        self.name = name
        self.lacks = lacks
        self.limit = limit
        self.prepared: list[SandboxPolicy] = []
        self.started: list[str] = []
        self.closed = 0

    async def check(self, policy: SandboxPolicy, around: Surroundings) -> tuple[str, ...]:
        return self.lacks

    async def prepare(self, policy: SandboxPolicy, around: Surroundings) -> Noting:
        self.prepared.append(policy)
        return self

    async def start(self, program: Program) -> Process:
        self.started.append(Path(program.argv[0]).name)
        return await LOCAL_RUNTIME.start(program)

    def ending(self, process: Process) -> Ending:
        return Ending(limit=self.limit)

    async def close(self) -> None:
        self.closed += 1

    @hookimpl
    def perstack_runtimes(self) -> list[Noting]:
        return [self]


def test_what_an_expert_starts_is_started_in_its_runtime_which_is_prepared_once_and_closed(bench: Bench) -> None:
    noting, seen = Noting(), Seen()
    server = McpStdioSkill(name="s", command=sys.executable, args=(str(MISBEHAVING), "none"))
    one = expert("a", runtime="noting").model_copy(update={"skills": (server,)})
    host = bench.host({"[[a]]": [RUN, RUN, text("ok")]}, one, plugins=(noting,))
    assert wait_for(host.run("a", "q", on_event=seen)).status == "completed"
    assert sorted(noting.started) == sorted(["echo", "echo", Path(sys.executable).name])
    assert [policy.runtime for policy in noting.prepared] == ["noting"]
    assert noting.closed == 1
    assert seen.of("startRun")[0].sandbox == SandboxPolicy(runtime="noting")


def test_an_evaluator_and_the_command_of_a_task_are_started_in_it_too(bench: Bench) -> None:
    noting = Noting()
    one = expert("solo", iterate=Iterate(evaluator=("echo", '{"score": 1}'), max_iterations=1), runtime="noting")
    host = bench.host({"[[solo]]": [text("made")] * 2}, one, plugins=(noting,))

    async def work() -> None:
        await host.iterations.begin("solo", "q")
        await host.tasks.create("t", name="t", agent_id="solo")
        await host.tasks.start("t")
        await host.tasks.pause("t", "external_dependency", waiting_for=WaitingFor(command=("true",)))
        await host.scheduler.once()

    wait_for(work())
    assert noting.started == ["echo", "true"]


def test_without_a_runtime_nothing_is_recorded_and_nothing_prepared(bench: Bench) -> None:
    noting, seen = Noting(), Seen()
    host = bench.host({"[[a]]": [RUN, text("ok")]}, expert("a"), plugins=(noting,))
    wait_for(host.run("a", "q", on_event=seen))
    assert b'"sandbox":' not in seen.lines[seen.events.index(seen.of("startRun")[0])]
    assert (noting.started, noting.prepared) == ([], [])


@pytest.mark.parametrize("lacking", ["an unknown one", "one that cannot keep the policy"])
def test_a_runtime_that_cannot_be_had_is_an_error_before_anything_is_written(bench: Bench, lacking: str) -> None:
    noting = Noting(lacks=("memory: no cgroups",))
    name = "notnig" if lacking == "an unknown one" else "noting"
    helper = expert("b", runtime=name)
    host = bench.host({}, expert("a", delegates=("b",)), helper, plugins=(noting,))
    with pytest.raises(UsageError, match="did you mean `noting`" if name == "notnig" else "memory: no cgroups"):
        wait_for(host.run("a", "q"))
    assert wait_for(host.jobs.list()).jobs == ()


def test_a_delegate_never_leaves_the_runtime_of_its_caller(bench: Bench) -> None:
    noting, seen = Noting(), Seen()
    script = {"[[a]]": [turn(tool("b", {"query": "x"})), text("ok")], "[[b]]": [RUN, text("done")]}
    experts = expert("a", delegates=("b",), runtime="noting"), expert("b", runtime="local")
    host = bench.host(script, *experts, plugins=(noting,))
    wait_for(host.run("a", "q", on_event=seen))
    assert [start.sandbox for start in seen.of("startRun")] == [SandboxPolicy(runtime="noting")] * 2
    assert noting.started == ["echo"]


def test_a_resumed_run_stays_in_the_runtime_that_it_was_started_in(bench: Bench) -> None:
    noting, one = Noting(), expert("a", runtime="noting")
    script = {"[[a]]": [turn(tool("think", {"thought": "…"})), RUN, text("ok")]}
    job = wait_for(bench.host(script, one, plugins=(noting,), max_steps=1).run("a", "q"))
    assert (job.status, noting.started) == ("stoppedByMaxSteps", [])
    today = bench.host(script, expert("a"), plugins=(noting,))
    assert wait_for(today.resume(job.id, max_steps=9)).status == "completed"
    assert noting.started == ["echo"]


def test_another_runtime_for_a_run_that_has_begun_is_refused(bench: Bench) -> None:
    noting, one = Noting(), expert("a", runtime="noting")
    script = {"[[a]]": [turn(tool("think", {"thought": "…"})), text("ok")]}
    job = wait_for(bench.host(script, one, plugins=(noting,), max_steps=1).run("a", "q"))
    other = bench.host(script, one, plugins=(noting,), runtime="local")
    with pytest.raises(UsageError, match="a Run is resumed in the runtime that it was started in, noting"):
        wait_for(other.resume(job.id, max_steps=9))


def test_what_continues_a_run_stays_where_that_was_unless_another_runtime_is_named(bench: Bench) -> None:
    noting, seen = Noting(), Seen()
    script = {"[[a]]": [text("ok")]}
    job = wait_for(bench.host(script, expert("a"), plugins=(noting,), runtime="noting").run("a", "q"))
    for host in (
        bench.host(script, expert("a"), plugins=(noting,)),
        bench.host(script, expert("a"), plugins=(noting,), runtime="local"),
    ):
        wait_for(host.continue_job("a", "more", job_id=job.id, on_event=seen))
    assert [start.sandbox and start.sandbox.runtime for start in seen.of("startRun")] == ["noting", None]


def test_the_limit_that_ended_a_program_is_the_models_to_know(bench: Bench) -> None:
    noting, seen = Noting(limit="it used more than 1 MiB of memory"), Seen()
    host = bench.host({"[[a]]": [RUN, text("ok")]}, expert("a", runtime="noting"), plugins=(noting,))
    wait_for(host.run("a", "q", on_event=seen))
    assert "ended by the sandbox: it used more than 1 MiB of memory" in results(seen, "exec")[0]


def test_delegates_of_two_runtimes_in_one_call_chain_are_an_error_that_names_both() -> None:
    with pytest.raises(UsageError, match=r"runtime docker is called by an Expert whose runtime is bubblewrap"):
        narrow_policy(SandboxPolicy(runtime="docker"), SandboxPolicy(runtime="bubblewrap"))


PATHS = st.lists(st.sampled_from(["/a", "/a/b", "/a/bc", "/d", "/d/e/f", "/"]), max_size=3).map(tuple)
POLICIES = st.builds(
    lambda runtime, writable, readable, env: policy_of(runtime, Sandbox(writable=writable, readable=readable, env=env)),
    st.sampled_from(["local", "bubblewrap"]),
    PATHS,
    PATHS,
    st.lists(st.sampled_from(["A", "B"]), max_size=2).map(tuple),
)


def _covers(outer: tuple[str, ...], path: str) -> bool:
    return any(path == one or one == "/" or path.startswith(f"{one}/") for one in outer)


@given(own=POLICIES, caller=POLICIES)
def test_a_delegates_policy_has_nothing_that_its_callers_has_not(
    own: SandboxPolicy | None, caller: SandboxPolicy | None
) -> None:
    policy = narrow_policy(own, caller)
    if caller is None:
        assert policy == own
        return
    mine = policy or SandboxPolicy()
    assert caller.runtime == "local" or mine.runtime == caller.runtime
    assert all(_covers(caller.writable, path) for path in mine.writable)
    assert all(_covers((*caller.readable, *caller.writable), path) for path in mine.readable)
    assert set(mine.env) <= set(caller.env)


def test_several_jobs_prepare_a_policy_each(bench: Bench) -> None:
    noting = Noting()
    host = bench.host({"[[a]]": [RUN, text("ok")]}, expert("a", runtime="noting"), plugins=(noting,))

    async def both() -> None:
        await asyncio.gather(host.run("a", "q"), host.run("a", "q"))

    wait_for(both())
    assert (len(noting.prepared), noting.closed) == (2, 2)
