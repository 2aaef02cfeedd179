"""What a command says is true: a model that nobody named, a pause, a denied program, a mistyped key."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from editor import attached, texts
from hosts import wait_for
from terminal import ASKING, Result, Terminal, reply
from wire import Said
from wire_anthropic import ANTHROPIC

from perstack.errors import UsageError
from perstack.host import Host
from perstack.testing.fake_endpoint import FakeEndpoint

SOLO = '[experts.solo]\ninstruction = "x"\n'
SCRIPTED = ("--provider", "scripted")
KEY = {"ANTHROPIC_API_KEY": "key", "PERSTACK_SCRIPT": ""}


def run_served(terminal: Terminal, *args: str) -> Result:
    """Run `solo` with a key, on an endpoint that answers."""

    async def serve() -> Result:
        async with FakeEndpoint(ANTHROPIC.reply(Said("ok"))) as endpoint:
            env = {**KEY, "ANTHROPIC_BASE_URL": endpoint.url}
            return await asyncio.to_thread(terminal.run, "run", "solo", "q", "--output", "text", *args, env=env)

    return asyncio.run(serve())


@pytest.mark.parametrize(
    ("toml", "args", "unnamed"),
    [
        ("", (), "no provider or model is named, so anthropic/"),
        ('provider.providerName = "anthropic"\n', (), "no model is named, so anthropic/"),
        ('model = "claude-sonnet-4-5"\n', (), "no provider is named, so anthropic/claude-sonnet-4-5"),
        ("", ("--provider", "anthropic", "--model", "claude-sonnet-4-5"), None),
        ('provider.providerName = "anthropic"\nmodel = "claude-sonnet-4-5"\n', (), None),
    ],
)
def test_a_model_that_nobody_named_is_said_in_one_line(
    terminal: Terminal, toml: str, args: tuple[str, ...], unnamed: str | None
) -> None:
    terminal.project(toml + SOLO)
    done = run_served(terminal, "--quiet", *args)
    assert (done.code, done.out) == (0, "ok\n")
    lines = [line for line in done.err.splitlines() if "is named" in line]
    assert [line.startswith(f"perstack: {unnamed}") for line in lines] == ([] if unnamed is None else [True])


def test_what_replaces_no_missing_key_is_used_only_by_name(terminal: Terminal, tmp_path: Path) -> None:
    plugin = tmp_path / "small.py"
    plugin.write_text(
        "from perstack.ports.hooks import hookimpl\n"
        "from perstack.testing.plugin import ScriptedProviderFactory\n"
        "class Small(ScriptedProviderFactory):\n"
        "    needs_name = True\n"
        "@hookimpl\n"
        "def perstack_providers():\n"
        "    return [Small(name='small')]\n"
    )
    terminal.project(SOLO, solo=[reply("ok")])
    env = {"PERSTACK_PLUGINS": "small", "PYTHONPATH": str(tmp_path)}
    refused = terminal.run("run", "solo", "q", env=env, new=True)
    assert (refused.code, refused.out) == (2, ""), refused.err
    assert refused.err.startswith("error: no model provider is set up: set ANTHROPIC_API_KEY, or ")
    assert terminal.run("run", "solo", "q", "--provider", "small", env=env, new=True).code == 0


@pytest.mark.parametrize(
    ("deny", "is_noted"),
    [('"exec"', False), ('"@perstack/base/exec"', False), ('"exec(rm *)"', True), ('"write(a)"', True)],
)
def test_a_definition_that_denies_all_programs_gets_no_note(terminal: Terminal, deny: str, is_noted: bool) -> None:
    terminal.project(f"{SOLO}[permissions]\ndeny = [{deny}]\n")
    assert ("exec is not named" in terminal.call("validate").out) is is_noted


def test_unattended_every_question_is_declined_and_the_model_is_told(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea?"})), reply("Served nothing.")])
    done = terminal.call("run", "guest", "q", *SCRIPTED, "--unattended", "--job-id", "job")
    assert done.code == 0
    results = [event for event in done.events if event["type"] == "finishToolCall"]
    assert "nobody can answer in this Job" in str(results[0]["contents"])
    assert terminal.call("replay", "job").code == 0


def test_a_pause_for_a_rate_limit_has_a_status_of_its_own(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[{"error": {"status": 429, "message": "tomorrow", "retryAfter": 86_400}}])
    done = terminal.call("run", "solo", "q", *SCRIPTED, attended=True)
    assert (done.code, "because of the provider's rate limit" in done.err) == (75, True)


@pytest.mark.parametrize("options", [(), ("--quiet", "--output", "text")])
def test_a_program_that_is_denied_for_want_of_a_sandbox_is_told_to_the_person(
    terminal: Terminal, options: tuple[str, ...]
) -> None:
    # beside this database no sandbox may write, so none works
    (terminal.workspace / "perstack.toml").write_text('storage = "sqlite:state.db"\n' + SOLO)
    terminal.script(solo=[reply("", ("exec", {"command": "true"}), ("exec", {"command": "true"})), reply("done")])
    done = terminal.run("run", "solo", "q", *SCRIPTED, *options)
    assert done.code == 0
    told = [line for line in done.err.splitlines() if "exec was denied" in line]
    assert len(told) == 1
    assert told[0].endswith('To have it run, add [permissions] allow = ["exec"] to the definition.')


@pytest.mark.parametrize("query", ["", " \n", "\u200b"])
@pytest.mark.parametrize("command", ["run", "submit", "iterate"])
def test_an_empty_query_is_refused(terminal: Terminal, command: str, query: str) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    refused = terminal.call(command, "solo", query, *SCRIPTED)
    assert (refused.code, "QUERY is empty" in refused.err) == (2, True)


@pytest.mark.parametrize("option", ["--step", "--job", "--run", "--step=>"])
def test_a_number_with_thousands_of_digits_is_an_error_of_one_line(terminal: Terminal, option: str) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    terminal.call("run", "solo", "q", *SCRIPTED)
    digits = "9" * 5_000
    args = (option + digits,) if option.endswith(">") else (option, digits)
    for more in ((), ("--json",), ("--follow",)):
        refused = terminal.call("log", *args, *more)
        assert (refused.code, refused.err.startswith("error: ")) == (2, True), refused.err[-300:]
    refused = terminal.call("log", digits)
    assert (refused.code, refused.err.startswith("error: ")) == (2, True)


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('[experts.a]\ninstruction = "x"\ndelegate = ["b"]\n', "experts.a.delegate: unknown key; did you mean `dele"),
        ('[experts.a]\ninstruction = "x"\nskils = ["b"]\n', "experts.a.skils: unknown key; did you mean `skills`?"),
        ('provider = "anthropic"\n' + SOLO, 'write [provider] and providerName = "anthropic" below it'),
        (
            f'provider.providerName = "anthropic"\n{SOLO}model = "gpt-5"\n',
            "`gpt-5` is a model of openai, not of anthropic",
        ),
    ],
)
def test_a_typo_does_not_pass(terminal: Terminal, toml: str, words: str) -> None:
    (terminal.workspace / "perstack.toml").write_text(toml)
    refused = terminal.call("validate")
    assert (refused.code, words in refused.err + refused.out) == (2, True), refused


def test_a_model_of_another_vendor_is_taken_at_an_address_of_ones_own(terminal: Terminal) -> None:
    (terminal.workspace / "perstack.toml").write_text(f'provider.providerName = "anthropic"\nmodel = "gpt-5"\n{SOLO}')
    assert terminal.call("validate", env={"ANTHROPIC_BASE_URL": "http://proxy.example"}).code == 0


def test_a_filter_names_fields_that_events_have(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    terminal.call("run", "solo", "q", *SCRIPTED)
    refused = terminal.call("log", "--filter", ".stepNumbr > 1")
    assert (refused.code, "no event has a field .stepNumbr; did you mean `.stepNumber`?" in refused.err) == (2, True)


@pytest.mark.parametrize("query", ["", " \n", "\u200b"])
def test_an_empty_query_begins_no_job_from_python_and_over_mcp(terminal: Terminal, query: str) -> None:
    terminal.project(SOLO, solo=[reply("ok")])

    async def work() -> None:
        async with attached(terminal) as editor:
            refused = await editor.call("solo", query=query)
            assert "QUERY is empty" in texts(refused)[0]
        async with Host.open(workspace=terminal.workspace, env=terminal.env) as host:
            for begin in (host.run, host.iterations.begin):
                with pytest.raises(UsageError, match="QUERY is empty"):
                    await begin("solo", query)

    wait_for(work(), 60)
    assert not terminal.jobs().exists() or not list(terminal.jobs().iterdir())
