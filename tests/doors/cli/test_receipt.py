"""`perstack receipt`, and `perstack verify --receipt`."""

from __future__ import annotations

import asyncio
import json
import shutil
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from fuzzing import scaled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from signing_keys import key_pair
from terminal import Terminal

from perstack.core.base.chain import EMPTY_LOG, format_line, open_line, seal
from perstack.core.definitions.project import Project
from perstack.host import Host


@pytest.fixture
def signing(own_team: Terminal, tmp_path_factory: pytest.TempPathFactory) -> tuple[Terminal, Path]:
    """Return a project with a Job and a signing key, and the file of the public key."""
    private, public = key_pair(tmp_path_factory.mktemp("keys"))
    with (own_team.workspace / "perstack.toml").open("a") as file:
        file.write(f'[audit]\nsigningKey = "file:{private}"\n')
    return own_team, public


def statement_in(envelope: str) -> dict:
    return json.loads(b64decode(json.loads(envelope)["payload"]))


def test_a_receipt_is_signed_and_the_logs_are_compared_with_it(signing: tuple[Terminal, Path]) -> None:
    terminal, public = signing
    written = terminal.call("receipt", "team", "--to", "receipt.json")
    assert (written.code, written.out, written.err) == (0, "", "")
    statement = statement_in((terminal.workspace / "receipt.json").read_text())
    assert statement["predicate"]["jobId"] == "team"
    assert [subject["name"] for subject in statement["subject"]] == ["team-1", "team-2", "team-3"]
    result = terminal.call("verify", "--receipt", "receipt.json", "--key", str(public), "--json")
    report = json.loads(result.out)
    assert (result.code, report["ok"], report["complete"], report["findings"]) == (0, True, True, [])
    assert report["checked"]["heads"] == json.loads(terminal.call("verify", "--json").out)["checked"]["heads"] + 3


def test_openssl_takes_the_signature_for_what_the_specification_says_is_signed(
    signing: tuple[Terminal, Path], tmp_path: Path
) -> None:
    import subprocess

    terminal, public = signing
    envelope = json.loads(terminal.call("receipt", "team").out)
    body = b64decode(envelope["payload"])
    kind = envelope["payloadType"].encode()
    (tmp_path / "signed").write_bytes(b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(body), body))
    (tmp_path / "sig").write_bytes(b64decode(envelope["signatures"][0]["sig"]))
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin"]
    done = subprocess.run(
        [*command, "-in", tmp_path / "signed", "-sigfile", tmp_path / "sig"], capture_output=True, timeout=30
    )
    assert done.returncode == 0, done.stderr


def test_without_a_key_a_receipt_is_not_signed_and_says_so(own_team: Terminal) -> None:
    written = own_team.call("receipt", "team", "--to", "receipt.json")
    assert (written.code, "is not signed" in written.err) == (0, True)
    assert json.loads((own_team.workspace / "receipt.json").read_text())["_type"] == "https://in-toto.io/Statement/v1"
    result = own_team.call("verify", "--receipt", "receipt.json")
    assert (result.code, "not checked: Job team: the receipt is not signed" in result.out) == (0, True)


def test_with_a_key_an_unsigned_receipt_counts_for_nothing(own_team: Terminal, tmp_path_factory) -> None:
    _, public = key_pair(tmp_path_factory.mktemp("keys"))
    own_team.call("receipt", "team", "--to", "receipt.json")
    result = own_team.call("verify", "--receipt", "receipt.json", "--key", str(public))
    assert (result.code, "the receipt is not signed" in result.out) == (1, True)


