"""`perstack run` and `perstack resume`: their output on stdout and stderr, and their exit status."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from terminal import ASKING, TEAM, Terminal, reply

SOLO = '[experts.solo]\ninstruction = "You work alone."\n'
SCRIPTED = ("--provider", "scripted")


def test_stdout_carries_only_events_one_a_line_and_stderr_is_empty_without_a_terminal(terminal: Terminal) -> None:
    terminal.project(TEAM, lead=[reply("", ("helper", {"query": "x"})), reply("ok")], helper=[reply("done")])
    result = terminal.run("run", "lead", "q", *SCRIPTED)
    assert result.code == 0
    kinds = [event["type"] for event in result.events]
    assert kinds[:3] == ["initializeRuntime", "startRun", "startGeneration"]
    assert kinds[-1] == "finishRun"
    for event in result.events:
        assert {"type", "id", "timestamp", "jobId", "runId"} <= set(event)
    for event in (event for event in result.events if "digest" in event):
        assert event["stepNumber"] == event["step"] >= 1
        assert event["expertKey"] in ("lead", "helper")
    assert result.err == "", "nothing is wrong, and nobody looks"


def test_stdout_is_what_stands_in_the_logs(terminal: Terminal) -> None:
    terminal.project(TEAM, lead=[reply("", ("helper", {"query": "x"})), reply("ok")], helper=[reply("done")])
    result = terminal.call("run", "lead", "q", *SCRIPTED, "--job-id", "job")
    for run_id in ("job-1", "job-2"):
        log = terminal.workspace / "perstack/jobs/job/runs" / run_id / "events.jsonl"
        shown = [line for line in result.lines if json.loads(line)["runId"] == run_id and "digest" in json.loads(line)]
        assert log.read_text().splitlines() == shown


def test_text_is_streamed_only_when_asked_for(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[reply("many words come", thinking="hm")])
    quiet = terminal.call("run", "solo", "q", *SCRIPTED)
    loud = terminal.call("run", "solo", "q", *SCRIPTED, "--stream")
    assert not [event for event in quiet.events if event["type"].startswith("stream")]
    deltas = [event["delta"] for event in loud.events if event["type"] == "streamText"]
    assert "".join(deltas) == "many words come"
    assert [event for event in loud.events if event["type"] == "streamReasoning"]


def test_a_query_of_a_dash_is_read_from_stdin(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    result = terminal.run("run", "solo", "-", *SCRIPTED, stdin="from a pipe")
    assert next(event for event in result.events if event["type"] == "startRun")["query"] == "from a pipe"


def test_each_way_a_job_ends_has_its_exit_status_and_says_what_to_do_next(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea?"})), reply("Served.")])
    asks = terminal.call("run", "guest", "q", *SCRIPTED, "--job-id", "tea", attended=True)
    assert (asks.code, 'is waiting for an answer: Tea?; answer with: perstack answer tea "ANSWER"' in asks.err) == (
        3,
        True,
    )
    result = terminal.call("run", "guest", "yes", "--continue", "-i", *SCRIPTED, attended=True)
    assert (result.code, "completed: 2 steps" in result.err) == (0, True)

    terminal.project(SOLO, solo=[{**reply("", ("todo", {})), "repeat": 3}, reply("end")])
    limited = terminal.call("run", "solo", "q", *SCRIPTED, "--max-steps", "2", "--job-id", "long", attended=True)
    assert (limited.code, "perstack resume long --max-steps N" in limited.err) == (4, True)
    resumed = terminal.call("resume", "long", "--max-steps", "9", *SCRIPTED, attended=True)
    assert (resumed.code, "completed: 4 steps" in resumed.err) == (0, True)

    terminal.script(solo=[{"error": {"status": 401, "message": "bad key"}}])
    failed = terminal.call("run", "solo", "q", *SCRIPTED, "--job-id", "sad")
    assert (failed.code, "bad key" in failed.err, "perstack resume sad" in failed.err) == (1, True, True)


def test_without_a_terminal_a_question_and_a_limit_leave_stderr_empty_and_stdout_whole(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea?"})), reply("Served.")])
    asks = terminal.call("run", "guest", "q", *SCRIPTED, "--job-id", "tea")
    assert (asks.code, asks.err, asks.events[-1]["type"]) == (3, "", "stopRunByInteractiveTool")
    result = terminal.call("answer", "tea", "yes", *SCRIPTED)
    assert (result.code, result.err, result.events[-1]["type"]) == (0, "", "finishRun")
    terminal.project(SOLO, solo=[{**reply("", ("todo", {})), "repeat": 3}, reply("end")])
    limited = terminal.call("run", "solo", "q", *SCRIPTED, "--max-steps", "2", "--job-id", "long")
    assert (limited.code, limited.err, limited.events[-1]["type"]) == (4, "", "stopRunByExceededMaxSteps")


MISSING_SKILLS = (
    SOLO
    + """
