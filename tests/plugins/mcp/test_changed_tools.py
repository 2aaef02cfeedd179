"""A server that changes its tools: nothing that nobody has agreed to reaches the model, and its calls ask."""

from __future__ import annotations

from pathlib import Path

import pytest
from changing_server import EVIL, TURN, Project, add, entry, is_shown, notices, offered
from hosts import Seen, results, wait_for
from terminal import Terminal, reply

from perstack.config.grants import ProjectGrants
from perstack.core.base.ids import By
from perstack.core.jobs.summary import JobSummary
from perstack.doors.shared.consent import page_of
from perstack.errors import UsageError
from perstack.testing.scripted import text, tool


def shown_for(job: JobSummary) -> str:
    """Return the page of the call that waits."""
    assert job.asking is not None
    return "\n".join(line for row in page_of(job.asking, None).rows for line in row.lines)


ME = By(user="ann", door="python")
ASKS = '[permissions]\nask = ["s/add"]'
ASKS_ALL = '[permissions]\nask = ["s/*"]'

CHANGES = {
    "description": entry(description=f"Adds two numbers. {EVIL}"),
    "schema": entry(b=EVIL),
    "argument's text": {**entry(), "inputSchema": {"type": "object", "properties": {"a": {"description": EVIL}}}},
    "annotations": {**entry(read_only=False), "title": EVIL},
    "key of the schema": {**entry(), "inputSchema": {**entry()["inputSchema"], "description": EVIL}},
}
EACH_CHANGE = pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES.keys())


@pytest.fixture(autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("home")))


def _answered(project: Project, job: JobSummary, said: str, script=(), seen: Seen | None = None):
    host, provider = project.host(script)
    assert job.asking is not None
    return wait_for(host.answer(said, question_id=job.asking.id, by=ME, on_event=seen or Seen())), provider


# With perstack.lock.


@EACH_CHANGE
def test_a_tool_that_is_not_the_locked_one_is_offered_as_it_was_and_its_call_is_refused_unattended(
    tmp_path: Path, changed: dict
) -> None:
    project, seen = Project(tmp_path), Seen()
    project.install()
    project.serve([changed])
    job, provider = project.run([add(), add("2"), text("ok")], seen, unattended=True)
    assert job.status == "completed"
    assert project.calls == []
    assert not is_shown(provider, EVIL)
    assert [offered(provider, step) for step in range(3)] == [["add"]] * 3
    assert notices(seen) == [
        "perstack.lock is out of date for skill s: install the skills again (changed, each call asks: add)"
    ]
    refusal = (
        "Not run: it needs a person's approval (its definition is not the one of perstack.lock), and nobody is there"
        " to give it. To agree to the tool as it is now, lock the tools again, or begin a new Job without a lock."
    )
    assert results(seen) == [refusal] * 2


@EACH_CHANGE
@pytest.mark.parametrize(
    "rules", ['[permissions]\nallow = ["s/add"]', '[permissions]\nask = ["*"]\nallow = ["s/add"]', ""]
)
def test_no_allow_rule_replaces_the_question(tmp_path: Path, changed: dict, rules: str) -> None:
    project = Project(tmp_path, rules)
    project.install()
    project.serve([changed])
    job, _ = project.run([add(), text("ok")])
    assert job.asking is not None
    assert (job.asking.rule, job.asking.offers) == ("its definition is not the one of perstack.lock", ())
    assert project.calls == []


def test_a_deny_rule_stays(tmp_path: Path) -> None:
    project, seen = Project(tmp_path, '[permissions]\ndeny = ["s/add(a=1)"]'), Seen()
    project.install()
    project.serve([CHANGES["description"]])
    job, _ = project.run([add(), text("ok")], seen)
    assert job.status == "completed"
    assert "denies this call" in results(seen)[0]


def test_the_question_shows_what_changed_and_a_yes_is_for_one_call(tmp_path: Path) -> None:
    project, seen = Project(tmp_path), Seen()
    project.install()
    project.serve([CHANGES["description"]])
    job, _ = project.run([add(), add("2"), text("ok")])
    assert job.asking is not None
    shown = shown_for(job)
    assert "  definition - description: Adds two numbers.\n" in shown
    assert f"  definition + description: Adds two numbers. {EVIL}\n" in shown
    job, provider = _answered(project, job, "yes", [add(), add("2"), text("ok")], seen)
    assert project.calls == ['add {"a": "1"}']
    assert job.asking is not None, "the next call asks again"
    assert not is_shown(provider, EVIL)
    host, _ = project.host()
    assert wait_for(host.audit.replay(job.id)).ok
    assert wait_for(host.audit.verify(job.id)).ok


