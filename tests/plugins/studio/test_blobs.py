"""The blobs of a Job: images in the conversation, and everything else as a download that no browser opens here."""

from __future__ import annotations

import re
from hashlib import sha256

import httpx
import pytest
from studio_server import serving_studio
from terminal import TEAM, Terminal, reply

from perstack.doors.shared.log_view import parse_line
from perstack_studio.conversation import Conversation

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\10\2\0\0\0\x90wS\xde" + b"<script>alert(1)</script>"
PDF = b"%PDF-1.4\n<script>alert(1)</script>\n%%EOF\n"


@pytest.fixture
def attached(terminal: Terminal) -> Terminal:
    """Return a project with a Job whose query had an image and a document."""
    terminal.project(TEAM, lead=[reply("Seen.")])
    (terminal.workspace / "a<b>.png").write_bytes(PNG)
    (terminal.workspace / "b.pdf").write_bytes(PDF)
    files = ("--attach", "a<b>.png", "--attach", "b.pdf")
    done = terminal.run("run", "lead", "Look", "--provider", "scripted", "--job-id", "j1", *files)
    assert done.code == 0, done.err
    return terminal


def _name(data: bytes) -> str:
    return sha256(data).hexdigest()


def test_attachments_are_shown_and_sent_as_what_they_are(attached: Terminal) -> None:
    with serving_studio(attached) as server:
        visitor = server.visitor()
        page = visitor.get("/jobs/j1/conversation")
        image = re.search(r'<img class="media"[^>]* src="([^"]+)" alt="a&lt;b&gt;.png">', page)
        document = re.search(r'<a href="([^"]+)" download>b.pdf</a>', page)
        assert image is not None
        assert document is not None

        shown, saved = visitor.client.get(image[1]), visitor.client.get(document[1])

        assert (shown.content, saved.content) == (PNG, PDF)
        assert shown.headers["content-type"] == "image/png"
        assert shown.headers["content-disposition"] == "inline"
        assert saved.headers["content-type"] == "application/octet-stream"
        assert saved.headers["content-disposition"] == f'attachment; filename="{_name(PDF)[:16]}.pdf"'
        for response in (shown, saved):
            assert response.headers["content-security-policy"] == "sandbox; default-src 'none'"
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["content-length"] == str(len(response.content))

        for asked in ("text/html", "image/svg+xml", "image/jpeg", "image/png; charset=x", "", "text/html\r\nX-A: b"):
            other = visitor.client.get(f"/jobs/j1/blobs/{_name(PNG)}", params={"type": asked})
            assert other.headers["content-type"] == "application/octet-stream"
            assert other.headers["content-disposition"].startswith("attachment; ")
            assert "x-a" not in other.headers
        # a document that is said to be an image is not sent as one
        lie = visitor.client.get(f"/jobs/j1/blobs/{_name(PDF)}", params={"type": "image/png"})
        assert lie.headers["content-type"] == "application/octet-stream"


def test_only_blobs_of_the_job_are_sent(attached: Terminal) -> None:
    assert attached.run("run", "lead", "Look", "--provider", "scripted", "--job-id", "j2").code == 0
    blobs = attached.jobs() / "j1" / "blobs"
    with serving_studio(attached) as server:
        visitor = server.visitor()
        others = (_name(b"other"), "x", "..%2f..%2fperstack.toml", f"{_name(PNG)}0", _name(PNG).upper(), "%00")
        for name in others:
            assert visitor.client.get(f"/jobs/j1/blobs/{name}").status_code == 404
        for job in ("j2", "nothing", "..", "%2e%2e", "a%00b", "j1%2f"):
            assert visitor.client.get(f"/jobs/{job}/blobs/{_name(PNG)}").status_code == 404
        assert httpx.get(f"{server.url}/jobs/j1/blobs/{_name(PNG)}").status_code == 401

        (blobs / _name(PNG)).write_bytes(b"something else")
        damaged = visitor.client.get(f"/jobs/j1/blobs/{_name(PNG)}", params={"type": "image/png"})
        assert damaged.status_code == 503
        assert b"something else" not in damaged.content
        for _ in range(20):  # more than may be open at a time: each is closed
            assert visitor.client.get(f"/jobs/j1/blobs/{_name(PDF)}").content == PDF


def test_attachments_are_media_of_the_query(attached: Terminal) -> None:
    folded = Conversation()
    (entry,) = [
        entry
        for entry in folded.apply(1, parse_line(attached.log_of("j1-1").read_bytes().splitlines()[0]))
        if entry.kind == "query"
    ]
    assert [(part.name, part.mime_type) for part in entry.media] == [
        ("a<b>.png", "image/png"),
        ("b.pdf", "application/pdf"),
    ]
