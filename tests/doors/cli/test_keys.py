"""Stored keys: `perstack init` asks for one, `perstack login` stores it, and only providers see it."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from pathlib import Path

import pytest
from terminal import Result, Terminal, reply
from tmux import PERSTACK, tmux
from wire import Said
from wire_anthropic import ANTHROPIC

from perstack.definition_files import load_project
from perstack.testing.fake_endpoint import FakeEndpoint

KEY = "sk-ant-a-key-that-is-kept-0123456789"
TELLING_SERVER = Path(__file__).parents[2] / "plugins" / "mcp" / "servers" / "telling.py"
EXPERT = '[experts.a]\ninstruction = "x"\nmaxRetries = 0\n'


@pytest.fixture
def newcomer(terminal: Terminal) -> Terminal:
    """Return the terminal of a user with an empty home."""
    home = terminal.workspace / "home"
    home.mkdir()
    terminal.env |= {"HOME": str(home)}
    return terminal


@pytest.fixture
def beginner(newcomer: Terminal) -> Terminal:
    """Return the terminal of a user with an empty home and without the scripted model's plugin."""
    del newcomer.env["PERSTACK_PLUGINS"]
    return newcomer


@pytest.fixture
def key_file(newcomer: Terminal) -> Path:
    """Return the file of a stored key."""
    result = newcomer.run("login", "--provider", "anthropic", stdin=f"{KEY}\n")
    assert result.code == 0, result.err
    return file_of(newcomer)


def file_of(newcomer: Terminal) -> Path:
    return newcomer.workspace / "home" / ".config" / "perstack" / "keys.env"


def run_and_key(newcomer: Terminal, *args: str, env: dict[str, str] | None = None) -> tuple[Result, str]:
    """Run an Expert. Return the result, and the key that its endpoint received."""

    async def serve() -> tuple[Result, str]:
        async with FakeEndpoint(ANTHROPIC.error_reply(401, "no")) as endpoint:
            given = {"ANTHROPIC_BASE_URL": endpoint.url, **(env or {})}
            done = await asyncio.to_thread(newcomer.run, "run", "a", "q", "--output", "text", *args, env=given)
            return done, endpoint.asked[0].headers["x-api-key"]

    return asyncio.run(serve())


def test_it_is_kept_where_only_the_user_can_read_it(newcomer: Terminal, key_file: Path) -> None:
    assert key_file.read_text() == f"ANTHROPIC_API_KEY={KEY}\n"
    assert (stat.S_IMODE(key_file.stat().st_mode), stat.S_IMODE(key_file.parent.stat().st_mode)) == (0o600, 0o700)
    assert [path.name for path in key_file.parent.iterdir()] == ["keys.env"]
    assert newcomer.run("login", "--provider", "openai", stdin="sk-another").code == 0
    assert key_file.read_text() == f"ANTHROPIC_API_KEY={KEY}\nOPENAI_API_KEY=sk-another\n"
    removed = newcomer.run("logout", "--provider", "anthropic")
    assert removed.err == f"removed from {key_file}: ANTHROPIC_API_KEY\n"
    assert key_file.read_text() == "OPENAI_API_KEY=sk-another\n"
    assert newcomer.run("logout", "--provider", "anthropic").err == f"not in {key_file}: ANTHROPIC_API_KEY\n"


def test_it_is_sent_unless_the_environment_or_a_file_has_another(beginner: Terminal, key_file: Path) -> None:
    beginner.project(EXPERT)
    done, sent = run_and_key(beginner)
    assert sent == KEY
    assert f"refused the key in ANTHROPIC_API_KEY, which is set in {key_file}: no; set a valid one there" in done.err
    assert KEY not in done.err
    assert run_and_key(beginner, env={"ANTHROPIC_API_KEY": ""})[1] == KEY
    assert run_and_key(beginner, env={"ANTHROPIC_API_KEY": "sk-of-the-environment"})[1] == "sk-of-the-environment"
    (beginner.workspace / "other.env").write_text("ANTHROPIC_API_KEY=sk-of-a-file\n")
    assert run_and_key(beginner, "--env-path", "other.env")[1] == "sk-of-a-file"


