"""Clients that list their open folders: each is served what is defined there, and nothing of other clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from editor import ERAS, Editor, attached, structure, texts
from hosts import wait_for
from http_server import authorized_client, serving
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    ErrorData,
    ListRootsResult,
    ResourceUpdatedNotification,
    Root,
    ToolListChangedNotification,
)
from terminal import SECONDS, Terminal, reply

pytestmark = pytest.mark.filterwarnings("ignore:The roots capability is deprecated", "ignore:resources/subscribe")


class Folders:
    """The folders that an editor has open, and the messages it receives from the server."""

    def __init__(self, *folders: Path) -> None:
        self.folders = folders
        self.asked = 0
        self.updated: list[str] = []
        self.changed = asyncio.Event()

    async def list_roots(self, context: object) -> ListRootsResult:
        self.asked += 1
        return ListRootsResult(roots=[Root(uri=folder.as_uri()) for folder in self.folders])  # type: ignore[arg-type]

    async def hear(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.changed.set()
        elif isinstance(message, ResourceUpdatedNotification):
            self.updated.append(message.params.uri)

    @property
    def callbacks(self) -> dict[str, Callable[..., object]]:
        return {"list_roots_callback": self.list_roots, "message_handler": self.hear}


@pytest.fixture
def make(tmp_path: Path, terminal: Terminal) -> Callable[[str], Path]:
    """Return a function that creates a project with one Expert `by_NAME`, which writes a todo and replies its name."""
    turns = [reply("", ("todo", {"newTodos": ["a"]})), reply("", ("todo", {"completedTodos": [0]}))]
    names = ("home", "red", "blue")
    terminal.script(**{f"by_{name}": [*turns, reply(f"I am {name}.")] for name in names})

    def make(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "perstack.toml").write_text(definition(f"by_{name}"))
        return folder

    return make


def definition(*names: str) -> str:
    return "".join(f'[experts.{name}]\ndescription = "{name}"\ninstruction = "You are {name}."\n' for name in names)


def started_in(terminal: Terminal, folder: Path) -> Terminal:
    inner = Terminal(folder)
    inner.env = terminal.env
    return inner


async def experts(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools()).tools if tool.name.startswith("by_")]


async def wait_for_change(changed: asyncio.Event) -> None:
    async with asyncio.timeout(SECONDS):
        await changed.wait()
    changed.clear()


def test_the_first_open_folder_with_a_definition_is_the_workspace(
    terminal: Terminal, make: Callable[[str], Path], tmp_path: Path
) -> None:
    red, home = make("red"), make("home")
    (tmp_path / "plain folder").mkdir()
    (tmp_path / "perstack.toml").unlink()
    open_folders = Folders(tmp_path / "plain folder", tmp_path / "gone", red)

    async def work() -> str:
        async with attached(started_in(terminal, home), **open_folders.callbacks) as editor:
            assert await experts(editor.client) == ["by_red"]
            result = await editor.call("by_red", query="who?")
            assert texts(result)[0] == "I am red."
            assert open_folders.asked == 1
            return structure(result)["id"]

    job_id = wait_for(work(), SECONDS)
    assert [path.name for path in (red / "perstack" / "jobs").iterdir()] == [job_id]
    assert not (home / "perstack").exists()


def test_of_a_folder_in_a_project_the_state_is_the_projects_and_the_files_are_there(
    terminal: Terminal, make: Callable[[str], Path]
) -> None:
    red, home = make("red"), make("home")
    deep = red / "src/deep"
    deep.mkdir(parents=True)
    write = ("writeTextFile", {"path": "made.txt", "text": "x"})
    terminal.script(by_red=[reply("", write), reply("done")])
    open_folders = Folders(deep)

    async def work() -> str:
        async with attached(started_in(terminal, home), **open_folders.callbacks) as editor:
            return structure(await editor.call("by_red", query="who?"))["id"]

    job_id = wait_for(work(), SECONDS)
    assert [path.name for path in (red / "perstack" / "jobs").iterdir()] == [job_id]
    assert (deep / "made.txt").exists()


def test_a_client_that_opens_another_folder_is_told_and_served_from_there(
    terminal: Terminal, make: Callable[[str], Path]
) -> None:
    red, blue = make("red"), make("blue")
    open_folders = Folders(red)

    async def work() -> None:
        async with attached(started_in(terminal, blue.parent), **open_folders.callbacks) as editor:
            assert await experts(editor.client) == ["by_red"]
            job_id = structure(await editor.call("by_red", query="who?"))["id"]
            open_folders.folders = (blue, red)
            await editor.client.send_roots_list_changed()
            await wait_for_change(open_folders.changed)
            assert await experts(editor.client) == ["by_blue"]
            assert structure(await editor.call("list_jobs")) == {"jobs": []}
            assert (await editor.call("get_job", job=job_id)).is_error
            (red / "perstack.toml").write_text(definition("by_red", "by_other"))
            (blue / "perstack.toml").write_text(definition("by_blue", "by_late"))
            await wait_for_change(open_folders.changed)
            assert await experts(editor.client) == ["by_blue", "by_late"]

    wait_for(work(), SECONDS)


def test_a_workspace_that_was_named_is_served_whatever_is_open(terminal: Terminal, make: Callable[[str], Path]) -> None:
    red, home = make("red"), make("home")
    open_folders = Folders(red)

    async def work(*args: str) -> None:
        async with attached(started_in(terminal, red), *args, **open_folders.callbacks) as editor:
            assert await experts(editor.client) == ["by_home"]

    wait_for(work("--workspace", str(home)), SECONDS)
    wait_for(work("--config", str(home / "perstack.toml")), SECONDS)
    assert open_folders.asked == 0


def test_a_client_that_does_not_say_is_served_where_the_server_was_started(
    terminal: Terminal, make: Callable[[str], Path], era: str
) -> None:
    home = make("home")

    async def refuse(context: object) -> ErrorData:
        return ErrorData(code=INTERNAL_ERROR, message="not now")

    async def work() -> None:
        async with attached(started_in(terminal, home), era=era, list_roots_callback=refuse) as editor:
            assert await experts(editor.client) == ["by_home"]
            assert texts(await editor.call("by_home", query="who?"))[0] == "I am home."

    wait_for(work(), SECONDS)


def test_what_is_wrong_with_the_open_folder_is_said_until_it_is_mended(
    terminal: Terminal, tmp_path: Path, make: Callable[[str], Path]
) -> None:
    (tmp_path / "perstack.toml").unlink()
    red = make("red")
    good = (red / "perstack.toml").read_text()
    (red / "perstack.toml").write_text("[experts.by_red]\ninstrction = 1\n")
    open_folders = Folders(tmp_path)

    async def work() -> None:
        async with attached(started_in(terminal, tmp_path), **open_folders.callbacks) as editor:
            with pytest.raises(MCPError, match=rf"no perstack.toml in your open folders \({tmp_path}"):
                await editor.client.list_tools()
            open_folders.folders = (red,)
            with pytest.raises(MCPError, match=r"perstack\.toml:2: experts\.by_red\.instrction"):
                await editor.client.list_tools()
            assert "instrction" in texts(await editor.call("list_jobs"))[0]
            (red / "perstack.toml").write_text(good)
            assert await experts(editor.client) == ["by_red"]

    wait_for(work(), SECONDS)


@asynccontextmanager
async def over_http(url: str, folders: Folders | None, era: str = "handshake") -> AsyncIterator[Editor]:
    callbacks = folders.callbacks if folders is not None else {}
    async with asyncio.timeout(SECONDS), authorized_client(url, ERAS[era], **callbacks) as client:
        yield Editor(client)


def test_clients_of_one_server_with_different_folders_open_see_nothing_of_each_other(
    terminal: Terminal, make: Callable[[str], Path]
) -> None:
    places = {name: make(name) for name in ("home", "red", "blue")}

    async def jobs_of(editor: Editor) -> list[str]:
        return [job["id"] for job in structure(await editor.call("list_jobs"))["jobs"]]

    async def call_in_root(editor: Editor, name: str, queries: int) -> list[str]:
        assert await experts(editor.client) == [f"by_{name}"]
        calls = (editor.call(f"by_{name}", query=f"{name} {number}") for number in range(queries))
        done = [structure(each) for each in await asyncio.gather(*calls)]
        assert {job["text"] for job in done} == {f"I am {name}."}
        assert {job["query"] for job in done} == {f"{name} {number}" for number in range(queries)}
        return sorted(job["id"] for job in done)

    async def work(url: str) -> None:
        red, blue = Folders(places["red"]), Folders(places["blue"])
        async with (
            over_http(url, red) as in_red,
            over_http(url, Folders(places["red"])) as also_red,
            over_http(url, blue) as in_blue,
            over_http(url, None) as at_home,
            over_http(url, Folders(places["red"]), "stateless") as modern,
        ):
            job_ids = await asyncio.gather(
                call_in_root(in_red, "red", 3),
                call_in_root(in_blue, "blue", 2),
                call_in_root(at_home, "home", 1),
                call_in_root(modern, "home", 1),
            )
            assert sorted(await jobs_of(in_red)) == sorted(await jobs_of(also_red)) == job_ids[0]
            assert sorted(await jobs_of(in_blue)) == job_ids[1]
            assert sorted(await jobs_of(at_home)) == sorted(await jobs_of(modern)) == sorted(job_ids[2] + job_ids[3])
            with pytest.raises(MCPError):
                await in_red.client.read_resource(f"perstack://jobs/{job_ids[1][0]}")

            uris = [f"perstack://jobs/{job_ids[index][0]}" for index in (0, 1)]
            for editor in (in_red, in_blue):
                for uri in uris:
                    await editor.client.subscribe_resource(uri)
            await in_red.call("continue_job", job=job_ids[0][0], query="again")
            while not red.updated:
                await in_red.call("list_jobs")
            (places["blue"] / "perstack.toml").write_text(definition("by_blue", "by_late"))
            await wait_for_change(blue.changed)
            assert await experts(in_blue.client) == ["by_blue", "by_late"]
            assert await experts(in_red.client) == ["by_red"]
            assert set(red.updated) == {uris[0]}
            assert set(blue.updated) <= {uris[1]}
            assert not red.changed.is_set()

    with serving(started_in(terminal, places["home"])) as (url, _):
        wait_for(work(url), SECONDS)


def test_beyond_loopback_no_client_is_asked_what_it_has_open(terminal: Terminal, make: Callable[[str], Path]) -> None:
    home, red = make("home"), make("red")

    async def work(url: str) -> None:
        open_folders = Folders(red)
        async with authorized_client(url, "legacy", host="build.example", **open_folders.callbacks) as client:
            assert await experts(client) == ["by_home"]
            assert open_folders.asked == 0

    beyond = ("--http", "0.0.0.0:0", "--allow-host", "build.example")
    with serving(started_in(terminal, home), *beyond) as (everywhere, _):
        wait_for(work(everywhere.replace("0.0.0.0", "127.0.0.1")), SECONDS)


def test_over_http_a_folder_that_everyone_can_write_to_is_not_served(
    terminal: Terminal, make: Callable[[str], Path]
) -> None:
    home, red = make("home"), make("red")
    red.chmod(0o777)

    async def work(url: str) -> None:
        async with over_http(url, Folders(red)) as editor:
            with pytest.raises(MCPError, match="another user can write"):
                await editor.client.list_tools()
            red.chmod(0o755)
            assert await experts(editor.client) == ["by_red"]

    with serving(started_in(terminal, home)) as (url, _):
        wait_for(work(url), SECONDS)
