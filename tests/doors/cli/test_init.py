"""`perstack init` and `perstack models`: from nothing to a project that runs."""

from __future__ import annotations

import asyncio
import json
import shlex

import pytest
from terminal import Result, Terminal, reply
from tmux import PERSTACK, tmux
from web_pages import Pages

from perstack.definition_files import load_project
from perstack.doors.cli.first_run.templates import templates

TEMPLATES = sorted(templates())
GALLERY = [name for name in TEMPLATES if any(path.startswith("tests/") for path in templates()[name].files)]


@pytest.fixture
def newcomer(terminal: Terminal) -> Terminal:
    """Return the terminal of a user without a key or a model."""
    terminal.env = {"PATH": terminal.env["PATH"], "HOME": str(terminal.workspace / "home")}
    return terminal


def beside_ollama(body: bytes, terminal: Terminal, *commands: tuple[str, ...]) -> list[Result]:
    """Run commands while a local server lists models with this body, and return their results."""

    async def serve() -> list[Result]:
        async with Pages({"/v1/models": body}) as pages:
            env = {"OLLAMA_HOST": pages.url.removeprefix("http://")}
            return [await asyncio.to_thread(terminal.run, *command, env=env) for command in commands]

    return asyncio.run(serve())


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_it_writes_validates_without_a_warning(newcomer: Terminal, name: str) -> None:
    result = newcomer.call("init", "--template", name)
    assert result.code == 0, result.err
    assert "no provider is set up here yet" in result.err
    checked = newcomer.call("validate", "--strict")
    assert (checked.code, checked.err) == (0, "")
    assert checked.lines[-1].startswith("ok: ")


@pytest.mark.parametrize("name", GALLERY)
def test_each_expert_of_the_gallery_passes_its_test_without_a_key_and_a_network(newcomer: Terminal, name: str) -> None:
    result = newcomer.call("init", "new", "--template", name)
    assert result.code == 0, result.err
    newcomer.workspace /= "new"
    assert name.replace("-", " ") in (newcomer.workspace / "README.md").read_text().splitlines()[0].lower()
    command = result.lines[-1].rpartition(" && ")[2]
    assert command in (newcomer.workspace / "README.md").read_text()
    tested = newcomer.call("test", env={"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"})
    assert tested.code == 0, tested.out
    assert tested.lines[-1].startswith("1 of 1 test passed")
    project = load_project(newcomer.workspace / "perstack.toml").project
    assert project.snapshots is not None
    rules = project.permissions
    assert rules is not None
    assert any(rule.startswith("exec") for rule in (*rules.allow, *rules.ask, *rules.deny))


def test_without_a_name_the_templates_are_listed(newcomer: Terminal) -> None:
    result = newcomer.call("init", "--template")
    assert (result.code, result.err) == (0, "")
    assert [line.split()[0] for line in result.lines] == ["template", *templates()]
    assert not (newcomer.workspace / "perstack.toml").exists()


@pytest.mark.parametrize("name", ["writer", "team", "iterate", "skills"])
def test_what_it_writes_runs_by_the_command_that_it_names(newcomer: Terminal, name: str) -> None:
    result = newcomer.call("init", "--template", name)
    assert result.code == 0, result.err
    newcomer.env |= {
        "PERSTACK_PLUGINS": "perstack.testing.plugin",
        "PERSTACK_SCRIPT": str(newcomer.workspace / "script.json"),
    }
    script = {key: [reply("snow falls on the log\n" * 3)] for key in ("writer", "planner", "poet")}
    experts = {key: {"turns": turns, "repeat": True} for key, turns in script.items()}
    (newcomer.workspace / "script.json").write_text(json.dumps({"experts": experts}))
    _, *command = shlex.split(result.lines[-1].removeprefix("next: "))
    worked = newcomer.call(*command, "--provider", "scripted", "--output", "text")
    assert worked.code == 0, worked.err


def test_it_names_the_schema_that_it_writes_beside_the_definition(newcomer: Terminal) -> None:
    result = newcomer.call("init")
    assert "wrote .perstack.schema.json" in result.lines
    assert (newcomer.workspace / "perstack.toml").read_text().startswith("#:schema ./.perstack.schema.json\n")
    schema = json.loads((newcomer.workspace / ".perstack.schema.json").read_text())
    assert schema == json.loads(newcomer.call("validate", "--json-schema").out)


def test_nothing_that_is_there_is_changed(newcomer: Terminal) -> None:
    (newcomer.workspace / ".gitignore").write_text("*.log\n")
    done = newcomer.call("init")
    assert (newcomer.workspace / ".gitignore").read_text() == "*.log\n"
    assert "note: .gitignore does not ignore .env and perstack/" in done.err
    written = (newcomer.workspace / "perstack.toml").read_text()
    result = newcomer.call("init", "--template", "team")
    assert result.code == 2
    assert "perstack.toml exists already" in result.err
    assert (newcomer.workspace / "perstack.toml").read_text() == written


def test_without_a_choice_the_file_pins_no_provider(newcomer: Terminal) -> None:
    result = newcomer.call("init", "new/notes", env={"ANTHROPIC_API_KEY": "x" * 20})
    assert result.lines[-1].startswith("next: cd new/notes && perstack run writer ")
    assert (result.code, result.err) == (0, "")
    path = newcomer.workspace / "new" / "notes" / "perstack.toml"
    assert "which is now anthropic" in path.read_text()
    assert load_project(path).project.provider is None


