"""`exec` that a definition does not mention: asked about, sandboxed or denied, and never waiting without a person."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from approval_jobs import answer, exec_, hosted
from hosts import Bench, Seen, expert, results, wait_for
from sandbox_programs import usable  # noqa: F401 - a fixture

from perstack import Question
from perstack.core.definitions.permissions import Permissions, Widening
from perstack.core.definitions.sandbox import Sandbox
from perstack.core.definitions.skills import BASE_SKILL, McpStdioSkill
from perstack.core.jobs.summary import JobSummary
from perstack.engine.runs.approvals import SANDBOXED
from perstack.host import Host
from perstack.testing.scripted import text, tool


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a path outside the workspace, at which hostile scripts try to create a file."""
    return tmp_path_factory.mktemp("outside") / "file"


def hostile(outside: Path):
    return exec_("sh", "-c", f"echo x > {outside}; echo x > inside; echo $TOKEN; cat /proc/net/route | wc -l")


def closed(bench: Bench, script, *experts, rules: Permissions | None = None, **more) -> Host:
    return hosted(bench, script, *experts, rules=rules, **{"open": False, **more})


def is_right(host: Host, job: JobSummary) -> bool:
    return wait_for(host.audit.replay(job.id)).ok and wait_for(host.audit.verify(job.id)).ok


def test_with_a_person_it_is_asked_about_and_runs_once_it_is_approved(bench: Bench, outside: Path) -> None:
    script = [hostile(outside), text("ok")]
    job = wait_for(closed(bench, script, attended=True).run("a", "q"))
    assert (job.status, job.pause_reason) == ("stoppedByInteractiveTool", "human_approval")
    assert not outside.exists()
    host = closed(bench, script, attended=True)
    assert answer(host, job, "yes").status == "completed"
    assert outside.exists()
    assert is_right(host, job)


def test_a_no_stays_a_no(bench: Bench, outside: Path) -> None:
    script = [hostile(outside), text("ok")]
    job = wait_for(closed(bench, script, attended=True).run("a", "q"))
    assert answer(closed(bench, script), job, "no").status == "completed"
    assert not outside.exists()


@pytest.mark.usefixtures("usable")
def test_without_a_person_it_runs_in_a_sandbox(bench: Bench, outside: Path) -> None:
    bench.needs_files("the workspace of this test holds the state")
    seen, host = Seen(), closed(bench, [hostile(outside), text("ok")])
    job = wait_for(host.run("a", "q", on_event=seen))
    if bench.storage.startswith("sqlite:"):
        pytest.skip("beside this database no sandbox may write: the denial has a test")
    assert job.status == "completed"
    assert not outside.exists()
    assert (bench.workspace / "inside").exists()
    (decided,) = seen.of("decideApproval")
    assert (decided.decision, decided.by.door) == ("sandboxed", "unattended")
    finished = seen.of("finishToolCall")[0]
    assert [part.text for part in finished.contents][1] == SANDBOXED
    assert json.loads(finished.contents[0].text)["output"].splitlines()[-2:] == ["", "1"]  # no key, no route
    assert is_right(host, job)


def test_where_no_sandbox_works_it_is_denied_with_what_to_add(tmp_path: Path, bench: Bench, outside: Path) -> None:
    # a sandbox cannot be used with a database in the workspace
    at_top = Bench(bench.workspace, f"sqlite:{bench.workspace}/state.db")
    seen, host = Seen(), closed(at_top, [hostile(outside), text("ok")])
    job = wait_for(host.run("a", "q", on_event=seen))
    assert job.status == "completed"
    assert not outside.exists()
    assert not (bench.workspace / "inside").exists()
    assert 'To have it run, add [permissions] allow = ["exec"] to the definition.' in results(seen)[0]
    assert is_right(host, job)


@pytest.mark.parametrize("overrides", [{"open": True}, {"widening": Widening(source="cli", allow=("exec",))}])
def test_a_person_may_open_it_for_a_job(bench: Bench, outside: Path, overrides: dict) -> None:
    host = closed(bench, [hostile(outside), text("ok")], **overrides)
    assert wait_for(host.run("a", "q")).status == "completed"
    assert outside.exists()


