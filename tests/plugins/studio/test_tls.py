"""`perstack studio` with TLS of its own: names, cookies, handshakes that fail or hang, and wrong certificates."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from studio_server import serving_studio
from terminal import SECONDS, TEAM, Terminal

from perstack.doors.shared.http_connections import MAX_UNAUTHENTICATED, REQUEST_TIME_S

CA = trustme.CA()
NAMES = ("localhost", "127.0.0.1", "Studio.example.org", "*.example.org")


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    CA.configure_trust(context)
    return context


def write_pair(folder: Path, *names: str, valid_until: datetime | None = None) -> dict[str, str]:
    """Write a certificate and its key, and return their files."""
    made = CA.issue_cert(*(names or NAMES), not_after=valid_until)
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    key.touch(0o600)
    key.write_bytes(made.private_key_pem.bytes())
    return {"cert": str(cert), "key": str(key)}


def tls_options(pair: dict[str, str]) -> tuple[str, ...]:
    return "--tls-cert", pair["cert"], "--tls-key", pair["key"]


@pytest.fixture
def options(terminal: Terminal, tmp_path: Path) -> tuple[str, ...]:
    terminal.project(TEAM)
    return tls_options(write_pair(tmp_path))


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_a_browser_on_another_address_is_let_in_by_the_link(terminal: Terminal, options: tuple[str, ...]) -> None:
    with serving_studio(terminal, *options, address="0.0.0.0:0", verify=trusting()) as server:
        assert server.link.startswith(f"https://localhost:{port_of(server.url)}/enter?key=")
        response = httpx.get(server.link, verify=trusting())
        cookie = response.headers["set-cookie"]

        assert response.status_code == 303
        assert {"Secure", "HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
        page = httpx.get(server.url, headers={"Cookie": cookie.partition(";")[0]}, verify=trusting())
        assert "Nothing waits for a person" in page.text
        assert "strict-transport-security" not in page.headers
        assert httpx.get(server.link, verify=trusting()).status_code == 403, "the link was used"
        assert httpx.get(server.url, verify=trusting()).status_code == 401


def test_another_link_has_the_name_of_the_certificate(terminal: Terminal, options: tuple[str, ...]) -> None:
    with serving_studio(terminal, *options, verify=trusting()) as server:
        address = f"127.0.0.1:{port_of(server.url)}"

        printed = terminal.run("studio", "--link", "--http", address, *options).lines[0]

        assert printed.startswith("https://localhost:")
        assert httpx.get(printed, verify=trusting()).status_code == 303


def test_only_the_names_of_the_certificate_are_the_studios(terminal: Terminal, options: tuple[str, ...]) -> None:
    with serving_studio(terminal, *options, verify=trusting()) as server:
        client = server.visitor().client

        for host in ("localhost:1", "127.0.0.1", "studio.example.org", "STUDIO.example.org:443"):
            assert client.get("/", headers={"Host": host}).status_code == 200
        for host in ("[::1]", "evil.example", "a.example.org", "*.example.org", "studio.example.org.evil.example"):
            assert client.get("/", headers={"Host": host}).status_code == 421


def test_loopback_is_no_name_of_a_studio_whose_certificate_has_another(terminal: Terminal, tmp_path: Path) -> None:
    options = tls_options(write_pair(tmp_path, "127.0.0.1"))
    with serving_studio(terminal.project(TEAM), *options, verify=trusting()) as server:
        client = server.visitor().client

        assert server.link.startswith("https://127.0.0.1:")
        assert client.get("/", headers={"Host": "localhost"}).status_code == 421


def test_a_page_that_came_without_tls_can_send_no_form(terminal: Terminal, options: tuple[str, ...]) -> None:
    with serving_studio(terminal, *options, verify=trusting()) as server:
        client = server.visitor().client
        data = {"expert": "lead", "query": "hello"}

        plain = client.post("/jobs", data=data, headers={"Origin": server.url.replace("https://", "http://")})
        own = client.post("/jobs", data=data, headers={"Origin": server.url})

        assert "comes from another page" in plain.text
        assert (plain.status_code, own.status_code) == (403, 400)  # the other one only lacks the token


def test_requests_without_tls_get_no_answer(terminal: Terminal, options: tuple[str, ...]) -> None:
    with serving_studio(terminal, *options, verify=trusting()) as server:
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url.replace("https://", "http://"))

        assert httpx.get(server.url, verify=trusting()).status_code == 401, "it still serves"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")
def test_tls_before_1_2_is_refused(terminal: Terminal, options: tuple[str, ...]) -> None:
    old = trusting()
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    new = trusting()
    new.maximum_version = ssl.TLSVersion.TLSv1_2
    with serving_studio(terminal, *options, verify=trusting()) as server:
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url, verify=old)

        assert httpx.get(server.url, verify=new).status_code == 401


def test_handshakes_that_hang_hold_no_other_and_end(terminal: Terminal, options: tuple[str, ...]) -> None:
    with serving_studio(terminal, *options, verify=trusting()) as server, ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port_of(server.url)), timeout=SECONDS))
            for _ in range(MAX_UNAUTHENTICATED + 1)
        ]
        silent[-1].sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a handshake

        assert "Nothing waits for a person" in server.visitor().get("/")
        assert silent[0].recv(1) == b"", "the oldest made room"
        silent[-1].settimeout(REQUEST_TIME_S + SECONDS)
        assert silent[-1].recv(1) == b"", "its time is over"


def test_a_studio_stops_although_a_handshake_hangs(terminal: Terminal, options: tuple[str, ...]) -> None:
    with ExitStack() as stack:
        with serving_studio(terminal, *options, verify=trusting()) as server:
            stack.enter_context(socket.create_connection(("127.0.0.1", port_of(server.url))))
            assert httpx.get(server.url, verify=trusting()).status_code == 401
        assert server.process.returncode == 0


def _encrypt_key(pair: dict[str, str]) -> None:
    path = Path(pair["key"])
    key = load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")))


def _write_other_key(pair: dict[str, str]) -> None:
    Path(pair["key"]).write_bytes(CA.issue_cert("localhost").private_key_pem.bytes())


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda pair: Path(pair["cert"]).unlink(), "--tls-cert {cert}: No such file or directory"),
        (lambda pair: Path(pair["key"]).unlink(), "--tls-key {key}: No such file or directory"),
        (lambda pair: pair.update(cert=str(Path(pair["cert"]).parent)), "--tls-cert {cert}: Is a directory"),
        (lambda pair: Path(pair["cert"]).write_text("no"), "--tls-cert {cert}: not a certificate in PEM format"),
        (lambda pair: Path(pair["key"]).write_text("no"), "--tls-key {key}: not a private key in PEM format"),
        (lambda pair: pair.update(key=pair["cert"]), "--tls-key {key}: not a private key in PEM format"),
        (_encrypt_key, "--tls-key {key}: the key has a password: write it to a file without one"),
        (_write_other_key, "--tls-key {key}: not the key of {cert}: name the one that it was made with"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_its_option(
    terminal: Terminal, tmp_path: Path, spoil: Callable[[dict[str, str]], object], words: str
) -> None:
    pair = write_pair(tmp_path)
    spoil(pair)
    Path(pair["key"]).exists() and Path(pair["key"]).chmod(0o600)

    result = terminal.project(TEAM).run("studio", "--http", "127.0.0.1:0", *tls_options(pair))

    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert words.format(**pair) in result.err


def test_an_expired_certificate_is_refused(terminal: Terminal, tmp_path: Path) -> None:
    pair = write_pair(tmp_path, valid_until=datetime.now(UTC) - timedelta(days=1))

    result = terminal.project(TEAM).run("studio", *tls_options(pair))

    assert (result.code, result.err.count("\n")) == (2, 1)
    assert f"--tls-cert {pair['cert']}: expired on " in result.err


def test_a_certificate_for_any_name_of_a_domain_names_no_studio(terminal: Terminal, tmp_path: Path) -> None:
    result = terminal.project(TEAM).run("studio", *tls_options(write_pair(tmp_path, "*.example.org")))

    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "its subjectAltName has no host name or address" in result.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--tls-cert", "a.pem"), "--tls-cert: TLS needs a certificate and its key: write --tls-key FILE too"),
        (("--tls-key", "a.pem"), "--tls-key: TLS needs a certificate and its key: write --tls-cert FILE too"),
        (
            ("--tls-key", "a.pem", "--behind-proxy", "a.example.org"),
            "--behind-proxy: with --tls-cert there is no proxy",
        ),
    ],
)
def test_half_a_pair_or_two_ways_to_tls_are_refused(terminal: Terminal, args: tuple[str, ...], words: str) -> None:
    result = terminal.project(TEAM).run("studio", "--http", "0.0.0.0:0", *args)

    assert (result.code, result.err.count("\n")) == (2, 1)
    assert words in result.err


def test_a_key_that_others_can_read_is_a_warning(terminal: Terminal, tmp_path: Path) -> None:
    pair = write_pair(tmp_path)
    Path(pair["key"]).chmod(0o644)

    result = terminal.project(TEAM).run("studio", "--link", "--http", "127.0.0.1:1", *tls_options(pair))

    assert f"--tls-key {pair['key']}: other users of this machine can read the key" in result.err
    assert "no studio runs" in result.err, "it goes on"