def test_a_provider_that_is_chosen_is_named_with_its_model(newcomer: Terminal) -> None:
    newcomer.call("init", "--provider", "openai", "--model", 'a "b"')
    project = load_project(newcomer.workspace / "perstack.toml").project
    assert project.provider is not None
    assert (project.provider.provider_name, project.model) == ("openai", 'a "b"')


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--template", "x"), "choose one of writer, code-reviewer, data-checker, iterate, mcp, "),
        (("--provider", "x"), "there is no provider 'x': choose one of anthropic"),
        (("--provider", "azure-openai"), "name one with --model"),
        (("--provider", "openai", "--model", "a\x1bb"), "cannot be the name of a model"),
    ],
)
def test_a_wrong_choice_writes_nothing(newcomer: Terminal, args: tuple[str, ...], words: str) -> None:
    result = newcomer.call("init", "f", *args)
    assert result.code == 2
    assert words in result.err
    assert not (newcomer.workspace / "f").exists()


def test_a_place_that_cannot_be_written_is_said_with_what_to_do(newcomer: Terminal) -> None:
    (newcomer.workspace / "file").touch()
    assert newcomer.call("init", "file").err == "error: file is not a folder: name another one\n"
    nowhere = newcomer.call("init", "file/below")
    assert (nowhere.code, nowhere.err.endswith("): name another folder\n")) == (2, True)
    (newcomer.workspace / "perstack.toml").symlink_to("nowhere")
    assert "perstack.toml exists already" in newcomer.call("init").err


def test_the_next_command_can_be_pasted_whatever_the_folder_is_called(newcomer: Terminal) -> None:
    assert newcomer.call("init", "my notes").lines[-1].startswith("next: cd 'my notes' && perstack run writer ")


def test_a_server_of_ollama_that_answers_is_named_with_its_first_model(newcomer: Terminal) -> None:
    listing = {"object": "list", "data": [{"id": "qwen3:8b"}, {"id": "llama4"}]}
    shown, _ = beside_ollama(json.dumps(listing).encode(), newcomer, ("models", "ollama"), ("init",))
    assert [line.split()[0] for line in shown.lines] == ["model", "llama4", "qwen3:8b"]
    project = load_project(newcomer.workspace / "perstack.toml").project
    assert project.provider is not None
    assert (project.provider.provider_name, project.model) == ("ollama", "llama4")


@pytest.mark.parametrize("body", [b"<html>", b'{"data": 1}', b"[" * 100_000, b'{"data": [{"id": "' + b"x" * 10_000_000])
def test_a_server_that_is_no_ollama_is_said_to_be_none(newcomer: Terminal, body: bytes) -> None:
    (shown,) = beside_ollama(body, newcomer, ("models", "ollama"))
    assert shown.code == 0
    assert "does not list models as ollama does" in shown.out
    assert shown.err == ""


def test_models_says_whole_what_to_do_where_nothing_is_set_up(newcomer: Terminal) -> None:
    result = newcomer.call("models", columns=80)
    assert (
        "azure-openai: set AZURE_OPENAI_API_KEY and AZURE_RESOURCE_NAME, and name a deployment as the model"
        in result.out
    )
    assert "one of these is enough" in result.err


def test_a_provider_that_is_misspelt_is_guessed(newcomer: Terminal) -> None:
    result = newcomer.call("models", "anthropc")
    assert (result.code, result.err) == (2, "error: there is no provider 'anthropc'; did you mean `anthropic`?\n")
    assert newcomer.call("models", "zzz").err == "error: there is no provider 'zzz': `perstack models` lists them\n"


def test_models_says_what_is_set_up_and_what_would_have_to_be_done(newcomer: Terminal) -> None:
    rows = {line.split()[0]: line for line in newcomer.call("models", env={"OPENAI_API_KEY": "x" * 20}).lines}
    assert rows["openai"].endswith("the default")
    assert rows["anthropic"].endswith("not set up")
    assert rows["anthropic:"] == "anthropic: set ANTHROPIC_API_KEY"
    (newcomer.workspace / "perstack.toml").write_text(
        'provider.providerName = "google"\n[experts.a]\ninstruction = "x"\n'
    )
    result = newcomer.call("models", "--json", env={"OPENAI_API_KEY": "x" * 20})
    states = {provider["name"]: provider for provider in json.loads(result.out)["providers"]}
    assert [name for name, state in states.items() if state["isDefault"]] == ["google"]
    assert {one["name"]: one for one in states["anthropic"]["models"]}["claude-sonnet-5"]["contextWindow"] == 1_000_000
    assert "x" * 20 not in result.out


def test_at_a_terminal_it_asks_which_template_and_which_provider(newcomer: Terminal) -> None:
    keys = {"ANTHROPIC_API_KEY": "x" * 20, "OPENAI_API_KEY": "x" * 20}
    with tmux(newcomer, env=keys) as window:
        window.type(f"{PERSTACK} init notes")
        window.sees("team", "A planner who asks you", "Which of these [writer]")
        window.type("teams")
        window.sees("Error: choose a number from 1 to 13, or a name")
        window.type("12")
        window.sees("1 anthropic  claude-sonnet-5", "Which provider [anthropic]")
        window.type("2")
        window.sees('next: cd notes && perstack run planner "A weekend by the sea"')
    project = load_project(newcomer.workspace / "notes" / "perstack.toml").project
    assert project.provider is not None
    assert (project.provider.provider_name, sorted(project.experts)) == ("openai", ["planner", "writer"])
