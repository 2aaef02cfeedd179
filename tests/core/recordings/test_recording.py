"""Recording a Job, and playing it again: without a model, a server or a person, and with the same events."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts import Bench, Seen, expert, project_of, sampled, until_it_crashes, wait_for
from recording import NO_SCRIPT, SCRIPT, Travel, exec_, facts, player, record, setting, team
from stored_damage import edit

from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.settings import Overrides
from perstack.core.definitions.skills import McpStdioSkill
from perstack.core.jobs.summary import JobSummary
from perstack.errors import Damaged, NotFound, UsageError
from perstack.host import Host
from perstack.recordings.model import parse_recording
from perstack.testing.crashing_storage import CrashingStorage, CrashPoint, crash_points
from perstack.testing.scripted import ScriptedProvider, text, tool, turn


def record_job(bench: Bench, job_id: str = "live", name: str = "job.json") -> Path:
    """The recording of a Job of this bench, beside its workspace."""
    path = bench.workspace.parent / f"{bench.workspace.name}-{name}"
    path.write_bytes(wait_for(bench.host(NO_SCRIPT).exports.record(job_id)).to_bytes())
    return path


def fresh(bench: Bench, name: str = "fresh") -> Path:
    folder = bench.workspace / name
    folder.mkdir()
    return folder


def test_a_played_job_has_the_results_and_the_events_of_the_one_that_was_recorded(bench: Bench) -> None:
    live = record(bench)
    assert (live.status, live.text) == ("completed", "All of it is done.")
    folder = fresh(bench)
    host = player(record_job(bench), folder, bench.storage)
    played = wait_for(host.run("boss", "Do all of it", job_id="again"))
    assert (played.status, played.text, played.usage) == (live.status, live.text, live.usage), played.error
    assert facts(host, "again") == facts(bench.host(NO_SCRIPT), "live")
    # what changes files is really done, and what reads needs no file
    assert (folder / "out.md").read_text() == "# Out\nmore\n"
    assert not (folder / "notes.txt").exists()
    events = [line.event for line in wait_for(host.events("again-1"))]
    assert events[0].provider == "recorded"  # type: ignore[union-attr]
    doors = {event.by.door for event in events if getattr(event, "by", None) is not None}
    assert doors == {"recording"}
    assert wait_for(host.audit.replay("again")).ok
    assert wait_for(host.audit.verify("again")).ok


def test_what_a_person_told_the_job_is_told_again_at_the_same_step(bench: Bench) -> None:
    turns = [turn(tool("askUser", {"question": "Tea?"})), turn(tool("think", {"thought": "hm"})), text("Well.")]
    host = bench.host(ScriptedProvider(turns), expert("boss", ask=True))
    wait_for(host.run("boss", "Do it", job_id="live"))
    wait_for(host.tell("live", "only once"))
    assert wait_for(host.answer("yes", job_id="live")).status == "completed"
    playing = player(record_job(bench), fresh(bench), bench.storage, expert("boss", ask=True))
    played = wait_for(playing.run("boss", "Do it", job_id="again"))
    assert (played.status, played.text) == ("completed", "Well."), played.error
    (told,) = [line.event for line in wait_for(playing.events("again-1")) if line.event.type == "tellRun"]
    assert (told.text, told.step_number, told.by.door) == ("only once", 2, "recording")
    assert wait_for(playing.audit.replay("again")).ok


def test_a_recording_of_a_played_job_is_the_same_recording(bench: Bench) -> None:
    record(bench)
    first = record_job(bench)
    host = player(first, fresh(bench), bench.storage)
    wait_for(host.run("boss", "Do all of it", job_id="again"))
    before, after = (
        parse_recording(data, "it") for data in (first.read_bytes(), wait_for(host.exports.record("again")).to_bytes())
    )
    strip = {"job": "", "runs": ()}
    assert before.model_copy(update=strip) == after.model_copy(update=strip)
    assert [run.model_copy(update={"model": ""}) for run in before.runs] == [
        run.model_copy(update={"model": ""}) for run in after.runs
    ]


def test_many_play_one_recording_at_the_same_time(bench: Bench) -> None:
    import asyncio

    record(bench)
    path = record_job(bench)
    host = player(path, fresh(bench), bench.storage, recorded_tools="recorded")

    async def all_at_once() -> list[JobSummary]:
        return await asyncio.gather(*(host.run("boss", "Do all of it", job_id=f"p{n}") for n in range(6)))

    assert {job.text for job in wait_for(all_at_once())} == {"All of it is done."}


async def life(path: Path, bench: Bench, folder: Path, point: CrashPoint | None) -> int:
    """One process: begins the Job, or resumes it, and crashes at the point."""
    from hosts import OPENED, open_storage

    storage = CrashingStorage(open_storage(bench.storage, folder), point)
    overrides = Overrides(recording=str(path), recorded_tools="recorded")
    host = Host(project_of(*team()), workspace=folder, storage=storage, env={}, overrides=overrides)
    OPENED.append(host)
    async with host:
        with until_it_crashes():
            try:
                job = await host.job("job")
            except NotFound:
                job = await host.run("boss", "Do all of it", job_id="job")
            else:
                if job.status != "completed":
                    job = await host.resume("job")
            assert (job.status, job.text) == ("completed", "All of it is done."), job.error
    return storage.appends


@pytest.mark.sweep
@pytest.mark.parametrize("bench", ["file:perstack"], indirect=True)
def test_killed_at_any_write_a_played_job_ends_as_the_recorded_one(bench: Bench) -> None:
    record(bench)
    path = record_job(bench)
    appends = wait_for(life(path, bench, fresh(bench, "plain"), None))
    for number, point in enumerate(sampled(crash_points(appends))):
        folder = fresh(bench, str(number))
        wait_for(life(path, bench, folder, point))
        wait_for(life(path, bench, folder, None))


def played_error(bench: Bench, *experts, query: str = "Do all of it", **overrides) -> str:
    """What a Job that plays the recording fails with."""
    host = player(record_job(bench), fresh(bench), bench.storage, *experts, **overrides)
    seen = Seen()
    job = wait_for(host.run("boss", query, job_id="changed", on_event=seen))
    errors = [event.error.name for event in seen.of("errorRun", run="changed-1")]
    assert (job.status, errors) == ("stoppedByError", ["NotRecorded"]), job.status
    return job.error or ""


def test_a_changed_definition_is_an_error_that_names_what_differs(bench: Bench) -> None:
    record(bench)
    changed = played_error(bench, *team(instruction="[[boss]] You see to it well."))
    assert "the instruction of boss is not the one" in changed
    assert 'definition = "any"' in changed


def test_another_instruction_may_be_played_all_the_same(bench: Bench) -> None:
    record(bench)
    host = player(
        record_job(bench), fresh(bench), bench.storage, *team(instruction="[[boss]] Else."), recorded_definition="any"
    )
    assert wait_for(host.run("boss", "Do all of it")).text == "All of it is done."


def test_a_tool_that_is_gone_a_rule_that_denies_and_another_query_are_named(bench: Bench) -> None:
    record(bench)
    error = played_error(bench, *team(permissions=Permissions(deny=("exec",), ask=("appendTextFile",))))
    assert error.startswith("step 1 of boss: exec(command=sh, args=")
    assert "failed now (" in error
    assert "did not when" in error


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"delegates": ()}, "step 2 of boss: hand(query=left) failed now (\"There is no tool 'hand'"),
        ({"skills": ()}, "step 3 of boss: askUser(question=Which colour?) failed now (\"There is no tool 'askUser'"),
    ],
)
def test_a_delegate_or_a_skill_that_is_gone_is_named(bench: Bench, changes: dict, words: str) -> None:
    record(bench)
    assert words in played_error(bench, *team(**changes))


def test_a_query_that_was_not_recorded_is_named(bench: Bench) -> None:
    record(bench)
    error = played_error(bench, query="Do half of it")
    assert 'does not have a Run of boss with the query "Do half of it"; it has: "Do all of it"' in error


def test_an_unfinished_job_is_recorded_and_played_as_far_as_it_got(bench: Bench) -> None:
    (bench.workspace / "notes.txt").write_text("a note\n")
    stopped = wait_for(bench.host(SCRIPT, *team(), plugins=(Travel(),)).run("boss", "Do all of it", job_id="live"))
    assert stopped.question == "Which colour?"
    host = player(record_job(bench), fresh(bench), bench.storage)
    played = wait_for(host.run("boss", "Do all of it", job_id="again"))
    assert (played.status, played.question) == ("stoppedByInteractiveTool", "Which colour?")
    gone_on = wait_for(host.answer("blue", job_id="again"))
    assert gone_on.error is not None
    assert "step 4 of boss has no reply in" in gone_on.error
    assert "it ends after step 3 (stoppedByInteractiveTool)" in gone_on.error


def test_a_tool_that_is_chosen_is_really_run(bench: Bench) -> None:
    script = [turn(tool("exec", exec_("sh", "-c", "echo run > ran.txt; echo ok"))), text("done")]
    wait_for(bench.host(script, expert("a")).run("a", "q", job_id="live"))
    for tools, ran in (
        ({"exec": "live"}, True),
        ({"@perstack/base/*": "recorded"}, False),
        (None, False),
        ("live", True),
    ):
        folder = bench.workspace / f"w{ran}{tools}".replace("/", "")
        folder.mkdir()
        host = player(record_job(bench), folder, bench.storage, expert("a"), recorded_tools=tools)
        assert wait_for(host.run("a", "q")).text == "done"
        assert (folder / "ran.txt").exists() is ran, tools


def test_the_recording_may_stand_in_perstack_toml_and_starts_no_program_by_that(bench: Bench) -> None:
    script = [turn(tool("exec", exec_("sh", "-c", "echo run > ran.txt; echo ok"))), text("done")]
    wait_for(bench.host(script, expert("a")).run("a", "q", job_id="live"))
    provider = setting(recording=str(record_job(bench)), tools={"exec": "live"})
    host = Host(
        project_of(expert("a")).model_copy(update={"provider": provider}),
        workspace=fresh(bench),
        storage=bench.storage,
        env={"PATH": "/usr/bin:/bin"},
        overrides=Overrides(open=True),
    )
    assert wait_for(host.run("a", "q")).text == "done"
    assert not (host.workspace / "ran.txt").exists()
    wait_for(host.close())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "provider recorded has no recording: give --recording FILE"),
        ({"recording": 3}, "recording must be the path of a recording"),
        (
            {"recording": "x", "tools": "dead"},
            "tools is 'dead': use `live`, `recorded`, or a table with one of them for each tool",
        ),
        ({"recording": "x", "tools": {"exec": 1}}, "tools.exec is 1: use"),
        ({"recording": "x", "definition": "none"}, "use `same` or `any`"),
        ({"recording": "x", "pace": "slow"}, "pace is 'slow': use seconds from 0 to 60"),
        ({"recording": "x", "pace": True}, "pace is True: use seconds from 0 to 60"),
        ({"recoding": "x"}, "recorded has no recoding: it has recording, tools, definition"),
        ({"recording": "x"}, "the recording x cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_setting_is_one_line_before_anything_is_written(bench: Bench, values: dict, words: str) -> None:
    host = Host(
        project_of(expert("a")).model_copy(update={"provider": setting(**values)}),
        workspace=bench.workspace,
        storage=bench.storage,
        env={},
    )
    with pytest.raises(Exception, match=r".") as caught:
        wait_for(host.run("a", "q"))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not wait_for(host.jobs.list()).jobs
    wait_for(host.close())


def test_a_live_job_is_not_continued_by_a_recording(bench: Bench) -> None:
    script = [tool("askUser", {"question": "?"}), text("done")]
    wait_for(bench.host(script, expert("a", ask=True)).run("a", "q", job_id="live"))
    host = player(record_job(bench), bench.workspace, bench.storage, expert("a", ask=True))
    with pytest.raises(UsageError, match="is on scripted: a recording is played only from the beginning"):
        wait_for(host.answer("yes", job_id="live"))


def test_a_job_with_a_redacted_event_is_not_recorded(bench: Bench) -> None:
    host = bench.host([text("secret")], expert("a"))
    wait_for(host.run("a", "q", job_id="live"))
    wait_for(host.audit.redact("live-1-1", reason="asked"))
    with pytest.raises(UsageError, match="live-1 cannot be recorded: live-1-1 was redacted"):
        wait_for(host.exports.record("live"))


def test_no_secret_is_in_a_recording(bench: Bench) -> None:
    secrets = [f"sk-{'a1' * 12}", "hunter2-the-password", "a-value-only-the-env-knows", "pa55word1"]
    key, password, known, inner = secrets
    script = ScriptedProvider(
        [
            turn(
                tool("exec", exec_("echo", f"key {key}; DB_PASSWORD={password}")),
                tool("exec", exec_("echo", "--token", known)),
                tool("writeTextFile", {"path": "x", "text": f"password: {password}\nhttps://me:{inner}@example.com/"}),
                text=f"I use {key} and {known}.",
                thinking=f"API_TOKEN={password}",
            ),
            text(f"Done with {known}"),
        ]
    )
    host = Host(
        project_of(expert("a")),
        workspace=bench.workspace,
        storage=bench.storage,
        env={"PATH": "/usr/bin:/bin", "SERVICE_TOKEN": known},
        overrides=Overrides(provider="scripted"),
        plugins=[script],
    )
    query = f"Use {key} and {known}, please"
    wait_for(host.run("a", query, job_id="live"))
    data = wait_for(host.exports.record("live")).to_bytes()
    wait_for(host.close())
    assert not [secret for secret in secrets if secret.encode() in data], data.decode()
    path = bench.workspace / "job.json"
    path.write_bytes(data)
    again = player(path, fresh(bench), bench.storage, expert("a"))
    assert wait_for(again.run("a", query)).text == "Done with [redacted]"
    assert "does not have a Run of a with the query" in (wait_for(again.run("a", "Use that, please")).error or "")


def test_calls_that_were_refused_are_refused_again(bench: Bench) -> None:
    script = [turn(tool("writeTextFile", {"path": 3}), tool("nothing")), text("done")]
    wait_for(bench.host(script, expert("a")).run("a", "q", job_id="live"))
    host = player(record_job(bench), fresh(bench), bench.storage, expert("a"))
    assert wait_for(host.run("a", "q", job_id="again")).text == "done"
    assert facts(host, "again") == facts(bench.host(NO_SCRIPT), "live")


def test_a_server_that_asks_is_not_asked_and_needs_not_be_there(bench: Bench) -> None:
    travel = Travel()
    skills = (McpStdioSkill(name="travel", command="x"),)
    traveller = expert("a").model_copy(update={"skills": skills})
    script = [tool("book", {"who": "me"}), text("gone")]
    wait_for(bench.host(script, traveller, plugins=(travel,)).run("a", "q", job_id="live"))
    wait_for(bench.host(script, traveller, plugins=(travel,)).answer('{"city": "Oslo"}'))
    host = player(record_job(bench), fresh(bench), bench.storage, traveller)
    seen = Seen()
    assert wait_for(host.run("a", "q", on_event=seen)).text == "gone"
    assert travel.calls == 2
    assert [part.text for event in seen.of("finishToolCall") for part in event.contents] == ["booked Oslo, ticket 2"]


def test_a_damaged_log_is_not_recorded(bench: Bench) -> None:
    host = bench.host([text("done")], expert("a"))
    wait_for(host.run("a", "q", job_id="live"))
    edit(bench.workspace, bench.storage, b'"query":"q"', b'"query":"p"')
    with pytest.raises(Damaged):
        wait_for(bench.host(NO_SCRIPT).exports.record("live"))
