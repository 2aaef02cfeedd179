"""An MCP server of the SDK on a port of its own; prints the address."""

from __future__ import annotations

import asyncio
import json
import socket
import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel
from starlette.responses import JSONResponse

server = MCPServer("web")


@server.tool()
def echo(text: str) -> str:
    """Says it again."""
    return text


@server.tool()
def header(ctx: Context, name: str) -> str:
    """The value of a header that the client sent."""
    return (ctx.headers or {}).get(name, "")


class Place(BaseModel):
    """What `book` asks for."""

    city: str


begun: list[str] = []


@server.tool()
async def book(ctx: Context, who: str) -> str:
    """Asks where to, and tells how often it was called for the same."""
    begun.append(who)
    return f"{who} {(await ctx.elicit(f'{who}: where to?', Place)).action} {begun.count(who)}"


async def main(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        app = server.sse_app() if kind == "sse" else server.streamable_http_app()
        app = Older(app) if kind == "older" else app
        run = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        print(listening.getsockname()[1], flush=True)
        await run.serve(sockets=[listening])


class Older:
    """Knows nothing of the stateless era, and says on stderr when it is asked for it."""

    def __init__(self, app) -> None:
        self.app = app

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self.app(scope, receive, send)
        messages = [await receive()]
        if json.loads(messages[0]["body"])["method"] == "server/discover":
            print("probed", file=sys.stderr, flush=True)
            refusal = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Missing session ID"}}
            return await JSONResponse(refusal, 400)(scope, receive, send)

        async def again():
            return messages.pop() if messages else await receive()

        return await self.app(scope, again, send)


asyncio.run(main(sys.argv[1]))
