"""Cost of a step over HTTP in each wire format, beside the cost of sending the same bytes.

python bench/wires.py --steps 200 Converse    only these formats and this number of steps
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

PERSTACK = str(Path(sys.executable).with_name("perstack"))
STEPS = 1000
ATTEMPTS = 3
READ = "readTextFile"
ARGUMENTS = '{"path":"a.txt"}'


def sse(*data: object) -> bytes:
    return b"".join(f"data: {json.dumps(item)}\n\n".encode() for item in data)


def messages(call: str) -> bytes:
    usage = {"input_tokens": 1000, "output_tokens": 50}
    block = {"type": "tool_use", "id": call, "name": READ, "input": {}}
    return sse(
        {"type": "message_start", "message": {"usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": ARGUMENTS}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 50}},
        {"type": "message_stop"},
    )


def responses(call: str) -> bytes:
    item = {"type": "function_call", "id": f"f{call}", "call_id": call, "name": READ, "arguments": ARGUMENTS}
    usage = {"input_tokens": 1000, "output_tokens": 50, "total_tokens": 1050}
    response = {"status": "completed", "output": [item], "usage": usage}
    return sse(
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    )


def chat(call: str) -> bytes:
    tool_call = {"index": 0, "id": call, "type": "function", "function": {"name": READ, "arguments": ARGUMENTS}}
    usage = {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050}
    return (
        sse(
            {"choices": [{"index": 0, "delta": {"tool_calls": [tool_call]}, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
            {"choices": [], "usage": usage},
        )
        + b"data: [DONE]\n\n"
    )


def generate_content(call: str) -> bytes:
    part = {"functionCall": {"id": call, "name": READ, "args": json.loads(ARGUMENTS)}, "thoughtSignature": "c2ln"}
    usage = {"promptTokenCount": 1000, "candidatesTokenCount": 50}
    return sse(
        {"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]},
        {"candidates": [{"finishReason": "STOP", "index": 0}], "usageMetadata": usage},
    )


def converse(call: str) -> bytes:
    from event_stream import event

    start = {"toolUse": {"toolUseId": call, "name": READ}}
    return b"".join(
        (
            event("messageStart", {"role": "assistant"}),
            event("contentBlockStart", {"contentBlockIndex": 0, "start": start}),
            event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"toolUse": {"input": ARGUMENTS}}}),
            event("contentBlockStop", {"contentBlockIndex": 0}),
            event("messageStop", {"stopReason": "tool_use"}),
            event("metadata", {"usage": {"inputTokens": 1000, "outputTokens": 50, "totalTokens": 1050}}),
        )
    )


@dataclass(frozen=True)
class Wire:
    """Wire format at one provider."""

    name: str
    provider: str
    model: str
    reply: Callable[[str], bytes]
    """Returns the stream of a reply with one call with that id."""
    env: dict[str, str] = field(default_factory=dict)
    setting: str = ""
    library: str = ""
    """Package that it requires."""
    is_signed: bool = False
    """True if a request contains a hash of its body, whose computation is part of sending it."""
    kind: str = "text/event-stream"


_AWS = {
    "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-1",
    "AWS_CONFIG_FILE": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
}  # fmt: skip

WIRES = (
    Wire("Messages", "anthropic", "claude-sonnet-4-5", messages, {"ANTHROPIC_API_KEY": "key"}),
    Wire("Responses", "openai", "gpt-5-mini", responses, {"OPENAI_API_KEY": "key"}, 'api = "responses"'),
    Wire("Chat Completions", "deepseek", "deepseek-flash", chat, {"DEEPSEEK_API_KEY": "key"}),
    Wire("generateContent", "google", "gemini-3.8-flash", generate_content, {"GEMINI_API_KEY": "key"}),
    Wire(
        "Converse",
        "amazon-bedrock",
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        converse,
        _AWS,
        library="botocore",
        is_signed=True,
        kind="application/vnd.amazon.eventstream",
    ),
)


# --- the server, a process of its own -----------------------------------------------------------------------------


def serve(wire: Wire) -> None:
    """Answer at once and in one write, on a free port that is printed; at the end of stdin, print the requests."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    sizes: list[int] = []
    last = bytearray()
    numbers = itertools.count()

    def answer() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for body in read_bodies(connection):
                    reply = wire.reply(f"call_{next(numbers):06}")
                    head = f"HTTP/1.1 200 OK\r\ncontent-type: {wire.kind}\r\ncontent-length: {len(reply)}\r\n\r\n"
                    connection.sendall(head.encode() + reply)
                    sizes.append(len(body))
                    last[:] = body

    threading.Thread(target=answer, daemon=True).start()
    sys.stdin.read()
    json.dump({"sizes": sizes, "last": last.decode()}, sys.stdout)


def read_bodies(connection: socket.socket) -> Iterator[bytearray]:
    """Yield the body of each request."""
    buffer = bytearray(1 << 20)
    length_read = 0
    while True:
        while (end := buffer.find(b"\r\n\r\n", 0, length_read)) < 0:
            count = connection.recv_into(memoryview(buffer)[length_read:])
            if not count:
                return
            length_read += count
        head = buffer[:end].lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        start, request_end = end + 4, end + 4 + length
        if len(buffer) < request_end:
            buffer.extend(bytes(request_end - len(buffer)))
        while length_read < request_end:
            count = connection.recv_into(memoryview(buffer)[length_read:])
            if not count:
                return
            length_read += count
        yield buffer[start:request_end]
        buffer[: length_read - request_end] = buffer[request_end:length_read]
        length_read -= request_end


