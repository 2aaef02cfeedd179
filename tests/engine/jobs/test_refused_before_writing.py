"""What a Run needs and does not have is said before anything is written, however the Job begins or continues."""

from __future__ import annotations

from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
from approval_jobs import exec_, hosted
from hosts import Bench, expert, wait_for
from pictures import picture
from typing_extensions import override

from perstack.config.grants import ProjectGrants
from perstack.core.base.chain import Head
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.project import Project
from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.core.definitions.skills import AgentSkill
from perstack.core.jobs.summary import JobSummary
from perstack.engine.context.host_setup import SetupSource
from perstack.engine.jobs.jobs import Jobs
from perstack.errors import CannotServe, MissingCredential, NotAgreed, PerstackError, UsageError
from perstack.host import Host
from perstack.ports.hooks import hookimpl
from perstack.ports.runtime import Ending, Program, Runtime, RuntimeFactory, Surroundings
from perstack.ports.storage import RunRef, Storage
from perstack.testing.crashing_storage import CrashingStorage
from perstack.testing.in_memory_dispatcher import InMemoryDispatcher
from perstack.testing.scripted import ScriptedProvider, text, tool
from perstack.trust.agreements import Agreement
from perstack.workers.serving import JobServer

ASKS = [tool("askUser", {"question": "sure?"})]


