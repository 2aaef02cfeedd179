"""`perstack test`: the tests it runs, its output, its files, and its exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
import warm
from terminal import ASKING, Terminal, reply

WRITER = '[experts.writer]\ninstruction = "[[writer]] writes."\n'
HAIKU = [reply("", ("writeTextFile", {"path": "out.md", "text": "about logs"}), usage=(100, 20)), reply("Done.")]


@pytest.fixture(autouse=True)
def room(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which temporary folders are created."""
    folder = tmp_path_factory.mktemp("room")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def project_of(terminal: Terminal, *tests: str, toml: str = WRITER, **turns: list[dict[str, Any]]) -> Terminal:
    """Write a project with tests that have these keys, and `m.json` as the model."""
    tables = [
        f'[[experts.{key}.tests]]\nmodel = "m.json"\nquery = "go"\n{text}\n'
        for key in (turns or {"writer": 1})
        for text in tests
    ]
    terminal.project(f"{toml}\n" + "\n".join(tables), **(turns or {"writer": HAIKU}))
    (terminal.workspace / "script.json").rename(terminal.workspace / "m.json")
    return terminal


def report_of(terminal: Terminal, *args: str) -> dict[str, Any]:
    result = terminal.call("test", "--json", *args)
    report: dict[str, Any] = json.loads(result.out)
    assert report["ok"] is (result.code == 0)
    return report


def reasons(terminal: Terminal) -> list[list[str]]:
    return [test["attempts"][0]["reasons"] for test in report_of(terminal)["tests"]]


def test_a_test_that_is_as_expected_passes_and_leaves_nothing(terminal: Terminal, room: Path) -> None:
    project_of(
        terminal,
        """name = "a haiku"
        expect.called = ["writeTextFile(path=*.md)"]
        expect.notCalled = ["exec"]
        expect.resultContains = ["Done"]
        expect.resultMatches = "^D.ne"
        expect.files = { "out.md" = "logs" }
        expect.maxSteps = 2
        expect.command = "grep -q logs out.md && grep -q Done"
        """,
    )
    before = sorted(path.name for path in terminal.workspace.rglob("*"))
    result = terminal.call("test")
    assert (result.code, result.err) == (0, "")
    assert result.lines[-2].split() == [
        *("writer:", "a", "haiku", "ok", "1/1", "100", "%", "(21–100)", "2", "120", "unknown"),
        *result.lines[-2].split()[-2:],
    ]
    assert result.lines[-1] == "1 of 1 test passed, 1 Job, cost unknown"
    assert sorted(path.name for path in terminal.workspace.rglob("*")) == before
    assert list(room.iterdir()) == []


def test_a_test_that_fails_says_why_and_keeps_the_job_to_be_looked_at(terminal: Terminal) -> None:
    project_of(
        terminal,
        """name = "fails"
        expect.called = ["exec(git *)"]
        expect.notCalled = ["writeTextFile"]
        expect.resultContains = ["Never"]
        expect.files = { "none.md" = "", "out.md" = "disks" }
        expect.maxSteps = 1
        expect.maxCost = 1
        expect.command = ["sh", "-c", "echo so it goes >&2; exit 7"]
        """,
    )
    result = terminal.call("test")
    assert result.code == 1
    for line in (
        "FAILED writer: fails",
        f"  {terminal.workspace}/perstack.toml:4",
        "  no call is `exec(git *)`; calls: writeTextFile(path=out.md, text=about logs)",
        "  a call is `writeTextFile`: writeTextFile(path=out.md, text=about logs)",
        '  the result has no "Never"; it is: Done.',
        "  none.md is missing",
        '  out.md has no "disks"; it begins: about logs',
        "  it took 2 steps, more than 1",
    ):
        assert line in result.lines
    everything = " ".join(reasons(terminal)[0])
    assert "ended with exit status 7: so it goes" in everything
    assert "its cost is unknown" in everything
    command = next(line.strip() for line in result.lines if line.startswith("  perstack log"))
    looked = terminal.call(*command.split()[1:])
    assert looked.code == 0
    assert "writeTextFile" in looked.out