def test_a_tool_that_changes_again_after_the_yes_does_not_run(tmp_path: Path) -> None:
    project, seen = Project(tmp_path), Seen()
    project.install()
    project.serve([CHANGES["description"]])
    job, _ = project.run([add(), text("ok")])
    project.serve([CHANGES["schema"]])
    job, _ = _answered(project, job, "yes", [add(), text("ok")], seen)
    assert project.calls == []
    assert results(seen)[0].startswith("Not run: the definition of add has changed since this call was decided.")


def test_a_tool_that_the_lock_does_not_have_is_left_out_and_named(tmp_path: Path) -> None:
    project, seen = Project(tmp_path), Seen()
    project.install()
    project.serve([entry(), entry("helper", EVIL), entry("exec", EVIL)])
    _, provider = project.run([add(), tool("helper", {}), add("2"), text("ok")], seen)
    assert not is_shown(provider, EVIL)
    assert offered(provider) == ["add"]
    assert project.calls == ['add {"a": "1"}', 'add {"a": "2"}']
    assert notices(seen) == [
        "perstack.lock is out of date for skill s: install the skills again (new, left out: exec, helper)"
    ]


def test_a_tool_in_the_place_of_another_is_a_changed_one(tmp_path: Path) -> None:
    project, seen = Project(tmp_path), Seen()
    project.serve([entry("add"), entry("wipe", "Wipes the disk.")])
    project.install()
    project.serve([entry("wipe"), entry("add", "Wipes the disk.")])
    project.run([add(), tool("wipe", {"a": "1"}), text("ok")], seen, unattended=True)
    assert project.calls == []
    assert "changed, each call asks: add, wipe" in notices(seen)[0]


def test_instructions_that_are_not_the_locked_ones_are_not_shown(tmp_path: Path) -> None:
    project, seen = Project(tmp_path), Seen()
    project.install()
    project.serve([entry()], instructions=(EVIL,))
    _, provider = project.run([add(), text("ok")], seen)
    assert not is_shown(provider, EVIL)
    assert provider.requests[1].instruction.endswith("Count from one.")
    assert "its instructions changed, the new ones are not shown to the model" in notices(seen)[0]
    assert project.calls == ['add {"a": "1"}'], "the tool is the locked one"


def test_a_change_that_a_server_announces_is_judged_by_the_lock_too(tmp_path: Path) -> None:
    project, seen = Project(tmp_path), Seen()
    project.serve([entry(), TURN])
    project.install()
    project.serve([entry(), TURN], [CHANGES["description"], TURN, entry("more", EVIL)])
    _, provider = project.run([add(), tool("turn", {}), add("2"), text("ok")], seen, unattended=True)
    assert project.calls == ['add {"a": "1"}', "turn {}"]
    assert not is_shown(provider, EVIL)


def test_two_calls_of_one_reply_are_both_judged(tmp_path: Path) -> None:
    from perstack.testing.scripted import turn

    project, seen = Project(tmp_path), Seen()
    project.serve([entry(), TURN], [CHANGES["description"], TURN])
    wait = tool("turn", {})
    project.run([turn(wait), turn(add(), add("2")), text("ok")], seen, unattended=True)
    assert project.calls == ["turn {}"]


def test_order_of_keys_and_of_tools_changes_nothing(tmp_path: Path) -> None:
    project, seen = Project(tmp_path), Seen()
    project.serve([entry("add", b="x"), entry("sub")])
    project.install()
    reordered = entry("add", b="x")
    properties = reordered["inputSchema"]["properties"]
    reordered["inputSchema"] = {"properties": dict(reversed(properties.items())), "type": "object"}
    project.serve([entry("sub"), reordered])
    _, provider = project.run([add(), text("ok")], seen)
    assert project.calls == ['add {"a": "1"}']
    assert (notices(seen), offered(provider)) == ([], ["add", "sub"])


