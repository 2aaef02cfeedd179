"""The shared HTTP layer against a real server on this machine: what arrives, what fails and how, what is left."""

from __future__ import annotations

import asyncio
import gc
import gzip
import ssl
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from perstack.errors import ProviderError
from perstack.http_providers.client import StreamClient
from perstack.http_providers.endpoint import Endpoint, EndpointSettings
from perstack.http_providers.errors import error_message_in, retry_after, status_error
from perstack.http_providers.replies import ReplyProgress
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply, events

HOUR = timedelta(hours=1)
SECRET = "sk-very-secret-0123456789"


class Heard:
    """Collects data until «end»."""

    def __init__(self) -> None:
        self.data: list[str] = []

    def __call__(self, data: str) -> ReplyProgress:
        self.data.append(data)
        return ReplyProgress.LAST if data == "end" else ReplyProgress.MORE


def _client(base_url: str, read_seconds: float = 30) -> StreamClient:
    return StreamClient(Endpoint(base_url, {"authorization": f"Bearer {SECRET}"}, read_seconds))


def _endpoint_with(
    *replies: PreparedReply, act: Callable[[FakeEndpoint, StreamClient], Awaitable[None]], read_seconds: float = 30
) -> FakeEndpoint:
    async def scenario() -> FakeEndpoint:
        async with FakeEndpoint(*replies) as endpoint:
            client = _client(endpoint.url, read_seconds)
            try:
                await asyncio.wait_for(act(endpoint, client), 30)
            finally:
                await client.close()
            return endpoint

    return asyncio.run(scenario())


def _heard(*replies: PreparedReply) -> list[str]:
    heard = Heard()

    async def act(endpoint: FakeEndpoint, client: StreamClient) -> None:
        await client.post("/v1/x", b"{}", heard)

    _endpoint_with(*replies, act=act)
    return heard.data


def _error(*replies: PreparedReply, read_seconds: float = 30) -> ProviderError:
    async def act(endpoint: FakeEndpoint, client: StreamClient) -> None:
        await client.post("/v1/x", b"{}", Heard())

    with pytest.raises(ProviderError) as caught:
        _endpoint_with(*replies, act=act, read_seconds=read_seconds)
    return caught.value


def test_events_are_handed_on_up_to_the_last() -> None:
    assert _heard(PreparedReply(events("one", "two", "end", "late"))) == ["one", "two", "end"]


def test_lines_may_end_in_any_way_and_hold_separators_that_are_no_line_ends() -> None:
    stream = "data: a\u2028b\u0085c\r\n\r\ndata: d\r\rdata: multi\ndata: line\n\n: comment\n\ndata: end\n\n".encode()
    assert _heard(PreparedReply((stream,))) == ["a\u2028b\u0085c", "d", "multi\nline", "end"]


def test_a_delta_of_ten_megabytes_arrives_whole() -> None:
    stream = b"".join(events("x" * 10_000_000, "end"))
    chunks = tuple(stream[at : at + 65536] for at in range(0, len(stream), 65536))
    assert [len(data) for data in _heard(PreparedReply(chunks))] == [10_000_000, 3]


def test_a_compressed_stream_is_read() -> None:
    packed = gzip.compress(b"".join(events("one", "end")))
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    assert _heard(PreparedReply((packed,), headers=headers)) == ["one", "end"]


def test_events_under_another_content_type_are_read_as_events() -> None:
    assert _heard(PreparedReply(events("one", "end"), headers={"content-type": "text/plain; charset=latin-1"})) == [
        "one",
        "end",
    ]


def test_a_json_document_is_handed_on_whole() -> None:
    assert _heard(PreparedReply((b'{"a":', b"1}"), headers={"content-type": "application/json"})) == ['{"a":1}']