def test_a_model_that_fails_and_a_script_that_ends_are_reasons(terminal: Terminal) -> None:
    project_of(terminal, 'name = "ends"', writer=HAIKU[:1])
    ((reason,),) = reasons(terminal)
    assert reason.startswith("status is `failed`, not `completed`: ")
    assert "the script has no turn 2" in reason


def test_questions_are_answered_and_without_answers_the_job_waits(terminal: Terminal) -> None:
    turns = [reply("", ("askUser", {"question": "Tea or coffee?"})), reply("Served.")]
    project_of(
        terminal,
        'name = "answered"\nanswers = ["Tea"]\nexpect.resultContains = ["Served"]\nexpect.called = ["askUser"]',
        'name = "waits"\nexpect.status = "waiting"',
        'name = "stops"',
        toml=ASKING,
        guest=turns,
    )
    good, waits, stops = reasons(terminal)
    assert (good, waits) == ([], [])
    assert stops == ["status is `waiting`, not `completed`: Tea or coffee?"]


def test_a_call_that_a_rule_denies_was_not_made(terminal: Terminal) -> None:
    project_of(
        terminal,
        'name = "made"\nexpect.called = ["writeTextFile"]',
        'name = "not made"\nexpect.notCalled = ["writeTextFile"]',
        toml=f'[permissions]\ndeny = ["writeTextFile"]\n{WRITER}',
    )
    made, not_made = reasons(terminal)
    assert made == ["no call is `writeTextFile`; there was none"]
    assert not_made == []


def test_calls_of_delegates_count_and_so_does_calling_them(terminal: Terminal) -> None:
    lead = '[experts.lead]\ninstruction = "[[lead]] leads."\ndelegates = ["writer"]\n'
    terminal.project(
        f"{lead}{WRITER}"
        '[[experts.lead.tests]]\nname = "n"\nquery = "q"\nmodel = "script.json"\n'
        'expect.called = ["delegate/writer(query=*haiku*)", "writeTextFile"]',
        lead=[reply("", ("writer", {"query": "a haiku"})), reply("All done.")],
        writer=HAIKU,
    )
    assert reasons(terminal) == [[]]


def test_each_job_works_in_a_fresh_copy_of_a_folder(terminal: Terminal) -> None:
    notes = terminal.workspace / "fixtures" / "notes"
    notes.mkdir(parents=True)
    (notes / "out.md").write_text("mine")
    project_of(terminal, 'name = "n"\nworkspace = "fixtures/notes"\nrepeats = 2\nexpect.files = { "out.md" = "logs" }')
    assert reasons(terminal) == [[]]
    assert (notes / "out.md").read_text() == "mine"


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_folder_is_refused_whose_copy_would_not_be_one(terminal: Terminal, kind: str) -> None:
    notes = terminal.workspace / "notes"
    notes.mkdir()
    if kind == "link":
        (notes / "out.md").symlink_to("../mine.md")
    else:
        os.mkfifo(notes / "out.md")
    project_of(terminal, 'name = "n"\nworkspace = "notes"')
    ((reason,),) = reasons(terminal)
    assert reason.startswith(f"it could not be run: {notes}/out.md is ")
    assert not (terminal.workspace / "mine.md").exists()


def test_files_that_a_model_made_hostile_are_never_waited_for_or_followed(terminal: Terminal) -> None:
    (terminal.workspace / "secret").write_text("secret")
    make = f"mkfifo pipe; ln -s {terminal.workspace}/secret link; mkdir folder; ln -s loop loop; truncate -s 9M large"
    project_of(
        terminal,
        'name = "n"\nexpect.files = { pipe = "", link = "secret", folder = "", loop = "", large = "" }',
        writer=[
            reply(
                "",
                (
                    "exec",
                    {"command": "sh", "args": ["-c", make], "env": {}, "cwd": ".", "stdout": True, "stderr": True},
                ),
            ),
            reply("Done."),
        ],
    )
    (found_reasons,) = reasons(terminal)
    assert [reason.split(" ", 1) for reason in found_reasons][:3] == [
        ["pipe", "is not a file"],
        ["link", "leads out of the workspace"],
        ["folder", "is not a file"],
    ]
    assert found_reasons[3].startswith("loop ")
    assert found_reasons[4] == "large is larger than 8 MiB"


