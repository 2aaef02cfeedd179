"""Network namespaces of a test's own: a hub, and machines that are on its bridge. Nothing else is on that network."""

from __future__ import annotations

import os
import secrets
import subprocess
from contextlib import suppress
from shutil import which

SECONDS = 10.0


def there_are_namespaces() -> bool:
    """Whether this process may make them."""
    if os.getuid() != 0 or which("ip") is None or which("setpriv") is None:
        return False
    name = f"pk{secrets.token_hex(3)}"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", "br0", "type", "bridge")
    except AssertionError:
        return False
    finally:
        with suppress(AssertionError):
            _ip("netns", "del", name)
    return True


class Network:
    """10.77.0.1 is the hub; the machine of that number, from 0, is 10.77.0.10 and so on."""

    address = "10.77.0.1"

    def __init__(self, machines: int) -> None:
        self._name = f"pk{secrets.token_hex(3)}"
        self._made: list[str] = []
        try:
            self._make(self.hub)
            _ip("-n", self.hub, "link", "add", "br0", "type", "bridge")
            _ip("-n", self.hub, "addr", "add", f"{self.address}/24", "dev", "br0")
            _ip("-n", self.hub, "link", "set", "br0", "up")
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

    def within(self, name: str) -> tuple[str, ...]:
        """What starts a program in there."""
        return ("ip", "netns", "exec", name)

    def cut(self, number: int) -> None:
        """Pull the cable of a machine."""
        _ip("-n", self.hub, "link", "set", f"v{number}", "down")

    def join(self, number: int) -> None:
        """Put it in again."""
        _ip("-n", self.hub, "link", "set", f"v{number}", "up")

    def close(self) -> None:
        """Take all of it away."""
        while self._made:
            with suppress(AssertionError):
                _ip("netns", "del", self._made.pop())

    def _make(self, name: str) -> None:
        _ip("netns", "add", name)
        self._made.append(name)
        _ip("-n", name, "link", "set", "lo", "up")

    def _join(self, number: int) -> None:
        name = self.machine(number)
        self._make(name)
        _ip("-n", self.hub, "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("-n", name, "addr", "add", f"10.77.0.{10 + number}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", self.hub, "link", "set", f"v{number}", "master", "br0", "up")


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
