"""Rows of the conformance suite for images and documents that an endpoint does not take as they are.

Each drives a whole Run with a tool that returns a medium, at an endpoint that enforces a rule. The rule finds base64
data anywhere in a body, so it knows no format.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hosts import Seen, expert, project_of
from pictures import PDF, SHOWING, MediaSkill, as_image, media_in, picture, texts_in
from provider_suite import capability
from wire import Said, Wire

from perstack.core.definitions.settings import Overrides, ProviderSetting
from perstack.host import Host
from perstack.media.file_headers import media_type
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply, ReceivedRequest

_SHOW = Said(calls=(("c1", "x"),), tool="show")
_DONE = Said("all done")
Rule = Callable[[Any], str | None]


def bodies_with(
    wire: Wire, kind: str, data: bytes, rule: Rule = lambda body: None, *more: bytes, is_error: bool = False
) -> list[Any]:
    """Drive a Run whose tool returns a medium, to its end. Return the bodies of the requests after the call.

    With `more` media the tool is called as often, and returns one each time.
    """

    async def scenario() -> list[Any]:
        seen, bodies = Seen(), list[Any]()
        calls = [[(kind, one)] for one in (data, *more)]
        turns = [*([_SHOW] * len(calls)), _DONE]

        def choose(request: ReceivedRequest) -> PreparedReply:
            body = json.loads(request.body)
            bodies.append(body)
            words = rule(body)
            if words is not None:
                return wire.error_reply(400, words)
            return wire.reply(turns.pop(0))

        with tempfile.TemporaryDirectory() as folder:
            async with asyncio.timeout(60), FakeEndpoint(choose=choose) as endpoint:
                config = wire.config(endpoint.url)
                setting = ProviderSetting(provider_name=wire.factory.name, setting=config.setting)
                one = expert("a").model_copy(update={"skills": (SHOWING,)})
                project = project_of(one).model_copy(update={"model": wire.model, "provider": setting})
                host = Host(
                    project,
                    workspace=Path(folder),
                    env=config.env,
                    overrides=Overrides(open=True),
                    plugins=[MediaSkill(*calls, is_error=is_error)],
                )
                async with host:
                    job = await host.run("a", "look", on_event=seen)
                    replayed = await host.audit.replay(job.id)
        assert (job.status, job.text) == ("completed", "all done"), seen.of("errorRun")
        assert replayed.findings == ()
        return bodies[1:]

    return asyncio.run(scenario())


def _cell(data: bytes, sent: list[bytes]) -> str:
    if not sent:
        return "as a line of text"
    return "as it is" if sent == [data] else f"as {media_type(sent[0])}"


@capability("An image of 9,000 × 20 pixels")
def wide(wire: Wire) -> str:
    data = picture("PNG", (9_000, 20))
    (body,) = bodies_with(wire, "image/png", data)
    sent = media_in(body)
    cell = _cell(data, sent)
    if cell == "as image/png":
        assert max(as_image(sent[0]).size) == 2_000
        return "made smaller"
    return cell


@capability("A JPEG that a tool calls a PNG")
def misnamed(wire: Wire) -> str:
    data = picture("JPEG", (40, 40))
    (body,) = bodies_with(wire, "image/png", data)
    assert not any("image/png" in text for text in texts_in(body))
    return _cell(data, media_in(body))


@capability("A bitmap (BMP)")
def bitmap(wire: Wire) -> str:
    data = picture("BMP", (40, 40))
    (body,) = bodies_with(wire, "image/bmp", data)
    sent = media_in(body)
    assert not sent or as_image(sent[0]).size == (40, 40)
    return _cell(data, sent)


@capability("A broken image")
def unreadable_image(wire: Wire) -> str:
    (body,) = bodies_with(wire, "image/png", b"\x89PNG not an image at all\xff")
    assert any("image 1.bin could not be read: its bytes are in no known format" in text for text in texts_in(body))
    assert not media_in(body)
    return "a text in its place"


def _cell_of_refusal(wire: Wire, kind: str, data: bytes, words: str) -> str:
    def rule(body: Any) -> str | None:
        return words if data in media_in(body) else None

    bodies = bodies_with(wire, kind, data, rule)
    if len(bodies) == 1:
        assert not media_in(bodies[0])
        return "as a line of text"
    first, second = bodies
    assert (media_in(first), media_in(second)) == ([data], [])
    assert any("removed: the API could not process this" in text and words in text for text in texts_in(second))
    assert b64encode(data).decode() not in json.dumps(second)
    return "a text in its place, once"


@capability("An image that the endpoint refuses")
def refused_image(wire: Wire) -> str:
    return _cell_of_refusal(wire, "image/png", picture("PNG", (40, 40)), "Could not process image")


@capability("Images at an endpoint that sees none")
def unseen_images(wire: Wire) -> str:
    pictures = [picture("PNG", (40, side)) for side in range(40, 46)]

    def rule(body: Any) -> str | None:
        return "This model does not support image input" if media_in(body) else None

    bodies = bodies_with(wire, "image/png", pictures[0], rule, *pictures[1:])
    refused = [body for body in bodies if media_in(body)]
    if not refused:
        return "as a line of text"
    assert len(refused) == 3, "from then on none is sent"
    assert any("[image left out: This model does not support image input]" in text for text in texts_in(bodies[-1]))
    return "texts, after three refusals"


@capability("A PDF that the endpoint refuses")
def refused_document(wire: Wire) -> str:
    return _cell_of_refusal(wire, "application/pdf", PDF, "The PDF specified was not valid")


@capability("An image of a failed call")
def of_failed_call(wire: Wire) -> str:
    """The Messages API refuses an image in a failed result; Converse passes it on to that API."""
    data = picture("PNG", (40, 40))

    def rule(body: Any) -> str | None:
        results = [
            block
            for turn in body.get("messages", ())
            if isinstance(turn.get("content"), list)
            for block in turn["content"]
        ]
        failed = [
            block for block in results if block.get("is_error") or block.get("toolResult", {}).get("status") == "error"
        ]
        return "all content must be type 'text' if 'is_error' is true" if media_in(failed) else None

    (body,) = bodies_with(wire, "image/png", data, rule, is_error=True)
    return _cell(data, media_in(body))