def test_a_delegate_is_granted_by_its_own_definition_alone(bench: Bench, outside: Path) -> None:
    picks = McpStdioSkill(name=BASE_SKILL, package_name=BASE_SKILL, pick=("exec", "attemptCompletion"))
    named = expert("hand").model_copy(update={"skills": (picks,)})
    team = {"[[boss]]": [tool("hand", {"query": "go"}), text("done")], "[[hand]]": [hostile(outside), text("ok")]}
    boss = expert("boss", delegates=("hand",))
    job = wait_for(closed(bench, team, boss, expert("hand"), attended=True).run("boss", "q"))
    assert job.asking is not None
    assert (job.asking.expert_key, job.asking.tool_name) == ("hand", "exec")
    assert not outside.exists()
    assert wait_for(closed(bench, team, boss, named, attended=True).run("boss", "q")).status == "completed"
    assert outside.exists()


def test_a_denying_rule_holds_although_the_rest_is_asked_about(bench: Bench) -> None:
    seen, rules = Seen(), Permissions(deny=("exec(rm *)",))
    job = wait_for(
        closed(bench, [exec_("rm", "x"), exec_("ls"), text("ok")], rules=rules, attended=True).run(
            "a", "q", on_event=seen
        )
    )
    assert "the rule exec(rm *)" in results(seen)[0]
    assert job.asking is not None


def test_file_tools_ask_nothing(bench: Bench) -> None:
    write = tool("writeTextFile", {"path": "a.txt", "text": "x"})
    assert wait_for(closed(bench, [write, text("ok")], attended=True).run("a", "q")).status == "completed"


@pytest.mark.usefixtures("usable")
def test_a_sandbox_table_without_a_runtime_sandboxes_it_although_somebody_is_there(bench: Bench, outside: Path) -> None:
    if not bench.storage.startswith("file:"):
        pytest.skip("one storage shows it")
    host = closed(bench, [hostile(outside), text("ok")], attended=True)
    host.use(host.project.model_copy(update={"sandbox": Sandbox(env=("CI",))}))
    assert wait_for(host.run("a", "q")).status == "completed"
    assert not outside.exists()


def test_a_job_continues_with_the_grant_that_it_began_with(bench: Bench, outside: Path) -> None:
    ask = tool("askUser", {"question": "Go on?"})
    script = [ask, hostile(outside), text("ok")]
    job = wait_for(closed(bench, script, expert("a", ask=True), open=True).run("a", "q"))
    assert answer(closed(bench, script, expert("a", ask=True)), job, "yes").status == "completed"
    assert outside.exists()


def test_a_job_that_asks_is_opened_by_the_option_of_a_later_command(bench: Bench, outside: Path) -> None:
    script = [exec_("true"), hostile(outside), text("ok")]
    job = wait_for(closed(bench, script, attended=True).run("a", "q"))
    host = closed(bench, script, attended=True, open=True)
    assert answer(host, job, "yes").status == "completed"
    assert outside.exists()
    assert is_right(host, job)


def test_a_widening_in_the_log_counts_for_its_whole_job(bench: Bench, outside: Path) -> None:
    script = [hostile(outside), hostile(outside), text("ok")]
    job = wait_for(closed(bench, script, attended=True).run("a", "q"))
    wide = Widening(source="cli", default="allow")
    host = closed(bench, script, attended=True, widening=wide)
    assert answer(host, job, "yes").status == "completed"
    assert is_right(host, job)


def test_an_unattended_job_never_waits_for_a_person(bench: Bench, outside: Path) -> None:
    host = closed(bench, [hostile(outside), text("ok")], attended=True, unattended=True)
    assert wait_for(host.run("a", "q")).status == "completed"
    assert not outside.exists()


def test_the_reader_of_a_stream_is_asked_about_it(bench: Bench) -> None:
    host = closed(bench, [exec_("touch", "made"), text("ok")])

    async def work() -> None:
        async for event in host.stream("a", "q"):
            if isinstance(event, Question):
                assert (event.is_approval, (bench.workspace / "made").exists()) == (True, False)
                await host.answer("yes", question=event)
        assert (bench.workspace / "made").exists()

    wait_for(work())