def test_a_connection_is_used_again_after_the_last_event() -> None:
    async def act(endpoint: FakeEndpoint, client: StreamClient) -> None:
        for _ in range(3):
            await client.post("/v1/x", b"{}", Heard())

    assert _endpoint_with(PreparedReply(events("end", "late")), act=act).connections == 1


def test_a_server_that_lingers_after_the_last_event_is_not_waited_for() -> None:
    assert _heard(PreparedReply(events("one", "end"), ending="hang")) == ["one", "end"]


@pytest.mark.parametrize(
    ("status", "name", "retryable"),
    [
        (400, "BadRequest", False),
        (401, "Authentication", False),
        (403, "Permission", False),
        (404, "NotFound", False),
        (408, "Timeout", True),
        (409, "Conflict", True),
        (413, "ContextOverflow", False),
        (422, "BadRequest", False),
        (429, "RateLimit", True),
        (500, "ServerError", True),
        (502, "ServerError", True),
        (503, "ServerError", True),
        (529, "Overloaded", True),
    ],
)
def test_a_status_has_its_name_and_says_whether_to_try_again(status: int, name: str, retryable: bool) -> None:
    error = _error(PreparedReply((b'{"error":{"type":"t","message":"the own words"}}',), status=status))
    assert (error.status_code, error.name, error.is_retryable) == (status, name, retryable)
    assert str(error).startswith("the own words")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "9", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "Fri, 21 Nov 2025 10:00:30 GMT"}, 30.0),
        ({"retry-after": "Fri, 21 Nov 2025 09:00:00 GMT"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_seconds_milliseconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, datetime(2025, 11, 21, 10, 0, tzinfo=UTC)) == seconds


def test_retry_after_reaches_the_error() -> None:
    assert _error(PreparedReply(status=429, headers={"Retry-After": "12"})).retry_after == 12


def test_the_endpoint_may_overrule_whether_to_try_again() -> None:
    assert not _error(PreparedReply(status=500, headers={"x-should-retry": "false"})).is_retryable
    assert _error(PreparedReply(status=400, headers={"x-should-retry": "true"})).is_retryable


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"m"}}', "m"),
        (b'{"error":"e"}', "e"),
        (b'{"message":"top"}', "top"),
        (b'{"detail":[{"message":"first"}]}', "first"),
        (b'[{"error":{"message":"listed"}}]', "listed"),
        (b'{"other":1}', '{"other":1}'),
        (b"plain words\n", "plain words"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b'{"detail":[{"loc":["body"],"msg":"of a validator"}]}', "of a validator"),
        (b'{"error_code":336007,"error_msg":"too many"}', "too many"),
        (b"<html><head><title>502 Bad&nbsp;Gateway</title></head><body><h1>x</h1></body></html>", "502 Bad Gateway"),
        (b"<!DOCTYPE html>\n<style>h1 {}</style><body>\n<p>Down for\nwork</p>", "Down for work"),
        (b"<Error><Code>Slow</Code><Message>Please slow down.</Message></Error>", "Please slow down."),
        (b"<title></title><h1>Not here", "Not here"),
        (b"<" * 5000, ""),
        (b"", ""),
    ],
)
def test_the_own_words_are_found_in_any_shape_of_error(body: bytes, words: str) -> None:
    assert error_message_in(body) == words


_DOCUMENT, _STREAM = {"content-type": "application/json"}, {"content-type": "text/event-stream"}
_MEGABYTE = b"x" * (1 << 20)


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize(
    ("headers", "part"),
    [(_DOCUMENT, _MEGABYTE), (_STREAM, _MEGABYTE), (_STREAM, b"data: " + _MEGABYTE + b"\n\n")],
    ids=["a document", "a line without end", "events"],
)
def test_a_reply_that_is_too_long_is_refused_and_not_tried_again(
    headers: dict[str, str], part: bytes, *, is_compressed: bool
) -> None:
    reply = PreparedReply((part,) * 65, headers=headers)
    if is_compressed:
        reply = PreparedReply((gzip.compress(part * 65),), headers={**headers, "content-encoding": "gzip"})
    error = _error(reply)
    assert (str(error), error.is_retryable) == ("the reply is longer than 64 MiB", False)


