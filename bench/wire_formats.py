"""What the providers' plugins cost beside the network: decoding a stream, and being imported."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

STREAM_BYTES = 1_000_000
CHUNK_BYTES = 4096
TRIES = 5
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


CODECS = (
    Codec(
        "Messages",
        "ReplyDecoder(nothing)",
        "from perstack_anthropic.codec import ReplyDecoder",
        '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" word"}}',
        ('{"type":"message_stop"}',),
        ('{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}',),
    ),
    Codec(
        "Responses",
        "ResponsesDecoder(nothing, 'openai')",
        "from perstack_openai.responses_reply import ResponsesDecoder",
        '{"type":"response.output_text.delta","item_id":"m","output_index":0,"content_index":0,"delta":" word"}',
        ('{"type":"response.completed","response":{"status":"completed","output":[]}}',),
    ),
    Codec(
        "Chat Completions",
        "ChatDecoder(nothing)",
        "from perstack_openai.chat_reply import ChatDecoder",
        '{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}',
        ("[DONE]",),
    ),
    Codec(
        "generateContent",
        "ReplyDecoder(nothing)",
        "from perstack_google.reply import ReplyDecoder",
        '{"candidates":[{"content":{"role":"model","parts":[{"text":" word"}]},"index":0}]}',
        ('{"candidates":[{"finishReason":"STOP"}],"usageMetadata":{}}',),
    ),
)

PROVIDERS = {
    # all that one generation needs
    "anthropic": "perstack_anthropic.provider",
    "openai": "perstack_openai.endpoints, perstack_openai.responses, perstack_openai.responses_reply",
    "google": "perstack_google.provider",
}


def stream_of(codec: Codec) -> bytes:
    deltas = (codec.delta,) * (STREAM_BYTES // len(codec.delta))
    return "".join(f"data: {data}\n\n" for data in (*codec.begins, *deltas, *codec.ends)).encode()


def decoder_of(codec: Codec) -> Callable[[str], bool]:
    names: dict[str, object] = {"nothing": lambda delta: None}
    exec(codec.start, names)
    return eval(codec.make, names).feed


def decoding(codec: Codec) -> float:
    """Seconds of processor time from the bytes of a stream to the reply, the least of a few tries."""
    import httpx

    from perstack_http.client import receive

    stream = stream_of(codec)

    class Chunks(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for at in range(0, len(stream), CHUNK_BYTES):
                yield stream[at : at + CHUNK_BYTES]

    took = []
    for _ in range(TRIES):
        response = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Chunks())
        feed = decoder_of(codec)
        began = time.process_time()
        asyncio.run(receive(response, "https://a.example", feed))
        took.append(time.process_time() - began)
    return min(took)


def importing(modules: str) -> float:
    """Milliseconds of processor time that a provider's modules add to a host that has httpx, in a fresh interpreter."""
    code = (
        "import time, httpx, perstack.host; began = time.process_time();"
        f" import {modules}, perstack_http.client; print(time.process_time() - began)"
    )
    took = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(IMPORTS)]
    return sorted(float(done.stdout) for done in took)[IMPORTS // 2] * 1000


def providers() -> None:
    """Print both."""
    decoded = ", ".join(f"{codec.name} {decoding(codec):.2f} s" for codec in CODECS)
    print(f"decoding 1 MB of small deltas, CPU: {decoded}")
    imported = ", ".join(f"{name} {importing(modules):.0f} ms" for name, modules in PROVIDERS.items())
    print(f"importing a provider beyond httpx, CPU: {imported}")


if __name__ == "__main__":
    providers()