@contextmanager
def serving(wire: Wire) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    command = [sys.executable, __file__, "--serve", wire.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline()), server
        finally:
            server.kill()


# --- the clients --------------------------------------------------------------------------------------------------


def drive_job(wire: Wire, port: int, steps: int) -> tuple[list[float], float]:
    """Return the milliseconds of each step of a Job but the first, by its log, and the peak MB of the process."""
    folder = Path(tempfile.mkdtemp(prefix="perstack-bench-"))
    lines = [
        "maxRepeats = 0",
        f"[provider]\nproviderName = {wire.provider!r}\n[provider.setting]",
        f'baseUrl = "http://127.0.0.1:{port}"',
        wire.setting,
        '[experts.bench]\ninstruction = "Reads a file, again and again."',
    ]
    (folder / "perstack.toml").write_text("\n".join(lines))
    (folder / "a.txt").write_text("twenty bytes of text")
    (folder / "err").touch()
    command = [PERSTACK, "run", "bench", "go", "--model", wire.model, "--max-steps", str(steps)]
    unwanted = ("PYTHONDONTWRITEBYTECODE", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
    env = {name: value for name, value in os.environ.items() if name not in unwanted}
    env["PERSTACK_TRUST"] = str(folder)
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(command, cwd=folder, env={**env, **wire.env}, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 4:
        sys.exit(f"{wire.name}: {(folder / 'err').read_text()[-500:]}{(folder / 'out').read_text()[-500:]}")
    log = next(folder.glob("perstack/jobs/*/runs/*-1/events.jsonl"))
    events = (json.loads(line) for line in log.read_bytes().splitlines())
    times = [event["timestamp"] for event in events if event["type"] == "finishStep"]
    return [float(after - before) for before, after in itertools.pairwise(times)], usage.ru_maxrss / 1024


def send(port: int, is_signed: bool) -> None:
    """Send the requests that stdin lists from a bare socket, and await each answer: the floor, in its own process."""
    requests = json.load(sys.stdin)
    last = requests["last"].encode()
    times = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for size in requests["sizes"]:
            began = time.perf_counter()
            body = last[:size].ljust(size)
            digest = hashlib.sha256(body).hexdigest() if is_signed else ""
            head = f"POST / HTTP/1.1\r\nhost: a\r\nx-digest: {digest}\r\ncontent-length: {size}\r\n\r\n"
            connection.sendall(head.encode() + body)
            read_answer(connection)
            times.append((time.perf_counter() - began) * 1000)
    json.dump(times, sys.stdout)


def read_answer(connection: socket.socket) -> bytes:
    """Read one answer."""
    answer = b""
    while (end := answer.find(b"\r\n\r\n")) < 0:
        answer += connection.recv(65536)
    length = int(answer[:end].split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(answer) < end + 4 + length:
        answer += connection.recv(65536)
    return answer


def measure_wire(wire: Wire, steps: int) -> tuple[list[float], list[float], float]:
    """Return the milliseconds of each step, and of sending its bytes alone to the same server, and the peak MB."""
    with serving(wire) as (port, server):
        step_times, peak_mb = drive_job(wire, port, steps)
        requests, _ = server.communicate()
    with serving(wire) as (port, _):
        command = [sys.executable, __file__, "--send", str(port), *(["--signed"] if wire.is_signed else [])]
        process = subprocess.run(command, input=requests, stdout=subprocess.PIPE, text=True, check=True)
    return step_times, json.loads(process.stdout)[1:], peak_mb


def is_installed(library: str) -> bool:
    try:
        return not library or bool(version(library))
    except PackageNotFoundError:
        return False


def mean_of_best(tries: Iterable[list[float]], part: slice) -> float:
    """Return the mean of those steps in the fastest attempt: other load on the machine only adds time."""
    return min(sum(times[part]) / len(times[part]) for times in tries)


def print_table(steps: int = STEPS, names: Collection[str] = ()) -> None:
    """Print the table."""
    print(f"\n| format, {steps:,} steps | ms a step | floor | first tenth | last tenth | last / first | MB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    chosen = [wire for wire in WIRES if is_installed(wire.library) and (not names or wire.name in names)]
    # In turn, so that other load on the machine affects all equally.
    rounds = [[measure_wire(wire, steps) for wire in chosen] for _ in range(ATTEMPTS)]
    for wire, tries in zip(chosen, zip(*rounds, strict=True), strict=True):
        step_times, send_times, peak_mb = zip(*tries, strict=True)
        tenth = max(1, steps // 10)
        all_steps, first_tenth, last_tenth = slice(None), slice(tenth), slice(-tenth, None)
        first, last = (
            mean_of_best(step_times, part) - mean_of_best(send_times, part) for part in (first_tenth, last_tenth)
        )
        print(
            f"| {wire.name} | {mean_of_best(step_times, all_steps):.2f} | {mean_of_best(send_times, all_steps):.2f}"
            f" | {first:.2f} | {last:.2f} | {last / first:.2f} | {max(peak_mb):.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--serve")
    parser.add_argument("--send", type=int)
    parser.add_argument("--signed", action="store_true")
    args = parser.parse_args()
    if args.serve is not None:
        serve(next(wire for wire in WIRES if wire.name == args.serve))
    elif args.send is not None:
        send(args.send, args.signed)
    else:
        print_table(args.steps, args.names)


if __name__ == "__main__":
    main()
