"""An MCP server in plain Python whose tools ask the client something: of the era that its argument says.

A tool is a generator of requests. In the handshake's era each is sent; in the stateless one it is returned, with all
that was answered so far as the request's state.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from pathlib import Path

ERA = sys.argv[1]
STATELESS = "2026-07-28"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
OBJECT = {"type": "object", "properties": {}}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "nights": {"type": "integer", "default": 2}},
    "required": ["city"],
}
NIGHTS = {"type": "object", "properties": {"nights": {"type": "integer"}}, "required": ["nights"]}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ADDRESS = "https://pay.example.com/7"

Request = dict
Tool = Generator[Request, dict, dict]

offered = {"book": {}, "trip": {}, "pay": {}, "demand": {}, "sum": {}, "nest": {}, "grow": {}, "spoil": {}, "wait": {}}
offered["charge"] = {}
offered["drop"] = {}
offered["broken"] = {"outputSchema": NUMBER}
spoilt = False
is_fickle = False
subscription: str | int | None = None


def send(**message) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def text(words: str, **more) -> dict:
    return {"content": [{"type": "text", "text": words}], **more}


def elicit(message: str, schema: dict) -> Request:
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def changed() -> None:
    meta = {} if subscription is None else {"params": {"_meta": {SUBSCRIPTION: subscription}}}
    send(method="notifications/tools/list_changed", **meta)


def end_subscription(how: str) -> None:
    global is_fickle
    is_fickle = how == "always"
    end = {"result": Stateless.fresh} if how == "ended" else {"error": {"code": -32603, "message": "restarting"}}
    send(id=subscription, **end)


def run(name: str, args: dict) -> Tool:
    global spoilt
    say(f"{name} {args.get('who', '')}".strip())
    match name:
        case "book":
            answer = yield elicit(f"{args.get('who', 'you')}: where to?", CITY)
            said = json.dumps(answer.get("content"), sort_keys=True)
            return text(f"{answer['action']} {said}")
        case "charge":
            with Path("charged").open("a", encoding="utf-8") as file:
                file.write("once\n")
            answer = yield elicit("Where to?", CITY)
            said = answer["content"]["city"] if answer["action"] == "accept" else answer["action"]
            return text(f"charged {args.get('who', '')} for {said}".replace("  ", " "))
        case "trip":
            first = yield elicit("Where to?", CITY)
            second = yield elicit("How long?", NIGHTS)
            return text(f"{first['content']['city']} {second['content']['nights']}")
        case "pay":
            params = {"mode": "url", "message": "Please pay.", "url": ADDRESS, "elicitationId": "7"}
            if ERA == "stateless":
                del params["elicitationId"]
            answer = yield {"method": "elicitation/create", "params": params}
            return text(f"{answer['action']} {'content' in answer}")
        case "sum" | "nest":
            data = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
            block = {"type": "audio", "data": data, "mimeType": "audio/wav"} if name == "nest" else None
            messages = [
                {"role": "user", "content": {"type": "text", "text": "2 + 2?"}},
                {"role": "assistant", "content": {"type": "text", "text": "What?"}},
                {"role": "user", "content": block or {"type": "image", "data": data, "mimeType": "image/png"}},
            ]
            params = {"messages": messages, "systemPrompt": "[[calculator]]", "maxTokens": 10, "temperature": 0.5}
            return text(json.dumps((yield {"method": "sampling/createMessage", "params": params})))
        case "grow":
            offered["more"] = {}
            changed()
            changed()
        case "drop":  # the subscription, with a change that nobody is told
            offered["more"] = {}
            end_subscription(args["how"])
        case "spoil":
            spoilt = True
            changed()
        case "broken":
            return text("{}", structuredContent={"n": "many"})
    return text(f"{name} is done")


def listed() -> dict:
    if spoilt:
        return {"error": {"code": -32603, "message": "the list is lost"}}
    return {"result": {"tools": [{"name": name, "inputSchema": OBJECT, **more} for name, more in offered.items()]}}


class Handshake:
    """The era in which a server sends its requests."""

    version = "2025-11-25"

    def __init__(self) -> None:
        self.asked: dict[str, tuple[int, Tool]] = {}
        self.last: tuple[int, Tool] | None = None  # a call that asks after the next one has asked
        self.numbers = 0

    def take(self, message: dict) -> None:
        method, number, params = message.get("method"), message.get("id"), message.get("params") or {}
        if method is None:
            call, tool = self.asked.pop(message["id"])
            say(f"answered {json.dumps(message.get('result'))}")
            return self.go(call, tool, message.get("result") or message["error"])
        if method == "notifications/cancelled":
            return say("cancelled")
        if method == "initialize":
            say(f"capabilities {' '.join(sorted(params['capabilities']))}")
            offers = {"protocolVersion": self.version, "capabilities": {"tools": {"listChanged": True}}}
            result = {**offers, "serverInfo": {"name": "asking", "version": "1"}, "instructions": INSTRUCTIONS}
            return send(id=number, result=result)
        if method == "tools/list":
            return send(id=number, **listed())
        if method == "tools/call" and params["name"] == "demand":
            return self.demand(number)
        if method == "tools/call" and params["name"] != "wait":
            args = params.get("arguments") or {}
            tool, last, self.last = run(params["name"], args), self.last, None
            if args.get("asks") == "last":
                self.last = (number, tool)
                return None
            self.go(number, tool, None, params["_meta"] if args.get("asks") == "by name" else None)
            if last is not None:
                self.go(*last, None)
        return None

    def demand(self, number: int) -> None:
        if Path("paid").exists():
            return send(id=number, result=text("thank you"))
        wanted = {"mode": "url", "message": "Please pay.", "url": ADDRESS, "elicitationId": "7"}
        return send(id=number, error={"code": -32042, "message": "not paid", "data": {"elicitations": [wanted]}})

    def go(self, call: int, tool: Tool, answer: dict | None, meta: dict | None = None) -> None:
        try:
            request = next(tool) if answer is None else tool.send(answer)
        except StopIteration as done:
            return send(id=call, result=done.value)
        self.numbers += 1
        self.asked[f"ask-{self.numbers}"] = (call, tool)
        if meta is not None:
            request["params"]["_meta"] = {"perstack/callId": meta["perstack/callId"]}
        return send(id=f"ask-{self.numbers}", **request)


class Stateless:
    """The era in which a server returns its requests."""

    fresh = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}  # noqa: RUF012

    def take(self, message: dict) -> None:
        global subscription
        method, number, params = message.get("method"), message.get("id"), message.get("params") or {}
        if method == "server/discover":
            offers = {"supportedVersions": [STATELESS], "capabilities": {"tools": {"listChanged": True}}}
            send(id=number, result={**self.fresh, **offers, "instructions": INSTRUCTIONS})
        elif method == "tools/list":
            answer = listed()
            send(id=number, **({"result": {**self.fresh, **answer["result"]}} if "result" in answer else answer))
        elif method == "tools/call" and params["name"] != "wait":
            send(id=number, result=self.called(params))
        elif method == "subscriptions/listen":
            subscription = number
            told = {"_meta": {SUBSCRIPTION: number}, "notifications": {"toolsListChanged": True}}
            send(method="notifications/subscriptions/acknowledged", params=told)
            say("subscribed")
            if is_fickle:
                end_subscription("always")
        elif method == "initialize":
            data = {"supported": [STATELESS], "requested": params.get("protocolVersion", "")}
            send(id=number, error={"code": -32022, "message": "unsupported protocol version", "data": data})

    def called(self, params: dict) -> dict:
        answers = json.loads(params.get("requestState") or "[]")
        answers += (params.get("inputResponses") or {}).values()
        tool = run(params["name"], params.get("arguments") or {})
        try:
            request = next(tool)
            for answer in answers:
                request = tool.send(answer)
        except StopIteration as done:
            return {"resultType": "complete", **done.value}
        return {"resultType": "input_required", "inputRequests": {"q": request}, "requestState": json.dumps(answers)}


INSTRUCTIONS = "Say the city in English."
era = Stateless() if ERA == "stateless" else Handshake()
while line := sys.stdin.readline():
    era.take(json.loads(line))
