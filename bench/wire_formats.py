"""Cost of the provider plugins beside the network: decoding a stream, and importing them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

STREAM_BYTES = 1_000_000
CHUNK_BYTES = 4096
ATTEMPTS = 5
IMPORTS = 9


@dataclass
class Codec:
    """One wire format, with the smallest events that its vendor sends."""

    name: str
    make: str
    """An expression for a decoder, after `start`."""
    start: str
    delta: str
    ends: tuple[str, ...]
    begins: tuple[str, ...] = ()
    is_binary: bool = False
    """True for frames of AWS's event stream instead of server-sent events."""


CODECS = (
    Codec(
        "Messages",
        "MessagesDecoder(nothing)",
        "from perstack_anthropic.messages_api import MessagesDecoder",
        '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" word"}}',
        ('{"type":"message_stop"}',),
        ('{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}',),
    ),
    Codec(
        "Responses",
        "ResponsesDecoder(nothing, 'openai')",
        "from perstack_openai.responses_api import ResponsesDecoder",
        '{"type":"response.output_text.delta","item_id":"m","output_index":0,"content_index":0,"delta":" word"}',
        ('{"type":"response.completed","response":{"status":"completed","output":[]}}',),
    ),
    Codec(
        "Chat Completions",
        "ChatDecoder(nothing)",
        "from perstack_openai.chat_completions import ChatDecoder",
        '{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}',
        ("[DONE]",),
    ),
    Codec(
        "generateContent",
        "GeminiDecoder(nothing)",
        "from perstack_google.reply import GeminiDecoder",
        '{"candidates":[{"content":{"role":"model","parts":[{"text":" word"}]},"index":0}]}',
        ('{"candidates":[{"finishReason":"STOP"}],"usageMetadata":{}}',),
    ),
    Codec(
        "Converse",
        "ConverseDecoder(nothing)",
        "from perstack_bedrock.reply import ConverseDecoder",
        '{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"text":" word"}}}',
        ('{"messageStop":{"stopReason":"end_turn"}}', '{"metadata":{"usage":{}}}'),
        is_binary=True,
    ),
)

PROVIDERS = {
    # all that one generation needs
    "anthropic": "perstack_anthropic.provider",
    "openai": "perstack_openai.provider, perstack_openai.responses_api, perstack_openai.responses_api",
    "google": "perstack_google.provider",
    "amazon-bedrock": "perstack_bedrock.provider",
    "google-vertex": "perstack_vertex.provider",
}
LIBRARIES = {
    # imported by those two at their first generation
    "botocore": "botocore.eventstream, botocore.auth, botocore.awsrequest, botocore.session",
    "google-auth": "google.auth, google.oauth2.service_account, google.auth.transport.requests",
}


def frame_event(data: str) -> bytes:
    from event_stream import event

    ((kind, content),) = json.loads(data).items()
    return event(kind, content)


def stream_of(codec: Codec) -> bytes:
    write = frame_event if codec.is_binary else lambda data: f"data: {data}\n\n".encode()
    delta = write(codec.delta)
    return b"".join([*map(write, codec.begins), delta * (STREAM_BYTES // len(delta)), *map(write, codec.ends)])


def decoder_of(codec: Codec) -> Callable[[str], bool]:
    names: dict[str, object] = {"nothing": lambda delta: None}
    exec(codec.start, names)
    return eval(codec.make, names).feed


def measure_decoding(codec: Codec) -> float:
    """Return the processor seconds from the bytes of a stream to the reply: the best of some attempts."""
    import httpx

    from perstack.http_providers.client import receive, server_sent_events
    from perstack_bedrock.reply import aws_events

    read_events = aws_events if codec.is_binary else server_sent_events
    stream = stream_of(codec)

    class Chunks(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for start in range(0, len(stream), CHUNK_BYTES):
                yield stream[start : start + CHUNK_BYTES]

    times = []
    for _ in range(ATTEMPTS):
        response = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Chunks())
        feed = decoder_of(codec)
        began = time.process_time()
        asyncio.run(receive(response, "https://a.example", feed, read_events))
        times.append(time.process_time() - began)
    return min(times)


def measure_import(modules: str, after: str = "httpx, perstack.host") -> float:
    """Milliseconds of processor time that modules add to a host that has httpx, in a fresh interpreter."""
    # a full collection takes longer than importing a provider, and could happen at any time
    code = (
        f"import gc, time, {after}; gc.collect(); began = time.process_time();"
        f" import {modules}; print(time.process_time() - began)"
    )
    processes = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(IMPORTS)]
    return sorted(float(process.stdout) for process in processes)[IMPORTS // 2] * 1000


def is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def print_providers() -> None:
    """Print all figures."""
    codecs = [codec for codec in CODECS if not codec.is_binary or is_installed("botocore")]
    decoded = ", ".join(f"{codec.name} {measure_decoding(codec):.2f} s" for codec in codecs)
    print(f"decoding 1 MB of small deltas, CPU: {decoded}")
    imported = ", ".join(
        f"{name} {measure_import(f'{modules}, perstack.http_providers.client'):.0f} ms"
        for name, modules in PROVIDERS.items()
    )
    print(f"importing a provider beyond httpx, CPU: {imported}")
    after = "httpx, perstack.host, perstack.http_providers.client"
    libraries = ", ".join(
        f"{name} {measure_import(modules, after):.0f} ms" for name, modules in LIBRARIES.items() if is_installed(name)
    )
    print(f"importing what signs, at the first generation, CPU: {libraries or 'none is installed'}")


if __name__ == "__main__":
    print_providers()