def test_the_key_may_be_in_a_variable(own_team: Terminal, tmp_path_factory: pytest.TempPathFactory) -> None:
    private, public = key_pair(tmp_path_factory.mktemp("keys"))
    with (own_team.workspace / "perstack.toml").open("a") as file:
        file.write('[audit]\nsigningKey = "env:AUDIT_KEY"\n')
    missing = own_team.call("receipt", "team")
    assert (missing.code, missing.out) == (2, "")
    assert (
        missing.err
        == "error: [audit] signingKey env:AUDIT_KEY: the variable AUDIT_KEY is not set: set it to the key in PEM\n"
    )
    (own_team.workspace / ".env").write_text("AUDIT_KEY='" + private.read_text() + "'\n")
    assert own_team.call("receipt", "team", "--to", "receipt.json").code == 0
    assert own_team.call("verify", "--receipt", "receipt.json", "--key", str(public)).code == 0


def test_an_edited_receipt_is_found_whatever_was_changed_in_it(signing: tuple[Terminal, Path]) -> None:
    terminal, public = signing
    envelope = json.loads(terminal.call("receipt", "team").out)
    body = b64decode(envelope["payload"])
    for old, new in ((b'"seq":', b'"seq": '), (b"team-3-1", b"team-3-2"), (b"createdOn", b"createdOf")):
        assert old in body
        changed = {**envelope, "payload": b64encode(body.replace(old, new)).decode()}
        (terminal.workspace / "edited.json").write_text(json.dumps(changed))
        result = terminal.call("verify", "--receipt", "edited.json", "--key", str(public))
        assert result.code in (1, 2), result.out


def test_another_key_has_not_signed_it(signing: tuple[Terminal, Path], tmp_path_factory) -> None:
    terminal, _ = signing
    _, other = key_pair(tmp_path_factory.mktemp("keys"), "other")
    terminal.call("receipt", "team", "--to", "receipt.json")
    result = terminal.call("verify", "--receipt", "receipt.json", "--key", str(other))
    assert (result.code, "the receipt is not signed by that key" in result.out) == (1, True)


def test_a_copy_of_the_logs_can_be_checked_without_the_project(
    signing: tuple[Terminal, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    terminal, public = signing
    terminal.call("receipt", "team", "--to", "receipt.json")
    away = tmp_path_factory.mktemp("away")
    shutil.copytree(terminal.workspace / "perstack", away / "copy")
    shutil.copy(terminal.workspace / "receipt.json", away)
    shown = Terminal(away).call("verify", "--storage", "file:copy", "--receipt", "receipt.json", "--key", str(public))
    assert shown.code == 0, shown.out


def test_a_job_that_is_gone_is_found(signing: tuple[Terminal, Path]) -> None:
    terminal, public = signing
    terminal.call("receipt", "team", "--to", "receipt.json")
    shutil.rmtree(terminal.workspace / "perstack")
    result = terminal.call("verify", "--receipt", "receipt.json", "--key", str(public))
    assert (result.code, "there is no such Job here" in result.out) == (1, True)


def test_what_was_appended_since_is_named_as_not_vouched_for(signing: tuple[Terminal, Path]) -> None:
    terminal, public = signing
    terminal.call("receipt", "team", "--to", "receipt.json")
    terminal.call("run", "lead", "More", "--continue-job", "team", "--provider", "scripted")
    result = terminal.call("verify", "--receipt", "receipt.json", "--key", str(public))
    assert result.code == 0, result.out
    assert "of its events were appended after the receipt" in result.out


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--receipt", "nosuch.json"], "--receipt nosuch.json cannot be read: No such file or directory"),
        (["--receipt", "perstack.toml"], "the receipt: it is not a receipt of perstack: Invalid JSON"),
        (["--key", "nosuch.pem"], "the key nosuch.pem cannot be read: No such file or directory"),
        (["--key", "perstack.toml"], "the key perstack.toml is not a public key in PEM; write it with: openssl"),
    ],
)
def test_wrong_files_are_named_in_one_line(team: Terminal, given: list[str], words: str) -> None:
    result = team.call("verify", *given)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {words}")
    assert result.err.count("\n") == 1