def test_a_pass_rate_is_judged_over_all_repeats(terminal: Terminal) -> None:
    # every other Job finds that another was there before
    once = f"mkdir {terminal.workspace}/once 2>/dev/null || ! rmdir {terminal.workspace}/once"
    common = f'repeats = 4\nexpect.command = "{once}"\n'
    project_of(terminal, f'name = "half"\npassRate = 0.5\n{common}', f'name = "most"\npassRate = 0.75\n{common}')
    report = report_of(terminal, "--parallel", "1")
    half, most = report["tests"]
    assert (half["ok"], half["passed"], half["rate"]) == (True, 2, 0.5)
    assert (most["ok"], most["passed"], most["interval"]) == (False, 2, [0.15, 0.85])
    assert report_of(terminal, "--parallel", "1", "--repeats", "1", "-k", "half")["tests"][0]["repeats"] == 1


def test_costs_are_those_of_all_repeats_and_each_is_held_to_its_own(terminal: Terminal) -> None:
    prices = '[prices."scripted/scripted"]\ninput = 1000\noutput = 1000\n'
    project_of(
        terminal,
        'name = "dear"\nrepeats = 3\nexpect.maxCost = 0.1',
        'name = "fair"\nrepeats = 3\nexpect.maxCost = 0.12',
        toml=prices + WRITER,
    )
    dear, fair = report_of(terminal)["tests"]
    assert (dear["ok"], dear["costUsd"], dear["tokens"]) == (False, 0.36, 360)
    assert dear["attempts"][0]["reasons"] == ["it cost $0.1200, more than $0.1000"]
    assert (fair["ok"], fair["attempts"][0]["costUsd"]) == (True, 0.12)
    assert terminal.call("test", "-k", "fair").lines[-1] == "1 of 1 test passed, 3 Jobs, $0.3600"


def test_a_budget_of_the_definition_holds_for_each_job(terminal: Terminal) -> None:
    project_of(
        terminal,
        'name = "n"\nrepeats = 2\nexpect.status = "budget"',
        toml=f"[budget]\nmaxToolCalls = 1\n{WRITER}",
        writer=[HAIKU[0], HAIKU[0], reply("Done.")],
    )
    assert report_of(terminal)["tests"][0]["passed"] == 2


def test_a_command_sees_no_secret_and_knows_where_the_definition_is(terminal: Terminal) -> None:
    check = terminal.workspace / "check.sh"
    check.write_text('test -z "$API_KEY" && test -e out.md && test "$NAMED" = shown && test "$PWD" = "$(pwd)"')
    project_of(terminal, 'name = "n"\nexpect.command = ": ${NAMED}; sh \\"$PERSTACK_PROJECT/check.sh\\""')
    assert terminal.call("test", env={"API_KEY": "k", "NAMED": "shown"}).code == 0


def test_a_command_that_hangs_and_forks_is_ended_with_all_that_it_started(terminal: Terminal) -> None:
    mark = terminal.workspace / "mark"
    project_of(terminal, f'name = "n"\ntimeout = 3000\nexpect.command = "(sleep 30; touch {mark}) & sleep 60"')
    began = time.monotonic()
    ((reason,),) = reasons(terminal)
    assert time.monotonic() - began < 20
    assert "was ended after its timeout of 3000 ms" in reason
    assert subprocess.run(["pgrep", "-f", f"touch {mark}"], capture_output=True, check=False).stdout == b""


