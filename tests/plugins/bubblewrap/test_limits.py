"""Limits: what goes too far is ended with the reason, and nothing else is. Every bomb here has a bound of its own."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hosts import wait_for
from sandbox_programs import PYTHON, Box

from perstack.core.definitions.sandbox import Sandbox, parse_size, policy_of
from perstack.errors import SkillError, UsageError
from perstack.ports.runtime import Surroundings
from perstack.system.processes import end_with_block
from perstack_base.plugin import LocalRuntimeFactory
from perstack_bubblewrap import cgroups, limits
from perstack_bubblewrap import limits as pid_max
from perstack_bubblewrap.plugin import BubblewrapFactory

MIB = 1 << 20


def needs(*controllers: str) -> None:
    missing = set(controllers) - cgroups.available_controllers()
    if missing:
        pytest.skip(f"cgroups are not available here for {', '.join(sorted(missing))}")


def groups() -> list[Path]:
    own = f"perstack-{os.getpid()}-"
    return [path for place in cgroups.cgroup_parents() for path in place.folder.glob(f"{own}*")]


def test_a_memory_bomb_is_ended_with_the_reason_and_its_group_removed(box: Box) -> None:
    needs("memory")
    bomb = f"{PYTHON} -c \"data = b'x' * {200 * MIB}; print('held')\"; echo after"
    assert box.run(bomb, inside=False).output.splitlines() == ["held", "after"]
    ran = box.with_policy(memory=64 * MIB).run(bomb)
    assert "held" not in ran.output
    assert "more than the 64 MiB of memory" in ran.ending.limit
    assert groups() == []


def test_a_fork_bomb_is_ended_with_the_reason(box: Box) -> None:
    needs("pids")
    bomb = "for i in $(seq 60); do sleep 20 & done; echo all; wait"
    ran = box.with_policy(processes=24).run(bomb)
    assert "more than the 24 processes" in ran.ending.limit
    assert "all" not in ran.output.splitlines()
    assert box.with_policy(processes=24).run("for i in 1 2 3 4 5; do true & done; wait; echo fine").output == "fine\n"
    assert groups() == []


def test_the_share_of_processors_is_set_for_the_group(box: Box) -> None:
    needs("cpu")
    slow, fast = box.with_policy(cpu=0.1), box
    code = (
        "import time; began = time.monotonic()\n"
        "while time.process_time() < 0.25: pass\n"
        "print(time.monotonic() - began)\n"
    )
    assert float(slow.python(code).output) > 1.0
    assert fast.python(code).status == 0


def test_one_that_runs_too_long_is_ended(box: Box) -> None:
    ran = box.with_policy(time=300).run("sleep 20; echo late")
    assert ran.ending.limit == "it ran longer than 300 ms"
    assert ran.output == ""


def test_a_full_tmp_is_that_programs_own_affair(box: Box) -> None:
    fill = "head -c 3000000 /dev/zero > /tmp/big; echo $?; rm /tmp/big"
    assert box.with_policy(tmp=MIB).run(f"{fill}; touch made && echo fine").output.splitlines()[-1] == "fine"
    assert "No space left" in box.with_policy(tmp=MIB).run(fill).output
    assert "No space left" not in box.run(fill).output


def test_the_disk_of_the_host_cannot_be_filled_elsewhere(box: Box) -> None:
    for place in ("/x", "/dev/x", "/etc/x", "/run/x", "/var/x"):
        assert box.run(f"echo x > {place}").status != 0
    assert "No space left" in box.run("head -c 90000000 /dev/zero > /dev/shm/big").output


def test_programs_of_a_job_count_together_whatever_their_policies(box: Box) -> None:
    needs("pids")
    one = box.policy.model_copy(update={"processes": 32})
    other = one.model_copy(update={"env": ("A",)})

    async def both() -> list[Path]:
        factory = BubblewrapFactory()
        runtimes = [await factory.prepare(policy, box.around) for policy in (one, other)]
        made = groups()
        for runtime in runtimes:
            await runtime.close()
        return made

    assert len(wait_for(both())) == len(
        {place.folder for place in cgroups.cgroup_parents() if "pids" in place.controllers}
    )
    assert groups() == []


def test_groups_that_a_killed_process_left_are_removed(box: Box) -> None:
    needs("pids")
    place = next(one for one in cgroups.cgroup_parents() if "pids" in one.controllers)
    left = place.folder / "perstack-1-0-9"
    (left / "1").mkdir(parents=True)
    assert box.with_policy(processes=32).run("true").status == 0
    assert not left.exists()


def test_what_nothing_can_enforce_is_an_error_that_names_it(usable: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "cgroup_parents", lambda: ())
    monkeypatch.setattr(limits, "cgroup_parents", lambda: ())
    policy = policy_of("bubblewrap", Sandbox(cpu=1.0, memory="1GiB"))
    assert policy is not None
    found = wait_for(_check(BubblewrapFactory(), policy))
    assert [line.partition(":")[0] for line in found] == ["`cpu`"]
    assert limits.enforcement()["memory"].startswith("holds for the address space of each process")


async def _check(factory, policy) -> tuple[str, ...]:
    return tuple(await factory.check(policy, Surroundings(Path("/nowhere"), "job", dict(os.environ))))


def test_without_cgroups_memory_is_bound_for_each_process(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "cgroup_parents", lambda: ())
    ran = box.with_policy(memory=64 * MIB).python(f"b'x' * {200 * MIB}")
    assert "MemoryError" in ran.output


def test_without_cgroups_the_number_of_processes_is_bound_for_root_too(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "cgroup_parents", lambda: ())
    monkeypatch.setattr(limits, "cgroup_parents", lambda: ())
    if not pid_max.is_possible():
        pytest.skip("not root, or this kernel has one pid_max for all")
    before = Path("/proc/sys/kernel/pid_max").read_text()
    line = "for i in $(seq 420); do sleep 5 & done; echo all"
    assert box.run(line, inside=False).output.endswith("all\n")
    few = box.with_policy(processes=64)
    assert limits.enforcement()["processes"].startswith("holds for each program, give or take 300 (pid_max)")
    assert limits.unenforced_limits(few.policy) == ()
    assert "all" not in few.run(line).output.splitlines()
    assert few.run("for i in $(seq 60); do sleep 5 & done; echo all").output.endswith("all\n")
    assert Path("/proc/sys/kernel/pid_max").read_text() == before


def test_a_program_whose_number_of_processes_cannot_be_set_does_not_begin(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "cgroup_parents", lambda: ())
    monkeypatch.setattr(pid_max, "is_possible", lambda: True)
    monkeypatch.setattr(limits, "is_possible", lambda: True)
    monkeypatch.setattr(limits, "_uses_rlimit", lambda key: False)
    monkeypatch.setattr(pid_max, "_SET", "echo no such setting >&2; exit 1")
    with pytest.raises(SkillError, match=r"`processes` of \[sandbox\] cannot be set: no such setting"):
        box.with_policy(processes=64).run("touch begun")
    assert not (box.workspace / "begun").exists()


def test_local_keeps_no_limit_and_says_so() -> None:
    policy = policy_of("local", Sandbox(memory="1GiB", time=5))
    assert policy is not None
    found = wait_for(_check(LocalRuntimeFactory(), policy))
    assert [line.partition(":")[0] for line in found] == ["`memory`", "`time`"]


@pytest.mark.parametrize(
    ("text", "size"), [("1MiB", MIB), ("2GiB", 2 << 30), ("3 GB", 3 * 10**9), ("5000000", 5000000)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_a_server_that_goes_on_is_not_touched_by_the_bomb_of_another(box: Box) -> None:
    needs("memory")
    limited = box.with_policy(memory=96 * MIB)

    async def both() -> tuple[int | None, str]:
        runtime = await BubblewrapFactory().prepare(limited.policy, box.around)
        try:
            quiet = await runtime.start(box.program("sleep 20"))
            async with end_with_block(quiet):
                bomb = await runtime.start(box.program(f"{PYTHON} -c \"b'x' * {200 * MIB}\""))
                async with end_with_block(bomb):
                    await asyncio.wait_for(bomb.wait(), 20)
                return quiet.returncode, runtime.ending(bomb).limit
        finally:
            await runtime.close()

    status, reason = wait_for(both())
    assert status is None
    assert "96 MiB" in reason


def test_an_experts_limit_is_an_error_before_anything_runs_where_it_cannot_be_kept() -> None:
    with pytest.raises(UsageError, match="only a sandbox can"):
        wait_for(_check_refusal())


async def _check_refusal() -> None:
    from perstack.engine.plugins.registry import load_plugins
    from perstack.engine.plugins.runtimes import check_policies

    policy = policy_of("local", Sandbox(cpu=1.0))
    around = Surroundings(Path("/nowhere"), "job", {})
    await check_policies(load_plugins((), {}), (policy,), lambda: around)
