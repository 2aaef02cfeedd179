"""The network of a sandbox: what is listed is reached, and nothing else by any way around the proxy."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import metadata_scene
import pytest
from hosts import Seen, expert, results, wait_for
from hypothesis import given
from hypothesis import strategies as st
from sandbox_programs import PYTHON, Box, host
from terminal import Terminal, reply

from perstack.core.definitions.sandbox import Sandbox, SandboxPolicy, destination_problem, narrow_policy
from perstack.ports.runtime import Surroundings
from perstack.testing.scripted import text, tool, turn
from perstack_bubblewrap.network import PlaceRefused, check_address, check_named, local_ports
from perstack_bubblewrap.plugin import BubblewrapFactory
from perstack_bubblewrap.proxy import Proxy, ProxyPool

pytest.importorskip("proxy", reason="the proxy is an extra: perstack[sandbox]")
resolve_allowed = pytest.importorskip("perstack_bubblewrap.proxy_main").resolve_allowed


@pytest.fixture
def service() -> Iterator[int]:
    """A web server on the loopback of the host."""

    class Hello(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "6")
            self.end_headers()
            self.wfile.write(b"hello\n")

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hello)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(url: str) -> str:
    code = f"import urllib.request as u; print(u.urlopen('{url}', timeout=10).read().decode(), end='')"
    return f'{PYTHON} -c "{code}" 2>&1'


def test_a_port_of_the_host_that_is_listed_is_reached_and_no_other(box: Box, service: int) -> None:
    listed = box.with_policy(network=(f"localhost:{service}",))
    ran = listed.run(f"{fetch(f'http://localhost:{service}/')}; {fetch(f'http://127.0.0.1:{service}/')}")
    assert ran.output == "hello\nhello\n"
    other = box.with_policy(network=("localhost:9999",))
    assert "hello" not in other.run(fetch(f"http://localhost:{service}/")).output
    assert box.run(fetch(f"http://localhost:{service}/"), inside=False).output == "hello\n"


TRICKS = {
    "another port of the host": "CONNECT localhost:{other} HTTP/1.1",
    "the same port by its number": "CONNECT 127.0.0.1:{port} HTTP/1.1",
    "the same port by another number": "CONNECT 0x7f000001:{port} HTTP/1.1",
    "the same port by version 6": "CONNECT [::1]:{port} HTTP/1.1",
    "metadata": "GET http://169.254.169.254/latest/meta-data HTTP/1.1",
    "another domain": "CONNECT example.com:443 HTTP/1.1",
    "a domain with a listed one in it": "CONNECT localhost.evil.example:{port} HTTP/1.1",
    "a user that looks like the host": "GET http://localhost:{port}@169.254.169.254/ HTTP/1.1",
    "a user that looks like the host, in a tunnel": "CONNECT localhost:{port}@169.254.169.254:80 HTTP/1.1",
    "a user of the host": "CONNECT user@localhost:{port} HTTP/1.1",
    "a path that looks like the host": "GET http://169.254.169.254/@localhost:{port}/ HTTP/1.1",
    "a fragment before the host": "GET http://169.254.169.254#@localhost:{port}/ HTTP/1.1",
    "a backslash before the host": "GET http://169.254.169.254\\\\@localhost:{port}/ HTTP/1.1",
    "the same port with a mapped address": "CONNECT [::ffff:127.0.0.1]:{port} HTTP/1.1",
    "a NUL in the name": "CONNECT localhost\\x00.evil.example:{port} HTTP/1.1",
    "an escape in the name": "CONNECT localhost%00:{port} HTTP/1.1",
    "a letter that only looks like one": "CONNECT l\\xefcalhost:{port} HTTP/1.1",
    "no port": "CONNECT localhost HTTP/1.1",
    "port 0": "CONNECT localhost:0 HTTP/1.1",
    "port 65536": "CONNECT localhost:65536 HTTP/1.1",
    "the same port a turn later": "CONNECT localhost:{later} HTTP/1.1",
    "a port below 0": "CONNECT localhost:-1 HTTP/1.1",
    "no name": "CONNECT :{port} HTTP/1.1",
    "no name in an address": "GET http:/// HTTP/1.1",
    "no address": "GET / HTTP/1.1\\r\\nHost: localhost:{port}",
}


@pytest.mark.parametrize("name", TRICKS)
def test_what_is_not_listed_is_refused_by_the_proxy_and_it_is_said(box: Box, service: int, name: str) -> None:
    line = TRICKS[name].format(port=service, other=service + 1, later=service + 65536)
    code = (
        "import socket\n"
        "s = socket.create_connection(('127.0.0.1', 3128), 10)\n"
        f"s.sendall(b'{line}\\r\\n\\r\\n')\n"
        "print(s.makefile('rb').readline().decode())\n"
    )
    ran = box.with_policy(network=(f"localhost:{service}",)).python(code)
    assert ran.output.split()[1:2] in (["403"], ["400"], ["404"]), ran.output
    if "403" in ran.output:
        assert "[sandbox] network" in ran.ending.refused[0]


@pytest.mark.parametrize(
    "code",
    [
        "socket.create_connection(('1.1.1.1', 443), 3)",
        "socket.create_connection(('169.254.169.254', 80), 3)",
        "socket.getaddrinfo('example.com', 443)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53))",
        "socket.create_connection(('127.0.0.1', {port}), 3)",
    ],
)
def test_there_is_no_way_beside_the_proxy(box: Box, service: int, code: str) -> None:
    listed = box.with_policy(network=("example.com",))
    ran = listed.python(f"import socket\n{code.format(port=service)}\nprint('REACHED')")
    assert "REACHED" not in ran.output


def test_a_metadata_service_that_is_there_is_reached_outside_and_not_inside(usable: None, tmp_path: Path) -> None:
    """On a machine of its own, for it needs the address that such services have."""
    work, hosts = tmp_path / "work", tmp_path / "hosts"
    work.mkdir()
    hosts.write_text(f"127.0.0.1 localhost\n{metadata_scene.ADDRESS} {metadata_scene.NAME}\n")
    alone = ["unshare", *([] if os.geteuid() == 0 else ["-r"]), "-n", "-m"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no network can be made here for a machine of its own")
    scene = [sys.executable, metadata_scene.__file__, str(work), str(hosts)]
    ran = subprocess.run([*alone, *scene], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert [said.pop("control by address"), said.pop("control by name")] == ["token\n"] * 2
    assert "token" not in "".join(said.values())
    assert "169.254.169.254:80 is not an address" in said["listed by address"]
    assert "metadata.example:80 is at 169.254.169.254, which is not a public address" in said["listed by name"]


def test_domains_of_a_skill_and_refusals_are_the_models_to_know(usable: None, tmp_path: Path, service: int) -> None:
    line = f"{fetch('http://example.com/')}; {fetch(f'http://localhost:{service}/')}"
    script = {"[[a]]": [turn(tool("exec", {"command": "sh", "args": ["-c", line]})), text("ok")]}
    seen, sandbox = Seen(), Sandbox(network=(f"localhost:{service}",))
    wait_for(host(tmp_path, script, expert("a"), sandbox=sandbox).run("a", "q", on_event=seen), 60)
    result = json.loads(results(seen, "exec")[0])
    assert result["output"].endswith("hello\n")
    assert "example.com:80 is not an address" in result["refused"][0]
    assert any("example.com:80" in event.message for event in seen.of("toolProgress"))


def test_a_person_at_a_terminal_sees_what_is_refused_once(usable: None, terminal: Terminal, service: int) -> None:
    line = f"{fetch('http://example.com/')}; {fetch('http://example.com/x')}; {fetch(f'http://localhost:{service}/')}"
    toml = f'[sandbox]\nnetwork = ["localhost:{service}"]\n[experts.a]\ninstruction = "x"\nruntime = "bubblewrap"\n'
    terminal.project(toml, a=[reply("", ("exec", {"command": "sh", "args": ["-c", line]})), reply("ok")])
    for ran in (
        terminal.call("run", "a", "q", "--provider", "scripted"),
        terminal.call("sandbox", "a", "--", "sh", "-c", line),
    ):
        assert ran.code == 0, ran.err
        shown = [line for line in ran.err.splitlines() if "example.com" in line]
        assert len(shown) == 1, ran.err
        assert shown[0].startswith("perstack: refused by the sandbox: example.com:80 is not an address")


def test_what_is_refused_to_one_program_does_not_hide_what_is_refused_to_the_next() -> None:
    shown: list[str] = []
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    proxy = Proxy(Path("/nowhere"), (), shown.append, reading)
    try:
        for number in range(300):
            os.write(writing, json.dumps(f"{number}.example:80").encode() + b"\n")
            proxy.read_refusals()
        before = proxy.refusal_count
        os.write(writing, b'"other.example:80"\n"299.example:80"\n{}\nnot json\n')
        assert proxy.refusals_since(before) == ("other.example:80", "299.example:80")
        assert len(proxy.refusals_since(0)) == 100
    finally:
        os.close(reading)
        os.close(writing)
    assert len(shown) == 101
    assert "only in the results" in shown[-1]


@pytest.mark.parametrize(
    ("host_name", "port", "allowed", "reached"),
    [
        ("a.example", 443, ("a.example",), True),
        ("A.Example.", 80, ("a.example",), True),
        ("a.example", 8080, ("a.example",), False),
        ("a.example", 8080, ("a.example:8080",), True),
        ("a.example", 443, ("a.example:8080",), False),
        ("b.a.example", 443, ("*.a.example",), True),
        ("a.example", 443, ("*.a.example",), False),
        ("evila.example", 443, ("*.a.example",), False),
        ("localhost", 80, ("localhost:81",), False),
    ],
)
def test_what_an_entry_names(host_name: str, port: int, allowed: tuple[str, ...], reached: bool) -> None:
    if reached:
        check_named(host_name, port, allowed)
    else:
        with pytest.raises(PlaceRefused):
            check_named(host_name, port, allowed)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "::1",
        "fe80::1%eth0",
        "fd00::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::7f00:1",
        "2002:7f00:1::",
        "::7f00:1",
        "::ffff:0:7f00:1",
        "fec0::1",
        "3fff::1",
        "5f00::1",
        "168.63.129.16",
        "192.0.0.192",
        "100.100.100.200",
        "fd00:ec2::254",
    ],
)
def test_a_listed_name_that_leads_to_no_public_address_is_refused(address: str) -> None:
    with pytest.raises(PlaceRefused, match="not a public address"):
        check_address("a.example", 443, address, ("a.example",))


def test_a_public_address_is_not_and_neither_is_a_port_of_the_host_that_is_listed() -> None:
    check_address("a.example", 443, "93.184.215.14", ("a.example",))
    check_address("localhost", 8080, "127.0.0.1", ("localhost:8080",))
    assert local_ports(("a.example", "localhost:1", "localhost:2")) == (1, 2)


@pytest.mark.parametrize("address", ["10.0.0.1", "169.254.169.254", "93.184.215.14", "fe80::1"])
def test_what_calls_itself_this_machine_and_is_another_is_refused(address: str) -> None:
    for name in ("localhost", "localhost.", "LOCALHOST"):
        with pytest.raises(PlaceRefused, match="which is not this machine"):
            check_address(name, 8080, address, ("LocalHost:8080",))
        check_address(name, 8080, "127.0.0.1", ("LocalHost:8080",))
        check_address(name, 8080, "::1", ("localhost:8080",))


def test_a_service_that_listens_by_one_version_of_ip_alone_is_reached(
    service: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [(0, 0, 0, "", (address, service)) for address in ("::1", "127.0.0.1")]
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *args, **more: both if host == "localhost" else resolve(host, *args, **more)
    )
    assert resolve_allowed("localhost", service, (f"localhost:{service}",)) == "127.0.0.1"


def test_a_name_of_any_length_is_refused_in_few_words(usable: None, tmp_path: Path) -> None:
    with pytest.raises(PlaceRefused) as refused:
        check_named("a" * 100_000, 443, ("a.example",))
    assert len(str(refused.value)) < 400


def test_a_list_that_is_longer_than_a_command_line_is_kept(box: Box, service: int) -> None:
    many = (*(f"{'a' * 50}{number}.example" for number in range(50_000)), f"localhost:{service}")
    ran = box.with_policy(network=many).run(f"{fetch(f'http://localhost:{service}/')}; {fetch('http://b.example/')}")
    assert ran.output.startswith("hello\n")
    assert "b.example:80 is not an address" in ran.ending.refused[0]


def test_a_port_of_the_host_may_be_that_of_the_proxy_inside(box: Box, service: int) -> None:
    listed = box.with_policy(network=(f"localhost:{service}", "localhost:3128", "localhost:3129"))
    assert listed.run(fetch(f"http://localhost:{service}/")).output == "hello\n"


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (("localhost:80",), "localhost:80 cannot be listened on inside"),
        (tuple(f"localhost:{port}" for port in range(2000, 2065)), "65 ports of this machine are listed"),
    ],
)
def test_ports_that_cannot_be_given_are_an_error_before_anything_runs(
    usable: None, network: tuple[str, ...], reason: str
) -> None:
    policy = SandboxPolicy(runtime="bubblewrap", network=network)
    found = wait_for(BubblewrapFactory().check(policy, Surroundings(Path("/nowhere"), "job", {})))
    assert reason in found[0]


def test_a_delegate_reaches_at_most_what_its_caller_does() -> None:
    own = SandboxPolicy(runtime="bubblewrap", network=("b.a.example", "c.example", "a.example:8080", "b.a.example:443"))
    policy = narrow_policy(own, SandboxPolicy(runtime="bubblewrap", network=("*.a.example", "localhost:1")))
    assert policy is not None
    assert policy.network == ("b.a.example", "b.a.example:443")


PLACES = st.builds(
    lambda star, name, port: f"{star}{name}{port}",
    st.sampled_from(["", "*."]),
    st.sampled_from(["a.example", "b.a.example", "c.b.a.example", "A.Example", "xa.example", "example"]),
    st.sampled_from(["", ":80", ":443", ":8080"]),
)


@given(own=PLACES, caller=st.lists(PLACES, max_size=3))
def test_what_a_delegate_reaches_its_caller_reaches_too(own: str, caller: list[str]) -> None:
    policy = narrow_policy(
        SandboxPolicy(runtime="bubblewrap", network=(own,)), SandboxPolicy(runtime="bubblewrap", network=tuple(caller))
    )
    for name in ("a.example", "b.a.example", "c.b.a.example", "d.c.b.a.example", "xa.example", "example"):
        for port in (80, 443, 8080):
            mine, theirs = _names((own,), name, port), _names(tuple(caller), name, port)
            assert not _names(policy.network if policy else (), name, port) or (mine and theirs)
    if own in caller:
        assert policy is not None
        assert policy.network == (own,)


def _names(allowed: tuple[str, ...], name: str, port: int) -> bool:
    try:
        check_named(name, port, allowed)
    except PlaceRefused:
        return False
    return True


def test_a_long_list_is_narrowed_at_once() -> None:
    many = SandboxPolicy(runtime="bubblewrap", network=tuple(f"{number}.example" for number in range(50_000)))
    assert narrow_policy(many, many) == many


NO_PLACES = [
    "localhost", "LOCALHOST", "a.example:0", "a.example:x", "http://a.example", "*", "", "xn--a.b", "a.example:65536",
    "a.example:080", "a.example:\u0663", "a.example:443:80", "b\u00fccher.example", "\u212a.example", "a.example.",
    "*.a.example.", "localhost.:80", "user@a.example", "a.example/x", " a.example", "127.0.0.1:8080", "10.0.0.1",
    "169.254.169.254", "127.1:80", "0x7f000001:80", "2130706433", "1.2.3.4.5", "[::1]:80", "::1", "a..example",
]  # fmt: skip


@pytest.mark.parametrize("place", NO_PLACES)
def test_what_is_no_place(place: str) -> None:
    assert destination_problem(place)


@pytest.mark.parametrize("place", ["A.Example:443", "93.184.215.14:443", "LocalHost:8080", "*.a.example", "a1.b2"])
def test_what_is_a_place(place: str) -> None:
    assert destination_problem(place) is None


def test_an_endless_request_is_answered_and_the_proxy_stays(box: Box, service: int) -> None:
    code = (
        "import socket\n"
        "s = socket.create_connection(('127.0.0.1', 3128), 10)\n"
        f"s.sendall(b'GET http://localhost:{service}/ HTTP/1.1\\r\\nX: ')\n"
        "try:\n"
        "    for _ in range(2000): s.sendall(b'a' * 65536)\n"
        "except OSError: pass\n"
        "print('ended')\n"
    )
    listed = box.with_policy(network=(f"localhost:{service}",))
    again = f"print(__import__('urllib.request').request.urlopen('http://localhost:{service}/').read())"
    assert listed.python(code + again).output == "ended\nb'hello\\n'\n"


def test_what_nobody_takes_does_not_fill_the_memory_of_the_host(box: Box, service: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        code = (
            "import socket, urllib.request\n"
            f"s = socket.create_connection(('127.0.0.1', {port}), 10)\n"
            "sent, piece = 0, b'a' * (1 << 20)\n"
            "try:\n"
            "    while sent < 1200: s.sendall(piece); sent += 1\n"
            "except OSError: pass\n"
            "print(sent < 1200)\n"
            f"print(urllib.request.urlopen('http://localhost:{service}/').read())"
        )
        listed = box.with_policy(network=(f"localhost:{service}", f"localhost:{port}"))
        assert listed.python(code).output == "True\nb'hello\\n'\n"


def test_a_proxy_that_has_ended_is_started_again(usable: None) -> None:
    async def work() -> list[bool]:
        proxies = ProxyPool(lambda line: None)
        try:
            first = await proxies.proxy_for(("a.example",))
            same = await proxies.proxy_for(("a.example",))
            assert first.process is not None
            first.process.kill()
            await first.process.wait()
            second = await proxies.proxy_for(("a.example",))
            return [same is first, second is first, first.is_up, second.is_up, second.socket.exists()]
        finally:
            await proxies.close()

    assert wait_for(work()) == [True, False, False, True, True]