def test_a_receipt_of_another_job_is_refused(team: Terminal, tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.json"
    team.call("receipt", "team", "--to", str(receipt))
    shown = team.call("verify", "other", "--receipt", str(receipt))
    assert (shown.code, shown.err) == (2, "error: the receipt is of Job team, not of other: give that Job's receipt\n")


def test_no_receipt_is_written_over_a_log_that_does_not_hold(own_team: Terminal) -> None:
    path = own_team.log_of("team-2")
    path.write_bytes(path.read_bytes().replace(b"first part", b"other part"))
    result = own_team.call("receipt", "team")
    assert (result.code, result.out) == (1, "")


# --- every edit ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vouched(team: Terminal, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, Path]:
    """Return the state folder of a Job, its signed receipt, and the file of the public key."""
    away = tmp_path_factory.mktemp("vouched")
    private, public = key_pair(away)
    shutil.copytree(team.workspace, away / "project")
    (away / "project" / "perstack.toml").write_text(f'[audit]\nsigningKey = "file:{private}"\n')
    receipt = Terminal(away / "project").call("receipt", "team")
    assert receipt.code == 0, receipt.err
    return away / "project" / "perstack", receipt.out.encode(), public


@st.composite
def edits(draw: st.DrawFn):
    """Draw a change to the lines of one log."""

    def flipped(lines: list[bytes]) -> bytes:
        data = bytearray(b"\n".join([*lines, b""]))
        data[place % len(data)] ^= 1 << (number % 8)
        return bytes(data)

    def cut(lines: list[bytes]) -> bytes:
        data = b"\n".join([*lines, b""])
        return data[: place % len(data)]

    def without_line(lines: list[bytes]) -> bytes:
        at = place % len(lines)
        return b"\n".join([*lines[:at], *lines[at + 1 :], b""])

    def swapped(lines: list[bytes]) -> bytes:
        at = place % (len(lines) - 1)
        return b"\n".join([*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :], b""])

    def rewritten(lines: list[bytes]) -> bytes:
        payloads = [open_line(line).payload for line in lines]
        at = place % len(lines)
        payloads[at] = payloads[at][:-1] + b',"note":%d}' % number
        return b"\n".join([*seal(EMPTY_LOG, payloads)[0], b""])

    def shorter(lines: list[bytes]) -> bytes:
        payloads = [open_line(line).payload for line in lines]
        del payloads[place % len(payloads)]
        return b"\n".join([*seal(EMPTY_LOG, payloads)[0], b""])

    def forged(lines: list[bytes]) -> bytes:
        sealed = open_line(lines[place % len(lines)])
        payload = sealed.payload.replace(b'"timestamp":1', b'"timestamp":2')[:-1] + b',"redacted":true}'
        line = format_line(payload, sealed.digest, sealed.hash, sealed.batch)
        return b"\n".join([*(line if old == lines[place % len(lines)] else old for old in lines), b""])

    place, number = draw(st.integers(0, 1 << 20)), draw(st.integers(0, 1 << 10))
    return draw(st.sampled_from((flipped, cut, without_line, swapped, rewritten, shorter, forged)))


@given(edit=edits(), run=st.integers(1, 3), keeps_caches=st.booleans())
@settings(max_examples=scaled(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_edit_cut_and_rewriting_of_a_log_is_found(
    vouched: tuple[Path, bytes, Path], tmp_path: Path, edit, run: int, *, keeps_caches: bool
) -> None:
    state, receipt, public = vouched
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(state, copy)
    if not keeps_caches:
        (copy / "jobs/team/job.json").unlink()
        shutil.rmtree(copy / "jobs/team/checkpoints")
    path = copy / f"jobs/team/runs/team-{run}/events.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(edit(lines))

    async def is_found() -> bool:
        async with Host(Project(), workspace=tmp_path, storage="file:copy") as host:
            logs = {log.run_id: [bytes(line) for line in log.lines] for log in await host.jobs.logs("team")}
            report = await host.audit.verify_receipt(receipt, key=public)
            by_receipt = any("the receipt" in finding.message for finding in report.findings)
            return by_receipt or logs[f"team-{run}"] == lines

    assert asyncio.run(is_found())
