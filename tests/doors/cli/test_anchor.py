"""`[audit] anchor`: log heads are sent where the logs' writer cannot change them, and compared later."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import ssl
import sys
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import start
from signing_keys import certificate, key_pair
from terminal import SECONDS, Terminal, reply

from perstack.core.base.chain import EMPTY_LOG, open_line, seal

HELLO = """
[experts.greeter]
instruction = "You greet."
"""


def greeter(terminal: Terminal, audit: str) -> Terminal:
    """Write a project with an `[audit]` table, whose Jobs have one Run."""
    return terminal.project(f"{HELLO}\n[audit]\n{audit}\n", greeter=[reply("Hello.")] * 3)


def run(terminal: Terminal, job: str = "job", *more: str):
    return terminal.run("run", "greeter", "Hi", "--provider", "scripted", "--job-id", job, *more)


def rewrite(terminal: Terminal, job: str = "job") -> None:
    """Replace a Job's log by another one with a valid hash chain, and remove its caches."""
    path = terminal.log_of(f"{job}-1")
    payloads = [open_line(line).payload.replace(b"Hello.", b"Adieu.") for line in path.read_bytes().splitlines()]
    path.write_bytes(b"\n".join([*seal(EMPTY_LOG, payloads)[0], b""]))
    folder = terminal.workspace / "perstack/jobs" / job
    (folder / "job.json").unlink()
    shutil.rmtree(folder / "checkpoints")


