"""`perstack studio` in its own process, and a browser without JavaScript: an HTTP client that sends its forms."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from urllib.parse import urlsplit

import httpx
import warm
from terminal import SECONDS, Terminal


@dataclass
class StudioServer:
    """A running studio."""

    url: str  # without a slash at its end
    link: str  # the link of the terminal, not used yet
    process: subprocess.Popen[str]
    verify: ssl.SSLContext | bool = True  # whom browsers trust, for a studio with TLS of its own
    cookies: dict[str, str] = field(default_factory=dict)  # of the browsers that tests drive: a link works once
    _visitors: list[Visitor] = field(default_factory=list)

    def visitor(self) -> Visitor:
        """Return a browser that the link has let in."""
        visitor = Visitor(self.url, self.verify)
        self._visitors.append(visitor)
        response = visitor.client.get(self.link)
        assert response.status_code == 303, response.text
        return visitor

    def close(self) -> None:
        """Close the connections of all visitors, which a server would wait for."""
        for visitor in self._visitors:
            visitor.client.close()


class Visitor:
    """A browser without JavaScript."""

    def __init__(self, url: str, verify: ssl.SSLContext | bool = True) -> None:
        self.client = httpx.Client(base_url=url, timeout=SECONDS, verify=verify)

    def get(self, path: str, status: int = 200) -> str:
        """Return a page."""
        response = self.client.get(path)
        assert response.status_code == status, response.text
        return response.text

    def send(self, page: str, action: str, status: int = 303, **fields: str) -> httpx.Response:
        """Send a form of a page with what a person filled in."""
        form = re.search(rf'<form method="post" action="{re.escape(action)}".*?</form>', page, re.DOTALL)
        assert form is not None, page
        hidden = dict(re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', form[0]))
        data = {**{name: unescape(value) for name, value in hidden.items()}, **fields}
        response = self.client.post(action, data=data, headers={"Origin": str(self.client.base_url).rstrip("/")})
        assert response.status_code == status, response.text
        return response

    def follow(self, response: httpx.Response) -> str:
        """Return the page that the answer to a form leads to."""
        return self.get(response.headers["Location"])


@contextmanager
def serving_studio(
    terminal: Terminal,
    *args: str,
    address: str = "127.0.0.1:0",
    is_killed: bool = False,
    verify: ssl.SSLContext | None = None,
) -> Iterator[StudioServer]:
    """Start a studio. It is stopped by a signal, and must end cleanly, unless the test kills it."""
    # the index of a search is no file of the developer's own cache
    terminal.env.setdefault("XDG_CACHE_HOME", os.environ["XDG_STATE_HOME"])
    process = warm.perstack(
        *("studio", "--provider", "scripted", "--http", address, *args),
        cwd=terminal.workspace,
        env=terminal.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    server: StudioServer | None = None
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        match = next(filter(None, (re.search(r"(http\S+)", line) for line in lines)), None)
        assert match, "it ended before it served"
        parts = urlsplit(match[1])
        scheme = "http" if verify is None else "https"
        server = StudioServer(f"{scheme}://{parts.netloc}", match[1], process, True if verify is None else verify)
        yield server
        server.close()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=SECONDS)
        assert is_killed or (process.returncode, out, err) == (0, "", "")
    finally:
        if server is not None:
            server.close()
        process.kill()
        process.communicate()