class WatchedStorage(CrashingStorage):
    """A storage that notes each write, apart from leases."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.writes: list[str] = []

    @override
    async def create_job(self, job_id: str) -> None:
        self.writes.append("create_job")
        await super().create_job(job_id)

    @override
    async def append(self, ref: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        self.writes.append("append")
        await super().append(ref, expected_seq, records)

    @override
    async def put_blob(self, job_id: str, data: bytes) -> str:
        self.writes.append("put_blob")
        return await super().put_blob(job_id, data)

    @override
    async def put_summary(self, job_id: str, summary: bytes) -> None:
        self.writes.append("put_summary")
        await super().put_summary(job_id, summary)

    @override
    async def put_entry(
        self, job_id: str, seq: int, entry: bytes, *, synced: bool = False, expected: tuple[RunRef, Head] | None = None
    ) -> None:
        self.writes.append("put_entry")
        await super().put_entry(job_id, seq, entry, synced=synced, expected=expected)

    @override
    async def put_run_setting(self, ref: RunRef, setting: bytes) -> None:
        self.writes.append("put_run_setting")
        await super().put_run_setting(ref, setting)

    @override
    async def put_checkpoint(self, job_id: str, checkpoint_id: str, data: bytes) -> None:
        self.writes.append("put_checkpoint")
        await super().put_checkpoint(job_id, checkpoint_id, data)


class Keyless(ScriptedProvider):
    """A provider whose key is missing."""

    @override
    def create(self, config: object) -> ScriptedProvider:
        raise MissingCredential("set A_KEY")


class Sandbox(RuntimeFactory, Runtime):
    """A runtime that starts nothing. It cannot be used on a machine that lacks something."""

    name = "box"

    def __init__(self, *lacks: str) -> None:
        self.lacks = lacks

    @override
    async def check(self, policy: SandboxPolicy, around: Surroundings) -> tuple[str, ...]:
        return self.lacks

    @override
    async def prepare(self, policy: SandboxPolicy, around: Surroundings) -> Runtime:
        return self

    @override
    async def start(self, program: Program) -> Process:
        raise AssertionError("no program is started here")

    @override
    def ending(self, process: Process) -> Ending:
        return Ending()

    @override
    async def close(self) -> None:
        pass

    @hookimpl
    def perstack_runtimes(self) -> list[Sandbox]:
        return [self]


class Changed(Agreement):
    """The agreement to a definition that was changed since."""

    def __init__(self) -> None:
        super().__init__(Project())

    @override
    def check_definition(self) -> None:
        raise NotAgreed("the definition was changed", page=(), agree=lambda: None)


# How a Job begins or continues: by the Jobs, and the id and checkpoint of a Job that waits for an answer.

Operation = Callable[[Jobs, str, str], Awaitable[JobSummary]]
PICTURE = picture()
OPERATIONS: dict[str, Operation] = {
    "a new Job": lambda jobs, job, checkpoint: jobs.run("a", "q"),
    "a new Job with an attachment": lambda jobs, job, checkpoint: jobs.run("a", "q", attachments=[PICTURE]),
    "a continued Job": lambda jobs, job, checkpoint: jobs.continue_job("a", "q", job_id=job),
    "a continued Job with an attachment": lambda jobs, job, checkpoint: jobs.continue_job(
        "a", "q", job_id=job, attachments=[PICTURE]
    ),
    "a branch": lambda jobs, job, checkpoint: jobs.continue_job("a", "q", job_id=job, resume_from=checkpoint),
    "an answer": lambda jobs, job, checkpoint: jobs.answer("yes", job_id=job),
    "another answer in a branch": lambda jobs, job, checkpoint: jobs.answer("no", job_id=job, resume_from=checkpoint),
}
NEW_RUNS = [name for name in OPERATIONS if name != "an answer"]


def asking_job(bench: Bench, *experts: Expert) -> tuple[str, str]:
    """Return the ids of a Job that waits for an answer, and of the checkpoint at which it asked."""
    host = bench.host(ASKS, *experts, plugins=(Sandbox(),))
    job = wait_for(host.run("a", "q"))
    assert job.status == "stoppedByInteractiveTool"
    return job.id, wait_for(host.jobs.checkpoints(job.id)).ids[-1]


def refuse(
    bench: Bench, host: Callable[..., Host], start: Callable[[Host], Awaitable[object]], error: type[PerstackError]
) -> str:
    """Return the message of the error, after a check that nothing was written."""
    storages: list[WatchedStorage] = []

    def watch(storage: Storage) -> Storage:
        storages.append(WatchedStorage(storage))
        return storages[0]

    with pytest.raises(error) as raised:
        wait_for(start(host(wrap=watch)))
    assert [storage.writes for storage in storages] == [[]]
    return str(raised.value)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_missing_key(bench: Bench, operation: str) -> None:
    one = expert("a", ask=True)
    job, checkpoint = asking_job(bench, one)
    start = OPERATIONS[operation]
    keyless = lambda **fields: bench.host(Keyless([]), one, plugins=(Sandbox(),), **fields)  # noqa: E731
    said = refuse(bench, keyless, lambda host: start(host.jobs, job, checkpoint), MissingCredential)
    assert said == "set A_KEY"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_sandbox_that_this_machine_cannot_apply(bench: Bench, operation: str) -> None:
    one = expert("a", ask=True, runtime="box")
    job, checkpoint = asking_job(bench, one)
    start, lacks = OPERATIONS[operation], Sandbox("no user namespaces")
    poor = lambda **fields: bench.host([], one, plugins=(lacks,), **fields)  # noqa: E731
    said = refuse(bench, poor, lambda host: start(host.jobs, job, checkpoint), UsageError)
    assert "no user namespaces" in said


def test_a_sandbox_of_a_delegate_that_this_machine_cannot_apply(bench: Bench) -> None:
    lead, helper = expert("a", delegates=("b",)), expert("b", runtime="box")
    poor = lambda **fields: bench.host([], lead, helper, plugins=(Sandbox("no user namespaces"),), **fields)  # noqa: E731
    assert "no user namespaces" in refuse(bench, poor, lambda host: host.run("a", "q"), UsageError)


@pytest.mark.parametrize("operation", [*OPERATIONS, "a submitted Job"])
def test_a_definition_that_was_changed(bench: Bench, operation: str) -> None:
    one = expert("a", ask=True)
    job, checkpoint = asking_job(bench, one)
    operations = {**OPERATIONS, "a submitted Job": lambda jobs, job, checkpoint: jobs.submit("a", "q")}

    def start(host: Host) -> Awaitable[JobSummary]:
        changed = replace(host.jobs.source.setup, agreement=Changed())
        return operations[operation](host.jobs.with_context(SetupSource(changed)), job, checkpoint)

    fine = lambda **fields: bench.host(  # noqa: E731
        [], one, plugins=(Sandbox(),), dispatcher=InMemoryDispatcher(), **fields
    )
    assert "was changed" in refuse(bench, fine, start, NotAgreed)


@pytest.mark.parametrize("operation", [*NEW_RUNS, "a submitted Job"])
def test_an_agent_skill_that_is_not_there(bench: Bench, operation: str) -> None:
    whole = expert("a", ask=True)
    job, checkpoint = asking_job(bench, whole)
    missing = AgentSkill(name="pdf", path=str(bench.workspace / "no-such-folder"))
    one = whole.model_copy(update={"skills": (*whole.skills, missing)})
    operations = {**OPERATIONS, "a submitted Job": lambda jobs, job, checkpoint: jobs.submit("a", "q")}
    start = operations[operation]
    lacking = lambda **fields: bench.host(  # noqa: E731
        [], one, plugins=(Sandbox(),), dispatcher=InMemoryDispatcher(), **fields
    )
    said = refuse(bench, lacking, lambda host: start(host.jobs, job, checkpoint), UsageError)
    assert "no-such-folder" in said


def test_a_resumed_job_whose_key_is_missing(bench: Bench) -> None:
    one = expert("a")
    job = wait_for(bench.host(lambda _: tool("todo", {}), one, max_steps=1).run("a", "q"))
    keyless = lambda **fields: bench.host(Keyless([]), one, **fields)  # noqa: E731
    said = refuse(bench, keyless, lambda host: host.resume(job.id, max_steps=2), MissingCredential)
    assert said == "set A_KEY"


def test_a_job_that_failed_before_its_model_replied_is_resumed_under_todays_definition_or_not_at_all(
    bench: Bench,
) -> None:
    job = wait_for(bench.host([], expert("a")).run("a", "q"))
    assert job.status == "stoppedByError"
    missing = AgentSkill(name="pdf", path=str(bench.workspace / "no-such-folder"))
    today = expert("a").model_copy(update={"skills": (missing,)})
    lacking = lambda **fields: bench.host([text("ok")], today, **fields)  # noqa: E731
    assert "no-such-folder" in refuse(bench, lacking, lambda host: host.resume(job.id), UsageError)


@pytest.mark.parametrize("lacks", ["key", "sandbox"])
def test_a_queued_job_on_a_worker_that_lacks_something(bench: Bench, lacks: str) -> None:
    one = expert("a", runtime="box")
    submitting = bench.host([], one, plugins=(Sandbox(),), dispatcher=InMemoryDispatcher())
    job = wait_for(submitting.submit("a", "q"))
    model = Keyless([]) if lacks == "key" else ScriptedProvider([])
    box = Sandbox(*(() if lacks == "key" else ("no user namespaces",)))
    poor = lambda **fields: bench.host(model, plugins=(box,), **fields)  # noqa: E731

    def serve(host: Host) -> Awaitable[JobSummary]:
        server: JobServer = host.job_server
        return server.serve(job.id, worker="w")

    said = refuse(bench, poor, serve, CannotServe)
    assert ("set A_KEY" if lacks == "key" else "no user namespaces") in said


def test_an_approval_for_the_project_leaves_no_rule_behind_if_its_run_cannot_go_on(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("home")))
    one, rule = expert("a", runtime="box"), "exec(git status --short)"
    script, rules = [exec_("git", "status", "--short")], Permissions(ask=("exec",))
    fine = hosted(bench, script, one, rules=rules, open=False, attended=True, plugins=(Sandbox(),))
    job = wait_for(fine.run("a", "q"))
    assert job.asking is not None
    assert rule in job.asking.offers
    question_id, said = job.asking.id, f"always in this project: {rule}"

    def poor(**fields: object) -> Host:
        return hosted(
            bench, [], one, rules=rules, open=False, attended=True, plugins=(Sandbox("no user namespaces"),), **fields
        )

    refuse(bench, poor, lambda host: host.answer(said, question_id=question_id), UsageError)
    assert ProjectGrants(bench.workspace).all() == ()