@pytest.fixture
def away(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder outside the workspace."""
    return tmp_path_factory.mktemp("away")


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


# --- files --------------------------------------------------------------------------------------------------------


def test_a_rewritten_log_is_found_by_the_anchor_alone(terminal: Terminal, away: Path) -> None:
    greeter(terminal, f'anchor = "file:{away}/heads.jsonl"')
    assert (run(terminal).code, run(terminal, "other").code) == (0, 0)
    assert [record["predicate"]["jobId"] for record in records(away / "heads.jsonl")] == ["job", "other"]
    assert terminal.call("verify", "job").code == 0
    rewrite(terminal)
    result = terminal.call("verify", "job")
    assert result.code == 1
    assert f"the log was rewritten: its hash differs from the one in the anchor file:{away}/heads.jsonl" in result.out
    (terminal.workspace / "perstack.toml").write_text(HELLO)
    assert terminal.call("verify", "job").code == 0
    assert terminal.call("verify", "job", "--anchor", f"file:{away}/heads.jsonl").code == 1


def test_a_folder_gets_a_file_for_each_job(terminal: Terminal, away: Path) -> None:
    greeter(terminal, f'anchor = "file:{away}"')
    run(terminal)
    run(terminal, "other")
    assert sorted(path.name for path in away.iterdir()) == ["job.jsonl", "other.jsonl"]
    assert (away / "job.jsonl").stat().st_mode & 0o777 == 0o600
    result = terminal.call("verify", "job", "--json")
    assert (result.code, json.loads(result.out)["complete"]) == (0, True)


def test_each_stop_is_recorded_and_what_came_after_the_last_is_named(terminal: Terminal, away: Path) -> None:
    greeter(terminal, f'anchor = "file:{away}/"')
    run(terminal)
    done = terminal.run("run", "greeter", "More", "--continue-job", "job", "--provider", "scripted")
    assert done.code == 0, done.err
    first, second = records(away / "job.jsonl")
    assert [len(record["subject"]) for record in (first, second)] == [1, 2]
    (away / "job.jsonl").write_text(json.dumps(first) + "\n")
    result = terminal.call("verify", "job")
    assert (result.code, "of its events are later than the last record in the anchor" in result.out) == (0, True)


def test_half_a_line_of_a_write_that_failed_hides_nothing(terminal: Terminal, away: Path) -> None:
    greeter(terminal, f'anchor = "file:{away}/heads.jsonl"')
    (away / "heads.jsonl").write_text('{"_type":"https://in-toto')
    run(terminal)
    result = terminal.call("verify", "job")
    assert (result.code, "that are not records: 1" in result.out) == (0, True)
    rewrite(terminal)
    assert terminal.call("verify", "job").code == 1


def test_records_are_signed_and_an_edited_anchor_is_found_with_the_key(terminal: Terminal, away: Path) -> None:
    private, public = key_pair(away)
    greeter(terminal, f'anchor = "file:{away}/heads.jsonl"\nsigningKey = "file:{private}"')
    run(terminal)
    assert "signatures in the anchor: 1;" in terminal.call("verify").out
    result = terminal.call("verify", "--key", str(public), "--json")
    assert (result.code, json.loads(result.out)["complete"]) == (0, True)
    envelope = records(away / "heads.jsonl")[0]
    _, other = key_pair(away, "other")
    result = terminal.call("verify", "--key", str(other))
    assert (result.code, "record 1 of this Job in the anchor" in result.out) == (1, True)
    (away / "heads.jsonl").write_bytes(b64decode(envelope["payload"]) + b"\n")
    result = terminal.call("verify", "--key", str(public))
    assert (result.code, "is not signed" in result.out) == (1, True)


@pytest.mark.parametrize("kind", ["missing", "pipe", "folder"])
def test_an_anchor_that_fails_stops_no_job_is_named_and_is_tried_again(
    terminal: Terminal, away: Path, kind: str
) -> None:
    place = away / "mount" / "heads.jsonl"
    if kind == "missing":
        (away / "mount").write_text("no folder")
    else:
        place.parent.mkdir()
        os.mkfifo(place) if kind == "pipe" else (place / "job.jsonl").mkdir(parents=True)
    greeter(terminal, f'anchor = "file:{place}"')
    done = run(terminal)
    assert done.code == 0
    assert f"perstack: the anchor file:{place} did not take the heads of Job job: " in done.err
    result = terminal.call("verify")
    assert result.code == 0
    assert "not checked" in result.out
    shutil.rmtree(away / "mount") if kind != "missing" else (away / "mount").unlink()
    assert (run(terminal, "other").code, run(terminal, "third").code) == (0, 0)
    assert {record["predicate"]["jobId"] for record in records(place)} == {"job", "other", "third"}
    assert "not checked" not in terminal.call("verify", "job").out


def test_heads_are_sent_when_a_job_is_interrupted(terminal: Terminal, away: Path) -> None:
    terminal.project(
        f'{HELLO}\n[audit]\nanchor = "file:{away}/"\n',
        greeter=[reply("", ("exec", {"command": "sleep", "args": ["60"], "env": {}, "cwd": ".", "stdout": True}))],
    )
    with start(terminal, "run", "greeter", "Hi", "--job-id", "job") as process:
        assert process.stdout is not None
        assert any('"type":"callTools"' in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    (record,) = records(away / "job.jsonl")
    lines = terminal.log_of("job-1").read_bytes().splitlines()
    assert record["subject"][0]["annotations"]["seq"] == len(lines)


# --- programs and addresses ---------------------------------------------------------------------------------------


def test_a_program_is_given_each_record_and_none_of_the_keys(terminal: Terminal, away: Path) -> None:
    code = "import os,sys; print(sys.stdin.read(), sorted(os.environ), file=open(sys.argv[1], 'a'))"
    private, _ = key_pair(away)
    argv = json.dumps([sys.executable, "-c", code, f"{away}/taken"])
    greeter(terminal, f'anchor = {argv}\nsigningKey = "env:AUDIT_KEY"')
    done = terminal.run(
        "run",
        "greeter",
        "Hi",
        "--provider",
        "scripted",
        "--job-id",
        "job",
        env={"AUDIT_KEY": private.read_text(), "ANTHROPIC_API_KEY": "secret"},
    )
    assert (done.code, done.err) == (0, "")
    taken = (away / "taken").read_text()
    assert json.loads(taken.splitlines()[0])["payloadType"] == "application/vnd.in-toto+json"
    assert ("PERSTACK_JOB_ID" in taken, "_KEY" in taken) == (True, False)
    result = terminal.call("verify")
    assert (result.code, "its records are not compared" in result.out) == (0, True)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            [sys.executable, "-c", "import sys; sys.exit('no \\x1b[2J space')"],
            "it ended with exit status 1: no [2J space",
        ),
        (["/nosuch/program"], "it could not be started: no such file or directory"),
    ],
)
def test_a_program_that_fails_is_named(terminal: Terminal, argv: list[str], words: str) -> None:
    greeter(terminal, f"anchor = {json.dumps(argv)}")
    done = run(terminal)
    assert (done.code, words in done.err) == (0, True), done.err


class Taking(http.server.BaseHTTPRequestHandler):
    """A request handler that records what is posted, and answers with a status."""

    posted: list[bytes]
    status: int

    def do_POST(self) -> None:
        self.posted.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(self.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def taking(status: int, folder: Path) -> Iterator[tuple[str, list[bytes], Path]]:
    """Run an HTTPS server. Yield its address, the bodies posted to it, and the certificate to trust."""
    cert, key = certificate(folder)
    posted: list[bytes] = []
    handler = type("Handler", (Taking,), {"posted": posted, "status": status})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://localhost:{server.server_address[1]}/heads?t=s3cret", posted, cert
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "words"), [(200, ""), (302, "HTTP 302"), (503, "HTTP 503")])
def test_an_address_is_posted_each_record(terminal: Terminal, away: Path, status: int, words: str) -> None:
    with taking(status, away) as (address, posted, cert):
        greeter(terminal, f'anchor = "{address}"')
        terminal.env["SSL_CERT_FILE"] = str(cert)
        done = run(terminal)
    assert done.code == 0
    assert json.loads(posted[0])["predicate"]["jobId"] == "job"
    assert "s3cret" not in done.err
    assert (words in done.err) if words else done.err == ""
    result = terminal.call("verify")
    assert (result.code, "its records are not compared" in result.out) == (0, True)


def test_an_address_that_nobody_answers_stops_no_job(terminal: Terminal) -> None:
    greeter(terminal, 'anchor = "https://127.0.0.1:1/heads"')
    done = run(terminal)
    assert (done.code, "it cannot be reached" in done.err) == (0, True)


# --- keys and definitions -----------------------------------------------------------------------------------------


def test_no_tool_reads_the_key_or_the_anchor_or_sees_the_variable(terminal: Terminal) -> None:
    key_pair(terminal.workspace)
    read = ("readTextFile", {"path": "key.pem"})
    heads = ("readTextFile", {"path": "heads.jsonl"})
    (terminal.workspace / "heads.jsonl").write_text("")
    terminal.project(
        f'{HELLO}\n[audit]\nanchor = "file:heads.jsonl"\nsigningKey = "file:key.pem"\n',
        greeter=[reply("", read, heads), reply("Hello.")],
    )
    done = run(terminal)
    assert done.code == 0, done.err
    log = terminal.log_of("job-1").read_text()
    assert "PRIVATE KEY" not in log
    results = [event for event in map(json.loads, log.splitlines()) if event["type"] == "finishToolCall"]
    assert [event.get("isError") for event in results] == [True, True]


def test_a_key_that_cannot_be_read_is_a_usage_error_before_anything_is_written(terminal: Terminal) -> None:
    greeter(terminal, 'signingKey = "file:nosuch.pem"')
    done = run(terminal)
    assert (done.code, done.out) == (2, "")
    place = terminal.workspace / "nosuch.pem"
    assert done.err == f"error: [audit] signingKey {place} cannot be read: No such file or directory\n"
    assert not (terminal.workspace / "perstack").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('anchor = "heads.jsonl"', "audit.anchor: must be `file:PATH`, an `https://` address, or a program"),
        ('anchor = "http://example.com/"', "audit.anchor: must be `https://`"),
        ('anchor = "https://me:pass@example.com/"', "audit.anchor: must not contain a user or a password"),
        ("anchor = []", "audit.anchor: must not be empty"),
        ('signingKey = "-----BEGIN PRIVATE KEY"', "audit.signingKey: must name a file"),
        ("anchr = 1", "audit.anchr: unknown key; did you mean `anchor`?"),
    ],
)
def test_what_is_wrong_in_the_table_is_named_with_its_key(terminal: Terminal, line: str, words: str) -> None:
    greeter(terminal, line)
    result = terminal.call("validate")
    assert words in result.out + result.err
    assert "BEGIN" not in result.out + result.err