def test_doctor_says_where_a_key_is_set(newcomer: Terminal, key_file: Path) -> None:
    result = newcomer.run("doctor", "--json", env={"OPENAI_API_KEY": "sk-0123456789"})
    found = {finding["about"]: finding["text"] for finding in json.loads(result.out)["findings"]}
    assert found["provider anthropic"].endswith(f"; the key in ANTHROPIC_API_KEY, which is set in {key_file}")
    assert found["provider openai"].endswith("; the key in OPENAI_API_KEY, which is set in the environment")
    assert KEY not in result.out


@pytest.mark.parametrize("harm", ["readable", "open folder", "link", "folder is a link"])
def test_a_file_that_is_not_the_users_alone_is_refused(newcomer: Terminal, key_file: Path, harm: str) -> None:
    match harm:
        case "readable":
            key_file.chmod(0o640)
            words = f"{key_file} is open to other users, so no key is read from it: chmod 600 {key_file}"
        case "open folder":
            key_file.parent.chmod(0o777)
            words = f"{key_file.parent} is open to other users, so no key is read from it: chmod 700 {key_file.parent}"
        case "link":
            key_file.rename(key_file.with_name("elsewhere"))
            key_file.symlink_to("elsewhere")
            words = f"{key_file}: cannot be read: it or its folder is a link"
        case _:
            key_file.parent.rename(key_file.parent.with_name("other"))
            key_file.parent.symlink_to("other")
            words = f"{key_file}: cannot be read: it or its folder is a link"
    newcomer.project(EXPERT)
    done = newcomer.run("run", "a", "q")
    assert (done.code, words in done.err) == (2, True), done.err
    before = key_file.read_text()
    result = newcomer.run("login", "--provider", "openai", stdin="sk-another")
    assert (result.code != 0, key_file.read_text()) == (True, before)


@pytest.mark.parametrize("key", ["", "two words", "über", "x" * 5000])
def test_what_is_no_key_is_not_kept(newcomer: Terminal, key: str) -> None:
    result = newcomer.run("login", "--provider", "anthropic", stdin=key)
    assert result.code == 2
    assert not file_of(newcomer).exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "name either a skill or --provider NAME"),
        (("tracker", "--provider", "openai"), "name either a skill or --provider NAME"),
        (("--provider", "openia"), "there is no provider 'openia'; did you mean `openai`?"),
        (("--provider", "azure-openai"), "provider azure-openai needs more than a key: set AZURE_OPENAI_API_KEY and"),
    ],
)
def test_a_login_that_cannot_be_says_why(newcomer: Terminal, args: tuple[str, ...], words: str) -> None:
    result = newcomer.run("login", *args, stdin="")
    assert (result.code, words in result.err) == (2, True), result.err


def test_neither_a_program_nor_a_server_nor_the_log_gets_it(newcomer: Terminal, key_file: Path) -> None:
    env = reply("", ("exec", {"command": "env"}), ("exec", {"command": "echo", "args": [KEY]}))
    read = reply("", ("readTextFile", {"path": str(key_file)}))
    newcomer.project(f"maskSecrets = true\n{EXPERT}", a=[env, read, reply("Done.")])
    result = newcomer.run("run", "a", "q", "--provider", "scripted", "--job-id", "job")
    assert result.code == 0, result.err
    results = [event for event in result.events if event["type"] == "finishToolCall"]  # in the order of their ends
    assert any("PATH=" in json.dumps(event) for event in results)
    assert not any("ANTHROPIC_API_KEY" in json.dumps(event) for event in results)
    kept = [path.read_text() for path in (newcomer.workspace / "perstack").rglob("*") if path.is_file()]
    results = [text for text in kept if '"finishToolCall"' in text]
    assert results
    assert "[secret:1]" in "".join(results)
    results = [json.dumps(event) for event in result.events if event["type"] == "finishToolCall"]
    assert not [text for text in results if KEY in text]


def test_a_storage_that_names_it_does_not_get_it(newcomer: Terminal, key_file: Path) -> None:
    assert key_file.exists()
    newcomer.project(f'storage = "postgresql://u:${{ANTHROPIC_API_KEY}}@127.0.0.1:9/x"\n{EXPERT}')
    done = newcomer.run("run", "a", "q")
    assert (done.code, "needs ANTHROPIC_API_KEY: set it in the environment" in done.err) == (2, True), done.err