def test_a_job_that_takes_too_long_is_stopped(terminal: Terminal) -> None:
    project_of(terminal, 'name = "n"\ntimeout = 300', writer=[{**reply("Slow."), "delayMs": 60_000}])
    began = time.monotonic()
    assert reasons(terminal) == [["it was stopped after its timeout of 300 ms"]]
    assert time.monotonic() - began < 20


def test_no_test_is_a_failure_and_a_wrong_one_a_wrong_definition(terminal: Terminal) -> None:
    terminal.project(WRITER)
    result = terminal.call("test")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: no Expert has a test: write [[experts.NAME.tests]]")
    project_of(terminal, 'name = "n"\nrepeats = 0')
    wrong = terminal.call("test")
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err == (
        f"error: {terminal.workspace}/perstack.toml:8: experts.writer.tests[0].repeats: must be at least 1, not 0\n"
    )
    project_of(terminal, 'name = "n"')
    assert terminal.call("test", "nobody").code == 2
    assert terminal.call("test", "-k", "zz").code == 1
    (terminal.workspace / "m.json").write_text("{")
    broken = terminal.call("test")
    assert broken.code == 2
    assert "m.json is neither a script nor a recording" in broken.err


def test_validate_checks_tests_too(terminal: Terminal) -> None:
    project_of(terminal, 'name = "n"\nexpect.called = ["exec("]')
    result = terminal.call("validate")
    assert result.code == 2
    assert "experts.writer.tests[0].expect.called[0]" in result.out


def test_an_expert_with_errors_is_no_hindrance_to_the_tests_of_others(terminal: Terminal) -> None:
    project_of(terminal, 'name = "n"', toml=f"[experts.broken]\n{WRITER}")
    assert terminal.call("test", "writer").code == 0


def test_nothing_of_a_test_is_sent_to_the_anchor(terminal: Terminal) -> None:
    project_of(terminal, 'name = "n"', toml=f'[audit]\nanchor = "file:anchor"\n{WRITER}')
    assert terminal.call("test").code == 0
    assert not (terminal.workspace / "anchor").exists()


def test_junit_has_a_case_for_each_test_and_survives_what_a_model_wrote(terminal: Terminal) -> None:
    project_of(
        terminal,
        'name = "good"',
        'name = "bad"\nexpect.resultContains = ["x"]',
        writer=[reply("\x00\x1b]0;<&\ufffe")],
    )
    result = terminal.call("test", "--junit", "report.xml")
    assert result.code == 1
    (suite,) = Xml.fromstring((terminal.workspace / "report.xml").read_bytes())
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("writer", "2", "1")
    good, bad = suite
    assert (good.get("name"), len(good)) == ("good", 0)
    assert 'the result has no "x"' in (bad[0].text or "")
    on_stdout = terminal.call("test", "--junit", "-")
    assert Xml.fromstring(on_stdout.out.encode()).get("tests") == "2"
    assert terminal.call("test", "--junit", "-", "--json").code == 2


def test_ctrl_c_ends_with_what_there_is(terminal: Terminal, room: Path) -> None:
    project_of(
        terminal,
        'name = "quick"',
        'name = "slow"\nrepeats = 3\nexpect.resultContains = ["x"]',
        writer=[{**reply("Done."), "delayMs": 300}],
    )
    text = (terminal.workspace / "perstack.toml").read_text()
    (terminal.workspace / "slow.json").write_text(
        json.dumps({"experts": {"*": {"turns": [{**reply("Done."), "delayMs": 60_000}]}}})
    )
    head, _, tail = text.rpartition('model = "m.json"')
    (terminal.workspace / "perstack.toml").write_text(f'{head}model = "slow.json"{tail}')
    process = warm.perstack(
        *("test", "--json", "--parallel", "2"),
        cwd=terminal.workspace,
        env={**terminal.env, "TMPDIR": str(room)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and len(list(room.glob("*/*slow*"))) < 2:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")
    report = json.loads(out)
    assert (report["ok"], report["interrupted"]) == (False, True)
    assert [(test["name"], test["done"]) for test in report["tests"]] == [("quick", 1), ("slow", 0)]
    assert list(room.iterdir()) == []
