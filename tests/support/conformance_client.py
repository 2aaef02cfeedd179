"""The client under test of the MCP conformance suite: a Host that runs an Expert with the suite's server.

The suite starts a command for each scenario. That command, `conformance_stub.py`, only passes its arguments on to a
`Clients` in the test's process, so that Python and the SDK start once and not a hundred times.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
import traceback
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from perstack.core.base.records import JsonObject
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import Overrides
from perstack.core.definitions.skills import BASE_SKILL, McpSseSkill, McpStdioSkill, OAuth
from perstack.core.runs.events import Event
from perstack.errors import PerstackError
from perstack.host import Host
from perstack.ports.provider import GenerationRequest
from perstack.testing.scripted import ScriptedProvider, text, tool, turn

MOST_LOGINS = 3
AT_ONCE = 6

CLIENT_DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""The only client document that the suite's authorization server accepts."""

ANSWERS = {"string": "x", "integer": 1, "number": 1, "boolean": True, "array": [], "object": {}, "null": None}


class Model:
    """A model that makes the scenario's calls, or else calls every tool once with the required arguments."""

    def __init__(self, scenario: str, context: dict[str, Any]) -> None:
        self.scenario = scenario
        self.context = context

    def __call__(self, request: GenerationRequest):
        if len(request.messages) > 2:
            return text("done")
        wanted = self.context.get("toolCalls") or [
            {"name": spec.name, "arguments": arguments(spec.input_schema)} for spec in request.tools
        ]
        schemas = {spec.name: spec.input_schema for spec in request.tools}
        if self.scenario == "json-schema-2020-12-preservation":
            echoed = {"schema": schemas["json_schema_2020_12_tool"]}
            wanted = [{"name": "json_schema_echo", "arguments": echoed}]
        calls = [tool(call["name"], without_nulls(call["arguments"])) for call in wanted if call["name"] in schemas]
        return turn(*calls) if calls else text("there is nothing to call")


def without_nulls(arguments: JsonObject) -> JsonObject:
    """Drop null arguments, as models do: null does not fit the schemas' types."""
    return {name: value for name, value in arguments.items() if value is not None}


def form(schema: JsonObject | None) -> str:
    """Fill in a form: keep the defaults and answer the other fields."""
    properties = (schema or {}).get("properties")
    fields = properties if isinstance(properties, dict) else {}
    return json.dumps(
        {name: field.get("default", answer(field)) for name, field in fields.items() if isinstance(field, dict)}
    )


def arguments(schema: JsonObject) -> JsonObject:
    properties = schema.get("properties")
    required = schema.get("required")
    inner = properties if isinstance(properties, dict) else {}
    return {name: answer(inner.get(name)) for name in (required if isinstance(required, list) else ())}


def answer(schema: object):
    kind = schema.get("type") if isinstance(schema, dict) else None
    return ANSWERS.get(kind if isinstance(kind, str) else "string", "x")


def issuer_of(endpoint: str) -> str:
    """Return the authorization server of a server, which the suite does not name and a user would know."""
    parts = urlsplit(endpoint)
    with urllib.request.urlopen(
        f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource{parts.path}"
    ) as page:
        return json.load(page)["authorization_servers"][0]


def oauth_of(endpoint: str, scenario: str, context: dict[str, Any], folder: Path) -> OAuth | None:
    """Return the OAuth settings that a user would have in perstack.toml."""
    if "idp_id_token" in context:
        (folder / "token").write_text(context["idp_id_token"])
        return OAuth(
            flow="identityAssertion",
            client_id=context["client_id"],
            client_secret=context["client_secret"],
            issuer=issuer_of(endpoint),
            identity_file=str(folder / "token"),
            identity_endpoint=context["idp_token_endpoint"],
            identity_client_id=context["idp_client_id"],
        )
    settings = {"client_id": context.get("client_id"), "client_secret": context.get("client_secret")}
    settings |= {"private_key": context.get("private_key_pem"), "issuer": context.get("issuer")}
    if scenario.startswith("auth/client-credentials"):
        return OAuth(flow="clientCredentials", **settings)
    if scenario == "auth/basic-cimd":
        return OAuth(client_id=CLIENT_DOCUMENT)
    return OAuth(**settings) if context.get("client_id") else None


async def browse(url: str) -> None:
    """Follow a URL as a browser whose user agrees to everything."""

    def follow() -> None:
        with urllib.request.urlopen(url) as page:
            page.read()

    await asyncio.to_thread(follow)


async def act(endpoint: str, scenario: str, context: dict[str, Any], folder: Path) -> None:
    """Run the Expert. When the Run needs a login, log in and run it again."""
    skill = McpSseSkill(
        name="server",
        endpoint=endpoint,
        oauth=await asyncio.to_thread(oauth_of, endpoint, scenario, context, folder),
        allow_local_network=True,
        timeout=60_000,
    )
    base = McpStdioSkill(name=BASE_SKILL, package_name=BASE_SKILL, omit=("*",))
    expert = Expert(key="client", instruction="Call every tool.", skills=(base, skill))
    async with Host(
        Project(experts={"client": expert}),
        workspace=folder,
        env={"HOME": str(folder)},
        overrides=Overrides(provider="scripted"),
        plugins=[ScriptedProvider(Model(scenario, context))],
        is_attended=lambda: True,
    ) as host:
        for _ in range(MOST_LOGINS):
            if "log in for skill server" not in await run(host):
                return
            await host.skills.login("server", browse)
        await run(host)


async def run(host: Host) -> str:
    """Run the Expert, answer its questions, and return all shown events as text."""
    texts: list[str] = []

    def show(event: Event, line: bytes) -> None:
        texts.append(line.decode())

    job = await host.run("client", "Call every tool.", on_event=show)
    while job.asking is not None:
        job = await host.answer(form(job.asking.requested_schema), job_id=job.id, on_event=show)
    return "\n".join(texts)


class Clients:
    """A socket server that receives the stubs' arguments and returns what they must print."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._turns = asyncio.Semaphore(AT_ONCE)

    @classmethod
    @contextmanager
    def listening(cls, folder: Path) -> Iterator[Clients]:
        """Serve in a thread until the block ends."""
        clients = cls(folder / "clients.sock")
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        server = asyncio.run_coroutine_threadsafe(clients.serve(), loop).result(10)
        try:
            yield clients
        finally:
            asyncio.run_coroutine_threadsafe(clients.end(server), loop).result(60)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
            loop.close()

    async def serve(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._answer, self.socket)

    async def end(self, server: asyncio.Server) -> None:
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_default_executor()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(await reader.read())
        words = ""
        async with self._turns:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    await act(asked["endpoint"], asked["scenario"], asked["context"], Path(folder))
                except PerstackError as error:
                    words = str(error)
                except Exception:  # noqa: BLE001 - the test shows any error
                    words = traceback.format_exc()
        writer.write(words.encode())
        await writer.drain()
        writer.close()