[experts.solo.skills.tools]
type = "mcpStdioSkill"
command = "no-such-command"
[experts.solo.skills.others]
type = "mcpStdioSkill"
command = "nor-this-one"
lazyInit = true
"""
)


def test_a_missing_skill_is_named_on_stderr_and_the_run_goes_on(terminal: Terminal) -> None:
    ran = terminal.project(MISSING_SKILLS.partition("[experts.solo.skills.others]")[0], solo=[reply("ok")]).call(
        "run", "solo", "q", *SCRIPTED
    )
    assert ran.code == 0
    (line,) = ran.err.splitlines()
    assert line.startswith("warning: ")
    assert "'tools'" in line
    assert "no-such-command" in line


@pytest.mark.parametrize("way", ["required = true", "--strict-skills"])
def test_a_required_skill_that_is_missing_ends_the_run_before_its_model_is_called(terminal: Terminal, way: str) -> None:
    flags = (way,) if way.startswith("--") else ()
    toml = MISSING_SKILLS if flags else MISSING_SKILLS.replace("command =", f"{way}\ncommand =")
    terminal.project(toml, solo=[reply("ok")])
    result = terminal.call("run", "solo", "q", *SCRIPTED, "--job-id", "job", *flags)
    assert result.code == 1
    stored = [event for event in result.events if "digest" in event]
    assert [event["type"] for event in stored] == ["startRun", "errorRun"]
    for words in ("skill 'tools' is required and missing: ", "no-such-command", "skill 'others' is required", "nor-th"):
        assert words in stored[1]["error"]["message"]
        assert words in result.err
    again = terminal.call("resume", "job", *SCRIPTED, *flags)
    assert (again.code, again.events[-1]["type"]) == (1, "errorRun")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("run", "solo", "q", "--resume-from", "c"), "--resume-from needs --continue-job"),
        (("run", "solo", "q", "--continue", "--continue-job", "j"), "leave one of them out"),
        (("run", "solo", "q", "-i"), "add --continue"),
        (("run", "solo", "q", "--job-id", "../up"), "not a valid job id"),
        (("run", "solo", "q", "--job-id", "x" * 129), "not a valid job id"),
        (("run", "solo", "q", "--continue-job", "a/b"), "not a valid job id"),
        (("run", "nobody", "q"), "there is no Expert 'nobody'"),
        (("run", "solo", "q", "--provider", "nope"), "no provider 'nope'"),
        (("run", "solo", "q", "--storage", "s4:bucket"), "no storage 's4'"),
        (("run", "solo", "q", "--config", "none.toml"), "no such file"),
        (("run", "solo", "q", "--continue"), "no Job yet"),
        (("resume", "nothing"), "nothing"),
        (("resume",), "no Job yet"),
        (("resume", "--settle", "x"), "CALL=done"),
        (("rnu",), "did you mean run?"),
    ],
)
def test_wrong_usage_is_one_line_that_says_what_to_change_and_exit_2(
    terminal: Terminal, args: tuple[str, ...], words: str
) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    result = terminal.call(*args)
    assert result.code == 2
    assert words in result.err
    assert "Traceback" not in result.err
    assert not result.out
    assert not list(terminal.workspace.glob("perstack/jobs/*"))


def test_without_any_definition_the_error_says_where_it_looked(terminal: Terminal) -> None:
    result = terminal.call("run", "solo", "q")
    assert result.code == 2
    assert "no perstack.toml in" in result.err


def test_a_broken_definition_names_every_problem_and_runs_nothing(terminal: Terminal) -> None:
    terminal.project('[experts.a]\ndelegates = ["ghost"]\n[experts."b c"]\ninstruction = 7\n', a=[])
    result = terminal.call("run", "a", "q", *SCRIPTED)
    assert result.code == 2
    assert len([line for line in result.err.splitlines() if line.startswith("error: ")]) >= 3
    assert not (terminal.workspace / "perstack").exists()


def test_an_id_that_exists_is_refused(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    assert terminal.call("run", "solo", "q", *SCRIPTED, "--job-id", "mine").code == 0
    result = terminal.call("run", "solo", "q", *SCRIPTED, "--job-id", "mine")
    assert (result.code, "Job mine exists already" in result.err) == (2, True)


def test_the_sqlite_storage_is_one_option_away(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    storage = ("--storage", "sqlite:perstack/state.db")
    assert terminal.call("run", "solo", "q", *SCRIPTED, "--job-id", "in-db", *storage).code == 0
    assert "in-db" in terminal.call("jobs", *storage).out
    assert (terminal.workspace / "perstack/state.db").is_file()
    assert not (terminal.workspace / "perstack/jobs").exists()


UNUSED = {
    *(
        "yaml",
        *("perstack.media", "perstack.oversight", "perstack.streams"),
        "perstack.agent_skills",
        "perstack.agent_skills.library",
    ),
    "perstack.engine.plugins.secret_vault",
    *("perstack.core.files.line_diff", "perstack.snapshots.tree_diff", "perstack.snapshots.rewind"),
    *(
        "httpx",
        "httpx2",
        "mcp",
        "jsonschema",
        "rich",
        "genai_prices",
        "sqlite3",
        "xllamacpp",
        "dotenv",
        "yaml",
        "pathspec",
    ),
    *("perstack.snapshots.snapshots", "perstack.snapshots.workspace_walk", "perstack.snapshots.ignore_rules"),
    *(
        "perstack.iterations",
        *("perstack.tasks.memory", "perstack.tasks.operations", "perstack.tasks.task_log"),
        "perstack.core.definitions.recorded_definition",
        "perstack.core.permissions.decide_call",
    ),
    *(
        "perstack.core.permissions.matching",
        "perstack.core.permissions.shell",
        "perstack.core.jobs.answer_reading",
        "perstack.audit.receipt_statements",
    ),
    *(
        "perstack.compaction.make_room",
        "perstack.schedules.scheduler",
        "perstack.tasks.execution_memory",
    ),
    *(
        "perstack.audit.verify",
        "perstack.iterations.iterations",
        "perstack.diagnostics.install",
    ),
    "perstack.doors.cli.live",
    *("perstack_server.mcp", "perstack.doors.shared.question_forms", "perstack_mcp.session"),
    *(
        "perstack.recordings",
        "perstack.recordings.run_playback",
        "perstack.recordings.reading",
        "perstack_recorded.provider",
    ),
    # of `perstack.http_providers` every command imports the table with which providers register, and nothing else
    *("perstack.http_providers.client", "perstack.http_providers.endpoint", "perstack.http_providers.errors"),
    *("perstack.http_providers.messages", "perstack.http_providers.structured_output"),
    *("perstack_bubblewrap.runtime", "perstack_original.importing"),
}


LATER = {
    *("perstack.core.runs.events", "perstack.core.runs.decide", "perstack.core.jobs.checkpoints"),
    *("perstack.engine.runs.loop", "perstack.engine.runs.generation", "perstack.engine.runs.tool_calls"),
    "perstack.core.runs.evolve",
}
"""Modules that a Run imports after its first event: pydantic takes long to make the classes of all events."""


def test_the_loop_and_the_events_of_runs_are_imported_after_the_first_event(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    program = (
        "import os, sys\n"
        "from perstack.doors.cli import run\n"
        "class Peek(run.JobOutput):\n"
        "    def __call__(self, event, line):\n"
        f"        print(event.type, sorted({LATER} & set(sys.modules)), flush=True)\n"
        "        os._exit(0)\n"
        "run.JobOutput = Peek\n"
        "from perstack.doors.cli.main import run_command_line\n"
        "sys.argv = ['perstack', 'run', 'solo', 'q', '--provider', 'scripted']\n"
        "run_command_line()\n"
    )
    assert _output_of(terminal, program) == "initializeRuntime []"


def test_a_list_of_jobs_imports_neither_the_loop_nor_the_events_and_states_of_runs(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    assert terminal.call("run", "solo", "q", *SCRIPTED).code == 0
    unused = {
        *(*LATER, "perstack.lockfile.lock", "perstack.core.runs.state", "perstack.core.runs.display_events"),
        *("perstack.engine.jobs.runner", "perstack.engine.log.run_session", "perstack.engine.plugins.job_skills"),
    }
    program = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print(sorted({unused} & set(sys.modules))))\n"
        "from perstack.doors.cli.main import run_command_line\n"
        "sys.argv = ['perstack', 'jobs']\n"
        "run_command_line()\n"
    )
    assert _output_of(terminal, program).splitlines()[-1] == "[]"


def _output_of(terminal: Terminal, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=terminal.workspace,
        env=terminal.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def test_a_run_with_built_in_tools_imports_nothing_heavy_before_its_first_event(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    program = (
        "import sys\n"
        "from perstack.doors.cli import run\n"
        "class Peek(run.JobOutput):\n"
        "    def __call__(self, event, line):\n"
        f"        print(sorted({UNUSED} & set(sys.modules)), file=sys.stderr)\n"
        "run.JobOutput = Peek\n"
        "from perstack.doors.cli.main import run_command_line\n"
        "sys.argv = ['perstack', 'run', 'solo', 'q', '--provider', 'scripted']\n"
        "run_command_line()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=terminal.workspace,
        env=terminal.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert set(done.stderr.splitlines()[:-1]) == {"[]"}


@pytest.mark.parametrize("name", ["docker", "cursor", "claude-code", "gemini"])
def test_a_runtime_of_the_original_is_one_warning_and_the_definition_chooses(terminal: Terminal, name: str) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    result = terminal.call("run", "solo", "q", *SCRIPTED, "--runtime", name)
    assert (result.code, len(result.err.splitlines())) == (0, 1), result.err
    assert result.err.startswith(f"warning: --runtime {name} has no effect: programs run where perstack.toml says")
    assert "runtime" not in next(event for event in result.events if event["type"] == "startRun").get("overrides", [])
    assert terminal.call("run", "solo", "q", *SCRIPTED, "--runtime", "perstack").err == ""
    # the sandbox of the definition is not lost
    terminal.project('runtime = "nosuch"\n' + SOLO, solo=[reply("ok")])
    assert "no runtime 'nosuch' is installed" in terminal.call("run", "solo", "q", *SCRIPTED, "--runtime", name).err


def test_a_runtime_that_there_is_not_is_refused_before_anything_is_written(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    result = terminal.call("run", "solo", "q", *SCRIPTED, "--runtime", "lcoal")
    assert (result.code, result.out) == (2, "")
    assert "no runtime 'lcoal' is installed; available: " in result.err
    assert not terminal.jobs().exists()
    assert terminal.call("run", "solo", "q", *SCRIPTED, "--runtime", "local").code == 0


def test_a_broken_module_in_perstack_plugins_is_one_line(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    (terminal.workspace / "broken.py").write_text("raise RuntimeError('half\\nmade')")
    result = terminal.run("run", "solo", "q", env={"PERSTACK_PLUGINS": "broken", "PYTHONPATH": str(terminal.workspace)})
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)
    assert "PERSTACK_PLUGINS: broken cannot be imported (RuntimeError: half made)" in result.err


@pytest.mark.parametrize(
    "command", [("run", "solo", "q"), ("install",), ("test",), ("submit", "solo", "q"), ("worker",)]
)
@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_a_missing_file_of_variables_is_an_error_in_every_command(
    terminal: Terminal, command: tuple[str, ...], kind: str
) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    (terminal.workspace / ".env").write_text("A=b\n")
    (terminal.workspace / "folder").mkdir()
    result = terminal.call(*command, "--env-path", ".env", "--env-path", kind)
    assert (result.code, result.out) == (2, "")
    assert result.err == f"error: --env-path {kind}: no such file in {terminal.workspace}\n"
    assert not terminal.jobs().exists()


@pytest.mark.parametrize(
    "written",
    [
        "run solo q --env-path a.env b.env",
        "run --env-path a.env b.env solo q",
        "run solo --env-path a.env b.env --max-steps 3 q",
        "run --env-path=a.env b.env --output text solo q --env-path c.env",
        "run solo q --env-path a.env b.env c.env --quiet",
    ],
)
def test_several_files_of_variables_follow_one_option_as_in_the_original(terminal: Terminal, written: str) -> None:
    reads = '\n[experts.solo.skills.b]\ntype = "mcpStdioSkill"\ncommand = "nowhere"\nrequiredEnv = ["A", "B"]\n'
    terminal.project(SOLO + reads, solo=[reply("ok")])
    for name in ("a", "b", "c"):
        (terminal.workspace / f"{name}.env").write_text(f"{name.upper()}=set\n")
    ran = terminal.run(*written.split(), *SCRIPTED, "--strict-skills")
    assert "skill 'b' could not be connected to: nowhere was not found" in ran.err + ran.out, "its variables are there"


def test_a_word_too_many_that_follows_no_file_is_still_an_error(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    (terminal.workspace / ".env").write_text("A=b\n")
    result = terminal.call("run", "solo", "two", "words", "--env-path", ".env")
    assert (result.code, "unexpected arguments: words" in result.err) == (2, True)
    result = terminal.call("run", "solo", "q", "--env-path", ".env", "words")
    assert result.err == f"error: --env-path words: no such file in {terminal.workspace}\n"


def test_options_of_the_original_without_effect_are_a_warning_that_says_what_to_write(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    result = terminal.call("run", "solo", "q", "--env", "FOO", "BAR", "--env", "BAZ", "--quiet", *SCRIPTED)
    assert (result.code, result.out) == (0, "ok\n")
    assert result.err.splitlines() == [
        "warning: --env has no effect: a skill names its variables in `requiredEnv`",
    ]


@pytest.mark.parametrize("key", ["@org/expert", "@org/expert@1.0.0"])
def test_an_unknown_published_expert_names_the_way_to_bring_it_over(terminal: Terminal, key: str) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    result = terminal.call("run", key, "q", *SCRIPTED)
    assert result.code == 2
    assert "available: solo; bring a published Expert over with `include`: docs/from-perstack.md" in result.err
    assert "include" not in terminal.call("run", "nobody", "q", *SCRIPTED).err


@pytest.mark.parametrize("which", [("--continue",), ("--continue-job", "job")])
def test_a_continuation_without_a_query_names_the_command_that_needs_none(
    terminal: Terminal, which: tuple[str, ...]
) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    result = terminal.run("run", "solo", *which, stdin="")
    assert (result.code, result.out) == (2, "")
    assert result.err.endswith("; `perstack resume` continues a Job without one\n")


def test_the_step_limit_that_is_shown_is_the_one_in_force_after_a_resume(terminal: Terminal) -> None:
    thinks = [reply("", ("think", {"thought": "hm"})) for _ in range(5)]
    terminal.project(SOLO, solo=[*thinks, reply("ok")])
    terminal.call("run", "solo", "q", *SCRIPTED, "--job-id", "j", "--max-steps", "2")
    summary = terminal.jobs() / "j" / "job.json"
    for most, shown in (("4", "4 of at most 4 steps"), ("0", "6 steps")):
        terminal.call("resume", "j", "--max-steps", most)
        assert json.loads(summary.read_text()).get("maxSteps") == (int(most) or None)
        assert f"  spent   {shown}, 0 + 0 tokens" in terminal.call("log", "j").lines
    assert terminal.call("verify", "j").code == 0


def test_a_filter_prints_only_events_of_its_types_by_both_names(terminal: Terminal) -> None:
    terminal.project(TEAM, lead=[reply("", ("helper", {"query": "x"})), reply("ok")], helper=[reply("done")])
    ours = terminal.call("run", "lead", "q", *SCRIPTED, "--filter", "finishRun, startRun")
    original = terminal.call("run", "lead", "q", *SCRIPTED, "--filter", "completeRun,stopRunByError")
    streamed = terminal.call("run", "lead", "q", *SCRIPTED, "--filter", "streamText", "--output", "jsonl")
    assert [event["type"] for event in ours.events] == ["startRun", "startRun", "finishRun", "finishRun"]
    assert [event["type"] for event in original.events] == ["finishRun", "finishRun"]
    assert {event["type"] for event in streamed.events} == {"streamText"}, "it is named, so it is streamed"
    assert (ours.code, original.code, streamed.code) == (0, 0, 0)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--filter", "finishRuns"), "--filter finishRuns: no such event type; available: startRun,"),
        (("--filter", "finishRun,\x1b[2J"), "no such event"),
        (("--filter", " , "), "--filter names no event"),
        (("--filter", ""), "--filter: it is empty"),
        (("--filter", "finishRun", "--quiet"), "leave out --quiet"),
        (("--filter", "finishRun", "--output", "text"), "leave out --quiet, --output human and --output text"),
    ],
)
def test_a_filter_that_selects_nothing_is_refused_before_a_job_begins(
    terminal: Terminal, words: tuple[str, ...], complaint: str
) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    result = terminal.call("run", "solo", "q", *SCRIPTED, *words)
    assert (result.code, result.out) == (2, "")
    assert complaint in result.err
    assert "\x1b" not in result.err
    assert len(result.err.splitlines()) == 1
    assert not (terminal.workspace / "perstack/jobs").exists()