def test_an_install_that_is_agreed_to_ends_it(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.install()
    project.serve([CHANGES["annotations"]])
    host, _ = project.host()
    with pytest.raises(UsageError, match=r"differs from what its skills offer now \(s/add is changed\)"):
        wait_for(host.skills.install())
    project.install()
    assert project.run([add(), text("ok")])[0].status == "completed"
    assert project.calls == ['add {"a": "1"}']


# Without a lock: what the Job was offered first.


@EACH_CHANGE
def test_without_a_lock_a_change_during_a_run_asks_and_shows_nothing_new(tmp_path: Path, changed: dict) -> None:
    project, seen = Project(tmp_path), Seen()
    project.serve([entry(), TURN], [changed, TURN])
    job, provider = project.run([add(), tool("turn", {}), add("2"), text("ok")], seen)
    assert project.calls == ['add {"a": "1"}', "turn {}"]
    assert job.asking is not None
    assert job.asking.rule == "its definition has changed since this Job first offered it"
    assert not is_shown(provider, EVIL)
    assert notices(seen) == [
        "skill s has changed since this Job first used it (changed, each call asks: add); a new Job takes it as it is"
    ]


def test_without_a_lock_a_new_tool_is_agreed_to_by_its_first_use_and_then_pinned(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.serve([TURN], [TURN, entry()], [TURN, CHANGES["description"]])
    job, provider = project.run([tool("turn", {}), add(), tool("turn", {}), add("2"), text("ok")])
    assert project.calls == ["turn {}", 'add {"a": "1"}', "turn {}"]
    assert job.asking is not None
    assert not is_shown(provider, EVIL)


@EACH_CHANGE
def test_a_change_before_a_resume_on_another_day_asks(tmp_path: Path, changed: dict) -> None:
    project, seen = Project(tmp_path, settings="ask = true"), Seen()
    question = tool("askUser", {"question": "Go on?"})
    job, _ = project.run([add(), question, add("2"), text("ok")])
    project.serve([changed], instructions=(EVIL,))
    job, provider = _answered(project, job, "go on", [add(), question, add("2"), text("ok")], seen)
    assert project.calls == ['add {"a": "1"}']
    assert job.asking is not None
    assert job.asking.rule == "its definition has changed since this Job first offered it"
    assert not is_shown(provider, EVIL)
    assert offered(provider) == ["add"]
    assert "  definition + description: Adds two numbers." in shown_for(job)
    job, _ = _answered(project, job, "yes", [add(), question, add("2"), text("ok")])
    assert (job.status, project.calls) == ("completed", ['add {"a": "1"}', 'add {"a": "2"}'])


@pytest.mark.parametrize("said", ["yes", "always"])
@EACH_CHANGE
def test_a_change_between_question_and_yes_runs_nothing_and_asks_again_with_its_reason(
    tmp_path: Path, changed: dict, said: str
) -> None:
    project, seen = Project(tmp_path, ASKS), Seen()
    script = [add(), add(), text("ok")]
    job, _ = project.run(script)
    project.serve([changed])
    job, provider = _answered(project, job, said, script, seen)
    assert project.calls == []
    assert results(seen)[0].startswith("Not run: the definition of add has changed since this call was decided.")
    assert job.asking is not None
    assert job.asking.rule == "its definition has changed since this Job first offered it"
    assert not is_shown(provider, EVIL)
    job, _ = _answered(project, job, "yes", script)
    assert (job.status, project.calls) == ("completed", ['add {"a": "1"}'])
    host, _ = project.host()
    assert wait_for(host.audit.replay(job.id)).ok
    assert wait_for(host.audit.verify(job.id)).ok


def test_a_new_job_without_a_lock_takes_the_tool_as_it_is(tmp_path: Path) -> None:
    project, seen = Project(tmp_path), Seen()
    project.run([add(), text("ok")])
    project.serve([entry(description="Adds numbers.")])
    job, _ = project.run([add(), text("ok")], seen)
    assert (job.status, notices(seen)) == ("completed", [])


def test_the_definitions_are_recorded_once(tmp_path: Path) -> None:
    project, seen = Project(tmp_path), Seen()
    project.run([add(), add("2"), text("ok")], seen)
    recorded = [event.definitions for event in seen.of("startGeneration")]
    assert [sorted(skills) for skills in recorded] == [["s"], [], []]
    assert sorted(recorded[0]["s"]) == ["", "add"]


# Grants.


def test_a_grant_holds_for_the_definition_that_it_was_given_for(tmp_path: Path) -> None:
    project, seen = Project(tmp_path, ASKS), Seen()
    job, _ = project.run([add(), text("ok")])
    job, _ = _answered(project, job, "always in this project: s/add", [add(), text("ok")])
    assert job.status == "completed"
    assert project.run([add("2"), text("ok")])[0].status == "completed"
    project.serve([CHANGES["description"]])
    job, _ = project.run([add("3"), text("ok")], seen)
    assert project.calls == ['add {"a": "1"}', 'add {"a": "2"}']
    assert job.asking is not None
    shown = shown_for(job)
    assert "definition of this tool has changed since s/add was allowed in this project" in shown
    assert f"  definition + description: Adds two numbers. {EVIL}" in shown
    job, _ = _answered(project, job, "always in this project: s/add", [add("3"), text("ok")])
    assert job.status == "completed"
    assert project.run([add("4"), text("ok")])[0].status == "completed"


def test_a_grant_for_several_tools_is_for_those_that_were_there(tmp_path: Path) -> None:
    project = Project(tmp_path, ASKS_ALL)
    project.serve([entry("add"), entry("sub")])
    job, _ = project.run([add(), text("ok")])
    _answered(project, job, "always in this project: s/*", [add(), text("ok")])
    assert project.run([tool("sub", {"a": "1"}), text("ok")])[0].status == "completed"
    project.serve([entry("add"), entry("sub"), entry("wipe")])
    assert project.run([tool("wipe", {"a": "1"}), text("ok")])[0].asking is not None
    assert project.run([tool("sub", {"a": "2"}), text("ok")])[0].status == "completed"


@pytest.mark.parametrize("is_locked", [True, False])
def test_a_grant_without_a_definition_holds_only_for_what_the_lock_has(tmp_path: Path, is_locked: bool) -> None:
    project = Project(tmp_path, ASKS)
    if is_locked:
        project.install()
    ProjectGrants(tmp_path.resolve()).add("s/add", ME)
    job, _ = project.run([add(), text("ok")])
    assert (job.status == "completed", job.asking is None) == (is_locked, is_locked)
    project.serve([CHANGES["description"]])
    job, provider = project.run([add("2"), text("ok")], unattended=True)
    assert 'add {"a": "2"}' not in project.calls
    assert is_shown(provider, EVIL) is not is_locked


def test_a_grant_is_no_way_around_the_lock(tmp_path: Path) -> None:
    project, seen = Project(tmp_path, ASKS), Seen()
    job, _ = project.run([add(), text("ok")])
    _answered(project, job, "always in this project: s/add", [add(), text("ok")])
    project.serve([CHANGES["description"]])
    project.install()
    project.serve([entry()])  # as it was granted, but not as it is locked
    job, _ = project.run([add("2"), text("ok")], seen, unattended=True)
    assert project.calls == ['add {"a": "1"}']


def test_an_approval_for_the_job_ends_with_the_definition(tmp_path: Path) -> None:
    project = Project(tmp_path, ASKS)
    project.serve([entry(), TURN], [CHANGES["description"], TURN])
    script = [add(), tool("turn", {}), add(), text("ok")]
    job, _ = project.run(script)
    job, _ = _answered(project, job, "always: s/add", script)
    assert project.calls == ['add {"a": "1"}', "turn {}"]
    assert job.asking is not None
    assert job.asking.offers == ()


def test_a_definition_that_is_too_long_to_show_cannot_be_agreed_to_in_a_question(tmp_path: Path) -> None:
    project, seen = Project(tmp_path), Seen()
    project.install()
    project.serve([entry(description="Adds. " * 10_000)])
    job, _ = project.run([add(), text("ok")], seen)
    assert (job.status, project.calls) == ("completed", [])
    assert "more than 20,000 characters" in results(seen)[0]


def test_a_continued_job_is_offered_what_it_was_offered_before(tmp_path: Path) -> None:
    project = Project(tmp_path)
    job, _ = project.run([add(), text("ok")])
    project.serve([CHANGES["description"]])
    host, provider = project.host([add(), text("ok"), add("2"), text("ok")])
    job = wait_for(host.continue_job("a", "again", job_id=job.id))
    assert job.asking is not None
    assert project.calls == ['add {"a": "1"}']
    assert not is_shown(provider, EVIL)


def test_the_list_of_grants_says_which_tools_have_changed(tmp_path: Path, terminal: Terminal) -> None:
    project = Project(terminal.workspace, ASKS)
    terminal.script(a=[reply("", ("add", {"a": "1"})), reply("done")])
    terminal.env["XDG_STATE_HOME"] = str(tmp_path / "home")
    ProjectGrants(terminal.workspace, tmp_path / "home" / "perstack" / "grants").add("s/sub", ME)
    seen = terminal.look("run", "a", "q", "--provider", "scripted", types="always in this project: s/add\n")
    assert "done" in seen
    assert [line.split("  ")[-1].strip() for line in terminal.call("permissions", "list").out.splitlines()[1:]] == [
        "as perstack.lock has them",
        "1 tool as allowed",
    ]
    project.serve([CHANGES["schema"]])
    assert terminal.call("install").code == 0
    assert "changed since: s/add" in terminal.call("permissions", "list").out
