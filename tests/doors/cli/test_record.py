"""`perstack record`, and `--recording`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from terminal import Terminal, reply

TELLING_SERVER = Path(__file__).parents[2] / "plugins" / "mcp" / "servers" / "telling.py"
SERVED = f"""
[experts.mechanic]
instruction = "You mend."
maxSteps = 9
permissions = {{ allow = ["exec"] }}

[experts.mechanic.skills.bench]
type = "mcpStdioSkill"
command = "{sys.executable}"
args = ["{TELLING_SERVER}"]
requiredEnv = ["BENCH_TOKEN"]
"""


@pytest.fixture
def mended(terminal: Terminal) -> Terminal:
    """Return a project with a Job `mend` that called a server and a program, and its recording `mend.json`."""
    terminal.project(
        SERVED,
        **{
            "*": [
                reply("", ("touch", {"part": "wheel"}), ("exec", {"command": "sh", "args": ["-c", "echo $$ > pid"]})),
                reply("Mended."),
            ]
        },
    )
    (terminal.workspace / ".env").write_text("BENCH_TOKEN=nobody-else-knows-this\n")
    done = terminal.call("run", "mechanic", "Mend it", "--provider", "scripted", "--job-id", "mend")
    assert done.code == 0, done.err
    result = terminal.call("record", "mend", "--to", "mend.json")
    assert (result.code, result.out) == (0, "")
    assert result.err.startswith("mend.json: 1 Run, 2 generations, 2 calls, ")
    (terminal.workspace / ".env").unlink()
    (terminal.workspace / "told.jsonl").unlink()
    (terminal.workspace / "pid").unlink()
    return terminal


def test_a_recording_is_played_without_the_server_its_variable_and_the_program(mended: Terminal) -> None:
    played = mended.call("run", "mechanic", "Mend it", "--recording", "mend.json", "--output", "text")
    assert (played.code, played.out) == (0, "Mended.\n"), played.err
    left = {path.name for path in mended.workspace.iterdir()}
    assert not left & {"told.jsonl", "pid"}


def test_with_mask_secrets_neither_output_nor_disk_has_what_tools_give(terminal: Terminal) -> None:
    password, variable = "Tr0ub4dor-3x", "nobody-else-knows-this"
    (terminal.workspace / "notes.txt").write_text(f"db: postgres://ada:{password}@db/x\n")
    (terminal.workspace / ".env").write_text(f"BENCH_TOKEN={variable}\n")
    read = reply("", ("touch", {}), ("exec", {"command": "cat", "args": ["notes.txt", "told.jsonl"]}))
    write = reply("", ("writeTextFile", {"path": "out.txt", "text": "[secret:1] [secret:2] [secret:3]"}))
    terminal.project(f"maskSecrets = true\n{SERVED}", **{"*": [read, write, reply("Done.")]})
    result = terminal.call("run", "mechanic", "Go", "--provider", "scripted", "--job-id", "job")
    assert result.code == 0, result.err
    assert {*(terminal.workspace / "out.txt").read_text().split()} == {"ada", password, variable}
    shown = [result.out, result.err, terminal.call("log", "job").out, terminal.call("record", "job").out]
    kept = [path.read_text() for path in (terminal.workspace / "perstack").rglob("*") if path.is_file()]
    assert not [text for text in (*shown, *kept) if password in text or variable in text]


def test_the_model_of_a_played_run_is_that_of_the_recording_alone(mended: Terminal) -> None:
    definition = mended.workspace / "perstack.toml"
    definition.write_text(f'model = "claude-sonnet-5"\nprovider.providerName = "anthropic"\n{SERVED}')
    played = mended.call("run", "mechanic", "Mend it", "--recording", "mend.json")
    assert played.code == 0, played.err
    assert played.events[-1]["text"] == "Mended."
    start = next(event for event in played.events if event["type"] == "startRun")
    assert (start["provider"], start["model"]) == ("recorded", "recorded")


def test_stdout_takes_a_recording_too_and_an_older_one_is_replaced(mended: Terminal) -> None:
    result = mended.call("record", "mend", "--to", "-")
    assert result.out == (mended.workspace / "mend.json").read_text()
    assert result.err.startswith("recorded: 1 Run, ")
    assert mended.call("record", "@last", "--to", "mend.json").code == 0
    assert mended.call("record", "mend", "--to", "deep/er/mend.json").code == 0
    assert json.loads((mended.workspace / "deep" / "er" / "mend.json").read_text())["job"] == "mend"


def test_what_is_no_recording_is_not_replaced(mended: Terminal) -> None:
    for name in ("perstack.toml", "."):
        refused = mended.call("record", "mend", "--to", name)
        assert (refused.code, refused.out) == (2, "")
        assert refused.err.splitlines() == [
            f"error: --to {name} exists already and is not a recording: choose another name, or remove the file"
        ]
    assert (mended.workspace / "perstack.toml").read_text() == SERVED


def test_a_job_that_is_not_finished_is_recorded_and_that_is_said(waiting: Terminal) -> None:
    result = waiting.call("record", "ask", "--to", "ask.json")
    assert result.code == 0
    assert "note: Job ask is not finished (stoppedByInteractiveTool); it is recorded up to its last event" in result.err


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("none.json", None, "the recording none.json cannot be read: No such file or directory"),
        ("bad.json", b"\x00\x01", "bad.json: not a recording ("),
        ("bad.json", b'{"format": "perstack-recording/9"}', "not a recording that this version reads"),
        ("bad.json", b'{"format": "perstack-recording/1", "job": "j"}', "bad.json: runs: Field required"),
        ("bad.json", b"[" * 5000, "bad.json: not a recording ("),
        (".", None, "the recording . cannot be read: it is not a regular file"),
    ],
)
def test_a_file_that_is_none_is_one_line_and_begins_no_job(
    terminal: Terminal, file: str, content: bytes | None, words: str
) -> None:
    terminal.project('[experts.a]\ninstruction = "A."\n')
    if content is not None:
        (terminal.workspace / file).write_bytes(content)
    refused = terminal.call("run", "a", "q", "--recording", file)
    assert (refused.code, refused.out) == (2, "")
    assert words in refused.err
    assert len(refused.err.splitlines()) == 1
    assert "Traceback" not in refused.err
    assert terminal.call("jobs", "--json").out == ""


def test_another_provider_beside_a_recording_is_refused(mended: Terminal) -> None:
    refused = mended.call("run", "mechanic", "Mend it", "--recording", "mend.json", "--provider", "anthropic")
    assert refused.code == 2
    assert "a recording is played by provider recorded, not by anthropic" in refused.err


def test_provider_recorded_without_a_recording_says_how_to_give_one(mended: Terminal) -> None:
    refused = mended.call("run", "mechanic", "Mend it", "--provider", "recorded")
    assert refused.code == 2
    assert "give --recording FILE, or set `recording` in [provider.setting]" in refused.err


def test_a_tool_that_was_taken_away_since_is_named(mended: Terminal) -> None:
    definition = mended.workspace / "perstack.toml"
    definition.write_text(f'{SERVED}omit = ["touch"]\n')
    failed = mended.call("run", "mechanic", "Mend it", "--recording", "mend.json", "--output", "text")
    assert failed.code == 1
    assert "step 1 of mechanic: touch(part=wheel) failed now (\"There is no tool 'touch'." in failed.err
    assert "and did not when mend.json was recorded" in failed.err


def test_the_secrets_of_env_files_are_in_no_recording(terminal: Terminal) -> None:
    terminal.project('[experts.a]\ninstruction = "A."\n', **{"*": [reply("It is nobody-else-knows-this.")]})
    (terminal.workspace / ".env").write_text("BENCH_TOKEN=nobody-else-knows-this\n")
    assert terminal.call("run", "a", "q", "--provider", "scripted", "--job-id", "a").code == 0
    result = terminal.call("record", "a", "--to", "a.json")
    assert "note: possible secrets in 1 place were replaced by [redacted]" in result.err
    assert "nobody-else" not in (terminal.workspace / "a.json").read_text()


def test_what_plays_recordings_is_no_model_to_choose(mended: Terminal) -> None:
    assert "recorded" not in mended.call("models").out
    assert "recorded" not in mended.call("doctor").out
    definition = mended.workspace / "perstack.toml"
    definition.write_text(f'[provider]\nproviderName = "recorded"\nsetting.recording = "mend.json"\n{SERVED}')
    assert "provider recorded" in mended.call("doctor").out
    played = mended.call("run", "mechanic", "Mend it", "--output", "text")
    assert (played.code, played.out) == (0, "Mended.\n"), played.err


def test_a_pace_has_a_text_arrive_by_words(mended: Terminal) -> None:
    definition = mended.workspace / "perstack.toml"
    setting = 'provider.providerName = "recorded"\nprovider.setting = { recording = "mend.json", pace = 0.01 }\n'
    definition.write_text(f"{setting}{SERVED}")
    recording = (mended.workspace / "mend.json").read_text()
    (mended.workspace / "mend.json").write_text(recording.replace('"Mended."', '"All is\\n well again."'))
    played = mended.call("run", "mechanic", "Mend it", "--stream", "--output", "jsonl")
    assert played.code == 0, played.err
    streamed = [event["delta"] for event in played.events if event["type"] == "streamText"]
    assert streamed == ["All ", "is\n ", "well ", "again."]
    assert played.events[-1]["text"] == "All is\n well again."
