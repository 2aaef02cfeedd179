"""Private names of libraries are used in three modules only, and are what these take them for."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import httpx2
import pytest
from mcp.server.session import ServerSession

ROOT = Path(__file__).parents[3]
FILES = [path for top in ("host", "plugins") for path in (ROOT / top).rglob("*.py")]

KEYBOARD = "plugins/perstack_tui/terminal.py"
ALLOWED = {"plugins/perstack_mcp/sdk.py", "plugins/perstack_server/mcp/notifications.py", KEYBOARD}

SDKS = {"mcp", "httpx2", "httpcore2", "starlette", "uvicorn"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_ours(module: str) -> bool:
    return module.partition("_")[0].partition(".")[0] == "perstack"


def named(path: Path) -> Iterator[str]:
    """Private modules and names that are imported from others, and asked for by `getattr`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not is_ours(node.module):
            yield from filter(is_private, (*node.module.split("."), *(one.name for one in node.names)))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
            yield from (
                one.value
                for one in node.args
                if isinstance(one, ast.Constant) and isinstance(one.value, str) and is_private(one.value)
            )


def classes() -> Iterator[type]:
    for path in FILES:
        where = path.relative_to(ROOT).as_posix()
        if not where.startswith(("plugins/perstack_mcp/", "plugins/perstack_server/mcp/")):
            continue
        module = import_module(re.sub(r"^(plugins|host)/|(/__init__)?\.py$", "", where).replace("/", "."))
        yield from (one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__)


def private_names(one: type) -> set[str]:
    """What it defines, and what its methods use."""
    found = set(vars(one))
    for value in vars(one).values():
        function = inspect.unwrap(value.fget if isinstance(value, property) else value)
        found.update(getattr(getattr(function, "__code__", None), "co_names", ()))
    return {name for name in found if is_private(name)} - {"_abc_impl"}


def test_private_names_are_imported_and_asked_for_in_one_module_a_side() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in FILES if list(named(path))}
    assert found == ALLOWED
    # the library that draws reads keys in a class that it has no public name for
    assert [*named(ROOT / KEYBOARD)] == ["_xterm_parser"]


def test_a_class_that_extends_one_of_an_sdk_touches_none_of_its_private_names() -> None:
    touched = {
        (one.__qualname__, name)
        for one in classes()
        if one.__module__ != "perstack_mcp.sdk"
        for base in one.__mro__
        if base.__module__.partition(".")[0] in SDKS
        for name in private_names(one) & private_names(base)
    }
    assert touched == set()


def test_the_sdks_transport_sends_through_the_pool_that_is_replaced() -> None:
    assert "self._pool.handle_async_request(" in inspect.getsource(httpx2.AsyncHTTPTransport.handle_async_request)


def test_a_servers_session_knows_its_connection_and_that_has_an_exit_stack() -> None:
    connection = import_module("mcp.server.connection").Connection
    assert "self._connection = connection" in inspect.getsource(ServerSession.__init__)
    assert "self.exit_stack" in inspect.getsource(connection)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("mcp.client._transport", "ReadStream"),
        ("mcp.client._transport", "TransportStreams"),
        ("mcp.client._transport", "WriteStream"),
        ("httpx2._client", "UseClientDefault"),
        ("httpx2._types", "AuthTypes"),
    ],
)
def test_each_type_that_has_no_public_name_is_there(module: str, name: str) -> None:
    assert hasattr(import_module(module), name)
