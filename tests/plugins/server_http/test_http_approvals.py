"""Approvals over HTTP: what waits for one, and a person's decision."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from http_server import AUTH_HEADERS, DECIDING_HEADERS, serving
from terminal import SECONDS, Terminal, reply

from perstack.doors.shared.consent import TERMINAL

RULES = """
[permissions]
ask = ["appendTextFile"]
[experts.guest]
instruction = "You write."
"""


def test_what_waits_is_listed_and_decided_on_by_its_question_and_its_digest(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("")
    calls = [reply("", ("appendTextFile", {"path": name, "text": "x"})) for name in ("a.txt", "b.txt")]
    terminal = Terminal(tmp_path).project(RULES, guest=[*calls, reply("Done.")])
    assert terminal.call("run", "guest", "Go", "--provider", "scripted", "--job-id", "job").code == 3
    with serving(terminal) as (url, _):
        base = url.removesuffix("/mcp")
        assert httpx.get(f"{base}/v1/approvals").status_code == 401
        with httpx.Client(base_url=base, headers=DECIDING_HEADERS, timeout=SECONDS) as client:
            (first,) = client.get("/v1/approvals").json()["approvals"]
            assert (first["jobId"], first["rule"], first["args"]["path"]) == ("job", "appendTextFile", "a.txt")
            assert "guest wants to call appendTextFile" in first["text"]
            place = f"/v1/approvals/{first['id']}"
            for body, status, words in (
                ({"answer": "yes", "callDigest": "v1:other"}, 409, "is about another call"),
                ({"answer": "perhaps"}, 400, "`answer`"),
                ({"answer": "yes", "text": "but"}, 400, "goes with the answer `no`"),
                ({"answer": "always", "rule": "*"}, 400, "does not fit"),
            ):
                refused = client.post(place, json=body)
                assert (refused.status_code, words in refused.json()["detail"]) == (status, True), refused.text
            refused = client.post(place, json={"answer": "always"}, headers=AUTH_HEADERS)
            assert (refused.status_code, refused.json()["title"]) == (403, "NeedsPerson"), refused.text
            assert f"`perstack answer {first['id']} always`" in refused.json()["detail"]
            went = client.post(place, json={"answer": "yes", "callDigest": first["callDigest"], "wait": True})
            assert (went.status_code, went.json()["status"]) == (200, "stoppedByInteractiveTool")
            assert client.post(place, json={"answer": "yes"}).status_code == 409
            (second,) = client.get("/v1/approvals").json()["approvals"]
            body = {"answer": "no", "text": "not that one", "wait": True}
            done = client.post(f"/v1/approvals/{second['id']}", json=body, headers=AUTH_HEADERS)
            assert done.json() == {"jobId": "job", "status": "completed", "text": "Done."}
            assert client.get("/v1/approvals").json() == {"approvals": []}
    assert [(tmp_path / name).read_text() for name in ("a.txt", "b.txt")] == ["x", ""]
    decided = terminal.call("log", "--job", "job", "--type", "decideApproval", "--json").events
    assert {one["by"]["door"] for one in decided} == {"http"}


def test_a_job_is_told_something_with_the_token_that_may_decide(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    call = reply("", ("appendTextFile", {"path": "a.txt", "text": "x"}))
    terminal = Terminal(tmp_path).project(RULES, guest=[call, reply("Done.")])
    assert terminal.call("run", "guest", "Go", "--provider", "scripted", "--job-id", "job").code == 3
    with (
        serving(terminal) as (url, _),
        httpx.Client(base_url=url.removesuffix("/mcp"), headers=DECIDING_HEADERS, timeout=SECONDS) as client,
    ):
        refused = client.post("/v1/jobs/job/tell", json={"text": "only once"}, headers=AUTH_HEADERS)
        assert (refused.status_code, refused.json()["title"]) == (403, "NeedsPerson"), refused.text
        assert "`perstack tell job 'only once'`" in refused.json()["detail"]
        for body, status in (
            ({"text": ""}, 400),
            ({}, 400),
            ({"drop": "job-1-9"}, 404),
            ({"text": "x", "run": "job-9"}, 404),
        ):
            assert client.post("/v1/jobs/job/tell", json=body).status_code == status, body
        told = client.post("/v1/jobs/job/tell", json={"text": "only once"})
        assert (told.status_code, told.json()["runId"]) == (200, "job-1")
    assert "only once" in terminal.call("log", "job", "--standing").out


def test_a_call_is_approved_with_other_arguments(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("")
    call = reply("", ("appendTextFile", {"path": "a.txt", "text": "x"}))
    terminal = Terminal(tmp_path).project(RULES, guest=[call, reply("Done.")])
    assert terminal.call("run", "guest", "Go", "--provider", "scripted", "--job-id", "job").code == 3
    changed = {"path": "b.txt", "text": "y"}
    with (
        serving(terminal) as (url, _),
        httpx.Client(base_url=url.removesuffix("/mcp"), headers=DECIDING_HEADERS, timeout=SECONDS) as client,
    ):
        (waiting,) = client.get("/v1/approvals").json()["approvals"]
        place = f"/v1/approvals/{waiting['id']}"
        for body, status, words in (
            ({"answer": "no", "changed": changed}, 400, "goes with the answer `yes`"),
            ({"answer": "yes", "changed": [1]}, 400, "`changed`"),
        ):
            refused = client.post(place, json=body)
            assert (refused.status_code, words in refused.json()["detail"]) == (status, True), refused.text
        refused = client.post(place, json={"answer": "yes", "changed": changed}, headers=AUTH_HEADERS)
        assert refused.status_code == 403, refused.text
        assert '\\"b.txt\\"' in refused.json()["detail"], "the decision names the changed arguments"
        done = client.post(place, json={"answer": "yes", "changed": changed, "wait": True})
        assert done.json()["status"] == "completed", done.text
    assert [(tmp_path / name).read_text() for name in ("a.txt", "b.txt")] == ["", "y"]
    (change,) = terminal.call("log", "--job", "job", "--type", "changeCall", "--json").events
    assert (change["args"], change["by"]["door"]) == (changed, "http")


def test_a_call_of_any_length_is_given_whole_and_its_yes_needs_the_token_that_decides(tmp_path: Path) -> None:
    """What does not fit on a page takes only a no. This page has no end: a program shows it, and answers for that."""
    (tmp_path / "a.txt").write_text("")
    lines = TERMINAL.lines + 1_000
    text = f"{'ls ' * 40};\n" * lines + "rm -r src"
    assert len(text) > TERMINAL.chars
    terminal = Terminal(tmp_path).project(
        RULES, guest=[reply("", ("appendTextFile", {"path": "a.txt", "text": text})), reply("Done.")]
    )
    assert terminal.call("run", "guest", "Go", "--provider", "scripted", "--job-id", "job").code == 3
    with (
        serving(terminal) as (url, _),
        httpx.Client(base_url=url.removesuffix("/mcp"), headers=DECIDING_HEADERS, timeout=SECONDS) as client,
    ):
        (waiting,) = client.get("/v1/approvals").json()["approvals"]
        assert (waiting["text"].count("ls ;\n"), waiting.get("missing")) == (lines, None)
        assert "rm -r src" in waiting["text"]
        place, body = f"/v1/approvals/{waiting['id']}", {"callDigest": waiting["callDigest"], "wait": True}
        for answer in ("yes", "always"):
            assert client.post(place, json={**body, "answer": answer}, headers=AUTH_HEADERS).status_code == 403
        assert client.post(place, json={**body, "answer": "yes"}).json()["status"] == "completed"
    assert (tmp_path / "a.txt").read_text() == text


@pytest.mark.parametrize("answer", ["yes", "always"])
def test_a_call_that_the_list_does_not_show_whole_is_refused_and_not_approved(tmp_path: Path, answer: str) -> None:
    """The change of a file that tools may not read is shown to nobody from outside, so only a no is taken."""
    (tmp_path / "a.txt").write_text("")
    call = ("appendTextFile", {"path": "a.txt", "text": "x"})
    terminal = Terminal(tmp_path).project(RULES, guest=[reply("", call), reply("Done.")])
    assert terminal.call("run", "guest", "Go", "--provider", "scripted", "--job-id", "job").code == 3
    (tmp_path / ".env").write_text("KEY=secret\n")
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.txt").symlink_to(".env")
    with (
        serving(terminal) as (url, _),
        httpx.Client(base_url=url.removesuffix("/mcp"), headers=DECIDING_HEADERS, timeout=SECONDS) as client,
    ):
        (waiting,) = client.get("/v1/approvals").json()["approvals"]
        assert "off limits to tools" in waiting["missing"]
        assert "secret" not in waiting["text"]
        place = f"/v1/approvals/{waiting['id']}"
        refused = client.post(place, json={"answer": answer, "callDigest": waiting["callDigest"], "wait": True})
        assert (refused.status_code, "only `no` is accepted here" in refused.json()["detail"]) == (400, True)
        assert f"a person approves the call, or not, by the answer to {waiting['id']}" in refused.json()["detail"]
        assert client.post(place, json={"answer": "no", "wait": True}).json()["status"] == "completed"
    assert (tmp_path / ".env").read_text() == "KEY=secret\n"
