"""Network namespaces for a test: a hub, and machines on its bridge, isolated from every other network."""

from __future__ import annotations

import os
import secrets
import subprocess
from contextlib import suppress
from shutil import which

SECONDS = 10.0


def there_are_namespaces() -> bool:
    """Return whether this process may create network namespaces."""
    if os.getuid() != 0 or which("ip") is None or which("setpriv") is None:
        return False
    name = f"pk{secrets.token_hex(3)}"
    try:
        _run_ip("netns", "add", name)
        _run_ip("-n", name, "link", "add", "br0", "type", "bridge")
    except AssertionError:
        return False
    finally:
        with suppress(AssertionError):
            _run_ip("netns", "del", name)
    return True


class Network:
    """The network. The hub is 10.77.0.1; machine n, from 0, is 10.77.0.(10 + n)."""

    address = "10.77.0.1"

    def __init__(self, machines: int) -> None:
        self._name = f"pk{secrets.token_hex(3)}"
        self._made: list[str] = []
        try:
            self._add_namespace(self.hub)
            _run_ip("-n", self.hub, "link", "add", "br0", "type", "bridge")
            _run_ip("-n", self.hub, "addr", "add", f"{self.address}/24", "dev", "br0")
            _run_ip("-n", self.hub, "link", "set", "br0", "up")
            for number in range(machines):
                self._join(number)
        except BaseException:
            self.close()
            raise

    @property
    def hub(self) -> str:
        return f"{self._name}hub"

    def machine(self, number: int) -> str:
        return f"{self._name}m{number}"

    def command_prefix(self, name: str) -> tuple[str, ...]:
        """Return the command prefix that starts a program in a namespace."""
        return ("ip", "netns", "exec", name)

    def cut(self, number: int) -> None:
        """Disconnect a machine."""
        _run_ip("-n", self.hub, "link", "set", f"v{number}", "down")

    def join(self, number: int) -> None:
        """Reconnect a machine."""
        _run_ip("-n", self.hub, "link", "set", f"v{number}", "up")

    def close(self) -> None:
        """Remove all namespaces."""
        while self._made:
            with suppress(AssertionError):
                _run_ip("netns", "del", self._made.pop())

    def _add_namespace(self, name: str) -> None:
        _run_ip("netns", "add", name)
        self._made.append(name)
        _run_ip("-n", name, "link", "set", "lo", "up")

    def _join(self, number: int) -> None:
        name = self.machine(number)
        self._add_namespace(name)
        _run_ip("-n", self.hub, "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        _run_ip("-n", name, "addr", "add", f"10.77.0.{10 + number}/24", "dev", "eth0")
        _run_ip("-n", name, "link", "set", "eth0", "up")
        _run_ip("-n", self.hub, "link", "set", f"v{number}", "master", "br0", "up")


def _run_ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
