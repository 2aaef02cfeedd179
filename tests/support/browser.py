"""A real browser that tests of the studio drive: the machine's chromium, through playwright."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from studio_server import StudioServer
from terminal import SECONDS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page, Request, Response

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""
IS_THERE = bool(PROGRAM) and find_spec("playwright") is not None and find_spec("axe_playwright_python") is not None

_REFUSED = re.compile(r"status of (\d+)")
_OF_ROUTE = re.compile(r"(?<=/)(jobs|runs|experts|questions|tasks|events|steps|blobs)/[^/?]+")
_OF_QUERY = re.compile(r"=[^&]*")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start the browser. Its processes end with the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=PROGRAM, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Person:
    """A person with a browser of their own, and the problems that occurred in their pages."""

    server: StudioServer
    context: BrowserContext
    problems: list[str] = field(default_factory=list)
    expected: set[int] = field(default_factory=set)  # statuses of responses that are no problem
    is_server_gone: bool = False  # True while requests may fail

    def tab(self, path: str = "") -> Page:
        """Open a tab, at a page of the studio if a path is given."""
        page = self.context.new_page()
        page.set_default_timeout(SECONDS * 130)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))
        page.on("console", lambda message: self._on_console(message.type, message.text, message.location["url"]))
        page.on("response", self._on_response)
        page.on("requestfailed", self._on_failure)
        if path:
            self.go(page, path)
        return page

    def go(self, page: Page, path: str) -> Page:
        """Load a page of the studio."""
        page.goto(self.server.url + path, wait_until="load")
        return page

    def _on_console(self, kind: str, text: str, url: str) -> None:
        refused = _REFUSED.search(text)
        is_expected = (refused is not None and int(refused[1]) in self.expected) or self.is_server_gone
        is_expected |= url.endswith("/favicon.ico")  # browsers request the icon of a plain text
        if kind in ("error", "warning") and not is_expected:
            self.problems.append(f"console: {text}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.expected:
            self.problems.append(f"{response.status}: {response.url}")

    def _on_failure(self, request: Request) -> None:
        if not request.url.startswith(self.server.url):
            self.problems.append(f"request to another host: {request.url}")
        # A stream ends when its page is left, which is no problem.
        elif "ERR_ABORTED" not in (request.failure or "") and not self.is_server_gone:
            self.problems.append(f"{request.failure}: {request.url}")


@contextmanager
def person(browser: Browser, server: StudioServer, **options: Any) -> Iterator[Person]:
    """Open a browser that the studio's link has let in. Fails at the end if its pages had problems."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, "timezone_id": "UTC", **options})
    try:
        entering = httpx_cookies(server)
        context.add_cookies([{"name": name, "value": value, "url": server.url} for name, value in entering.items()])
        visitor = Person(server, context)
        yield visitor
        assert visitor.problems == [], visitor.problems
    finally:
        context.close()


def httpx_cookies(server: StudioServer) -> dict[str, str]:
    """Return the cookie of a browser that the server's link has let in; a link works once."""
    if not server.cookies:
        server.cookies.update(server.visitor().client.cookies)
    return server.cookies


def links(page: Page) -> list[str]:
    """Return the addresses in the studio that a page's links lead to."""
    addresses: Sequence[str] = page.eval_on_selector_all("a[href]", "all => all.map((one) => one.href)")
    parts = [urlsplit(address) for address in addresses]
    own = urlsplit(page.url).netloc
    return [one.path + (f"?{one.query}" if one.query else "") for one in parts if one.netloc == own]


def kind_of(path: str) -> str:
    """Return the pattern that the addresses of one route share."""
    return _OF_QUERY.sub("=*", _OF_ROUTE.sub(r"\1/*", path))


def crawl(visitor: Person, *starts: str) -> Iterator[tuple[str, Page]]:
    """Load one page of each kind that links lead to, in one tab; yield its path and the tab."""
    page, kinds = visitor.tab(), set[str]()
    waiting = [*starts]
    while waiting:
        path = waiting.pop(0)
        if kind_of(path) in kinds:
            continue
        kinds.add(kind_of(path))
        if is_download(path):
            continue
        visitor.go(page, path)
        if page.evaluate("document.contentType") == "text/html":
            yield path, page
        waiting += links(page)


def is_download(path: str) -> bool:
    """Return whether a path leads to a file instead of a page."""
    return "/blobs/" in path or path.startswith("/static/") or "/export" in path


def entries(page: Page) -> dict[str, str]:
    """Return the entries of a conversation as they are in the page, without what a reader has unfolded."""
    found: dict[str, str] = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll(".entry")].map((one) => [one.id, one.outerHTML]))"""
    )
    return found


def picture(page: Page, to: Path) -> None:
    """Save a picture of the window."""
    to.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=to, animations="disabled")


def focused(page: Page) -> Locator:
    """Return the element that has the focus."""
    return page.locator(":focus")
