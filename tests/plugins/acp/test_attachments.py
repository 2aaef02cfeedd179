"""Images, documents and links that an editor sends with a prompt."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from acp import RequestError
from acp.helpers import embedded_blob_resource, image_block, resource_block, resource_link_block, text_block
from acp_editor import Editor, editing, run
from terminal import ASKING, Terminal, reply

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
PDF = b"%PDF-1.7\n" + bytes(range(256))
SOLO = '[experts.a]\ninstruction = "x"\n'


def first_events(terminal: Terminal, job: str) -> list[dict[str, Any]]:
    """Return the first event of each Run of a Job."""
    firsts = (terminal.log_of(f"{job}-{number}").read_bytes().splitlines()[0] for number in (1, 2))
    return [json.loads(line) for line in firsts]


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def test_images_documents_and_links_to_images_are_attached_to_the_query(terminal: Terminal) -> None:
    terminal.project(SOLO, a=[reply("Seen."), reply("Again.")])
    (terminal.workspace / "linked.png").write_bytes(PNG)
    (terminal.workspace / "code.py").write_text("x = 1")

    async def work() -> str:
        editor = Editor()
        async with editing(terminal, editor) as agent:
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            prompt = [
                text_block("Look"),
                image_block(_base64(PNG), "image/png"),
                resource_block(
                    embedded_blob_resource("file:///tmp/paper.pdf", _base64(PDF), mime_type="application/pdf")
                ),
                resource_link_block("linked.png", f"file://{terminal.workspace}/linked.png", mime_type="image/png"),
                resource_link_block("code.py", f"file://{terminal.workspace}/code.py"),
                resource_link_block("gone.png", "file:///nowhere/gone.png", mime_type="image/png"),
            ]
            done = await agent.prompt(session_id=session.session_id, prompt=prompt)
            assert done.stop_reason == "end_turn"
            await agent.prompt(session_id=session.session_id, prompt=[text_block("More"), prompt[1]])
            return session.session_id

    job = run(work())
    first, second = first_events(terminal, job)
    kinds = [(attachment["mimeType"], attachment["name"]) for attachment in first["attachments"]]
    assert kinds == [("image/png", "attachment 1"), ("application/pdf", "paper.pdf"), ("image/png", "linked.png")]
    assert "code.py" in first["query"]
    assert "gone.png" in first["query"]
    assert len(second["attachments"]) == 1


def test_an_editor_is_told_that_images_are_taken_and_why_one_is_not(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea?"})), reply("Served.")])

    async def work() -> None:
        editor = Editor()
        async with editing(terminal, editor) as agent:
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            for data, words in (("no base64!", "not base64"), (_base64(b"\0\1"), "is not a PNG")):
                with pytest.raises(RequestError, match=words):
                    await agent.prompt(
                        session_id=session.session_id, prompt=[text_block("Look"), image_block(data, "image/png")]
                    )
            await agent.prompt(session_id=session.session_id, prompt=[text_block("Serve")])
            with pytest.raises(RequestError, match="asks a question: answer it as text"):
                await agent.prompt(
                    session_id=session.session_id, prompt=[text_block("Tea"), image_block(_base64(PNG), "image/png")]
                )

    run(work())