@pytest.mark.parametrize("way", ['requiredEnv = ["ANTHROPIC_API_KEY"]', 'env = { TAKEN = "${ANTHROPIC_API_KEY}" }'])
def test_a_definition_that_names_it_for_a_server_does_not_get_it(newcomer: Terminal, key_file: Path, way: str) -> None:
    assert key_file.exists()
    server = f'type = "mcpStdioSkill"\ncommand = "{sys.executable}"\nargs = ["{TELLING_SERVER}"]\n{way}\n'
    newcomer.project(f"{EXPERT}[experts.a.skills.bench]\n{server}", a=[reply("", ("touch", {})), reply("Done.")])
    result = newcomer.run("run", "a", "q", "--provider", "scripted")
    assert "skill 'bench' needs ANTHROPIC_API_KEY" in result.out + result.err
    assert not (newcomer.workspace / "told.jsonl").exists()


def test_at_a_terminal_init_asks_for_a_key_and_the_next_command_works(beginner: Terminal) -> None:
    def walk(url: str) -> None:
        with tmux(beginner, env={"ANTHROPIC_BASE_URL": url}) as window:
            window.type(f"{PERSTACK} init notes --template writer")
            window.sees("with your key (ANTHROPIC_API_KEY)", "local", "Choose one [anthropic]")
            window.type("")
            window.sees("Paste the key for ANTHROPIC_API_KEY; it is not shown")
            window.type("not a key")
            window.sees("error: ANTHROPIC_API_KEY: this is not a key")
            window.type(KEY)
            window.sees("kept in", "next: cd notes && perstack run writer")
            assert KEY not in window.screen()
            window.type(f'cd notes && {PERSTACK} run writer "A haiku"')
            window.sees("Snow falls on the log.")

    async def serve() -> None:
        async with FakeEndpoint(ANTHROPIC.reply(Said("Snow falls on the log."))) as endpoint:
            await asyncio.to_thread(walk, endpoint.url)
            assert endpoint.asked[0].headers["x-api-key"] == KEY

    asyncio.run(serve())
    project = load_project(beginner.workspace / "notes" / "perstack.toml").project
    assert project.provider is not None
    assert project.provider.provider_name == "anthropic"
    written = [path for path in (beginner.workspace / "notes").rglob("*") if path.is_file()]
    assert not [path for path in written if KEY.encode() in path.read_bytes()]


def test_at_a_terminal_init_takes_later_for_an_answer(beginner: Terminal) -> None:
    with tmux(beginner) as window:
        window.type(f"{PERSTACK} init notes --template writer")
        window.sees("Choose one [anthropic]")
        window.type("later")
        window.sees("no provider is set up here yet", "next: cd notes && perstack run writer")
        window.type(f"{PERSTACK} init other --template writer")
        window.sees("You can use:", "$ ", "Choose one [anthropic]")
        window.type("local")
        window.sees("Install it with pip, and download its weights? [y/N]")
        window.type("n")
        window.sees("next: cd other && perstack run writer")
    assert not file_of(beginner).exists()


def test_an_embedded_model_that_cannot_be_had_is_an_error_with_its_command(beginner: Terminal) -> None:
    offline = {"PIP_NO_INDEX": "1", "XDG_CACHE_HOME": str(beginner.workspace / "cache")}
    with tmux(beginner, env=offline, columns=200) as window:
        window.type(f"{PERSTACK} init notes --template writer")
        window.sees("Choose one [anthropic]")
        window.type("local")
        window.sees("[y/N]")
        window.type("y")
        window.sees("error: the embedded model could not be installed: python -m perstack_local fetch failed")
    assert not (beginner.workspace / "notes").exists()


def test_without_a_terminal_nothing_is_asked(beginner: Terminal) -> None:
    result = beginner.run("init", stdin="")
    assert result.code == 0
    assert result.err == "no provider is set up here yet: `perstack models` says how\n"
    assert not list((beginner.workspace / "home").iterdir())