def test_a_huge_error_body_is_cut_short() -> None:
    assert len(str(_error(PreparedReply((b"x" * 1_000_000,) * 5, status=500)))) < 3000


def test_a_redirect_is_not_followed_and_says_where_to() -> None:
    error = _error(PreparedReply(status=307, headers={"location": "https://elsewhere.example/v1"}))
    assert "elsewhere.example" in str(error)
    assert not error.is_retryable


def test_a_web_page_in_place_of_a_reply_says_to_check_the_address() -> None:
    error = _error(PreparedReply((b"<html>Sign in</html>",), headers={"content-type": "text/html; charset=utf-8"}))
    assert (error.name, error.is_retryable) == ("BadResponse", False)
    assert "base URL" in str(error)


def test_a_stream_that_is_cut_is_worth_another_try() -> None:
    error = _error(PreparedReply(events("one"), ending="cut"))
    assert (error.name, error.is_retryable, error.status_code) == ("CutStream", True, None)


def test_silence_is_given_up_and_worth_another_try() -> None:
    error = _error(PreparedReply(events("one"), ending="hang"), read_seconds=0.05)
    assert (error.name, error.is_retryable) == ("Timeout", True)


def test_a_refused_connection_is_worth_another_try_and_names_the_address() -> None:
    async def scenario() -> str:
        async with FakeEndpoint(PreparedReply()) as endpoint:
            return endpoint.url

    url = asyncio.run(scenario())
    with pytest.raises(ProviderError, match=url) as caught:
        asyncio.run(_client(url).post("/v1/x", b"{}", Heard()))
    assert (caught.value.name, caught.value.is_retryable) == ("ConnectError", True)


def test_an_answer_that_is_no_http_is_worth_another_try() -> None:
    async def scenario() -> None:
        async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"garbage\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        client = _client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            await client.post("/v1/x", b"{}", Heard())
        finally:
            await client.close()
            server.close()

    with pytest.raises(ProviderError) as caught:
        asyncio.run(scenario())
    assert caught.value.is_retryable


def test_many_generations_at_once_each_have_a_connection() -> None:
    async def act(endpoint: FakeEndpoint, client: StreamClient) -> None:
        heard = [Heard() for _ in range(150)]
        await asyncio.gather(*(client.post("/v1/x", b"{}", one) for one in heard))
        assert all(one.data == ["one", "end"] for one in heard)

    _endpoint_with(PreparedReply(events("one", "end")), act=act)


def test_a_proxy_never_sees_what_is_meant_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert _heard(PreparedReply(events("end"))) == ["end"]


def test_no_authorities_are_read_for_an_endpoint_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*args: object, **options: object) -> ssl.SSLContext:
        raise AssertionError("they were read")

    monkeypatch.setattr(ssl, "create_default_context", read)
    assert _heard(PreparedReply(events("end"))) == ["end"]


def _certificate(folder: Path) -> ssl.SSLContext:
    """For 127.0.0.1, signed by itself; the certificate is in `folder`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "one's own authority")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    begun = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - HOUR, now + HOUR)
    signed = begun.add_extension(address, False).add_extension(x509.BasicConstraints(True, None), True)
    (folder / "cert.pem").write_bytes(signed.sign(key, SHA256()).public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def _heard_of(scheme: str, answer: bytes, context: ssl.SSLContext | None = None) -> list[str]:
    """What a client hears of a server that gives one answer to whatever it is asked."""

    async def scenario() -> list[str]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        heard, client = Heard(), _client(f"{scheme}:{server.sockets[0].getsockname()[1]}")
        try:
            async with asyncio.timeout(30), server:
                await client.post("/v1/x", b"{}", heard)
        finally:
            await client.close()
        return heard.data

    return asyncio.run(scenario())


STREAM = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\ndata: end\n\n"


def test_a_certificate_that_is_not_trusted_is_told_with_what_makes_it_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = _certificate(tmp_path)
    with pytest.raises(ProviderError, match="set SSL_CERT_FILE if the authority is your own") as caught:
        _heard_of("https://127.0.0.1", STREAM, context)
    assert (caught.value.name, caught.value.is_retryable) == ("Certificate", False)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    assert _heard_of("https://127.0.0.1", STREAM, context) == ["end"]


def test_a_proxy_that_refuses_is_named_and_worth_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> tuple[str, ProviderError]:
        async with FakeEndpoint(PreparedReply(status=403)) as proxy:
            monkeypatch.delenv("https_proxy", raising=False)
            monkeypatch.setenv("HTTPS_PROXY", proxy.url)
            client = _client("https://vendor.example")
            with pytest.raises(ProviderError) as caught:
                await client.post("/v1/x", b"{}", Heard())
            await client.close()
            return proxy.asked[0].path, caught.value

    asked, error = asyncio.run(scenario())
    assert (asked, error.name, error.is_retryable) == ("vendor.example:443", "ProxyError", True)
    assert "the proxy for https://vendor.example" in str(error)


@pytest.mark.parametrize("data", ["end", "more"], ids=["whole", "without-an-end"])
def test_no_body_stays_in_memory_when_its_reply_has_come(data: str) -> None:
    body = bytes(1000)
    held: list[int] = []

    async def scenario() -> None:
        async with FakeEndpoint(PreparedReply(events(data))) as endpoint:
            client = _client(endpoint.url)
            gc.disable()  # a collection would hide what only a collection frees
            try:
                for _ in range(3):
                    await asyncio.wait_for(client.post("/", body, Heard()), 30)
                    held.append(sys.getrefcount(body))
            finally:
                gc.enable()
                await client.close()

    before = sys.getrefcount(body)
    asyncio.run(scenario())
    assert held == [held[0]] * 3
    assert held[0] <= before + 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (402, b"{}"),
        (429, b'{"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}'),
        (400, b'{"type": "error", "error": {"message": "Your credit balance is too low to access the API."}}'),
    ],
)
def test_a_quota_that_is_used_up_has_a_name_of_its_own_and_is_not_tried_again(status: int, body: bytes) -> None:
    error = status_error(status, {}, body, "https://x.example")
    assert (error.name, error.is_retryable, error.status_code) == ("QuotaExceeded", False, status)
    assert status_error(429, {}, b'{"error": {"message": "slow down"}}', "u").name == "RateLimit"


def test_silence_within_a_reply_is_a_stall_and_before_it_is_not() -> None:
    async def post(reply: PreparedReply, read_seconds: float, stall_seconds: float) -> ProviderError:
        async with FakeEndpoint(reply) as endpoint:
            client = StreamClient(Endpoint(endpoint.url, {}, read_seconds, stall_seconds))
            with pytest.raises(ProviderError) as caught:
                await client.post("/v1/x", b"{}", Heard())
            await client.close()
            return caught.value

    stalled = asyncio.run(post(PreparedReply(events("one"), ending="hang"), 30, 0.05))
    assert (stalled.name, stalled.is_retryable) == ("Stall", True)
    assert "nothing came for 0.05 s" in str(stalled)
    silent = asyncio.run(post(PreparedReply((), ending="hang"), 0.2, 0.05))
    assert silent.name == "Timeout"


def test_a_minute_is_the_most_within_a_reply_unless_its_model_thinks_in_silence() -> None:
    assert EndpointSettings().silences() == (300, 60)
    assert EndpointSettings().silences(thinks_silently=True) == (300, 300)
    assert EndpointSettings(read_timeout=5_000).silences() == (5, 5)
    assert EndpointSettings(stall_timeout=90_000).silences(thinks_silently=True) == (300, 90)
