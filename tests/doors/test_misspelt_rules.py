"""A rule or limit that may be misspelt keeps new Jobs from beginning at every door, and stops none that has begun."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from acp import RequestError
from acp.helpers import text_block
from acp_editor import Editor as AcpEditor
from acp_editor import editing
from editor import attached, texts
from hosts import wait_for
from plain_person import begin_person
from terminal import ASKING, Terminal, reply

from perstack.errors import DefinitionError
from perstack.host import Host
from perstack.trust.definition_files import load_usable

EXPERT = '[experts.a]\ndescription = "works"\ninstruction = "You work."\n'
RULES = {
    "a table": ('[permission]\ndefault = "deny"\n' + EXPERT, "permission: unknown key; did you mean `permissions`?"),
    "a budget": ("[budget]\nmaxCosts = 1\n" + EXPERT, "budget.maxCosts: unknown key; did you mean `maxCost`?"),
    "a bound at the top": ("maxSetps = 3\n" + EXPERT, "maxSetps: unknown key; did you mean `maxSteps`?"),
    "a bound in snake case": ("max_steps = 3\n" + EXPERT, "max_steps: unknown key; did you mean `maxSteps`?"),
    "a bound of an Expert": (EXPERT + "maxDept = 1\n", "experts.a.maxDept: unknown key; did you mean `maxDepth`?"),
    "a list of rules": (
        EXPERT + '[experts.a.permissions]\ndenny = ["exec"]\n',
        "experts.a.permissions.denny: unknown key; did you mean `deny`?",
    ),
    "a key of the sandbox": ('[sandbox]\nwriteable = ["out"]\n' + EXPERT, "sandbox.writeable: unknown key; did you"),
    "a runtime": ('runtimes = "bubblewrap"\n' + EXPERT, "runtimes: unknown key; did you mean `runtime`?"),
    "a limit of a provider": (
        '[limits."anthropic"]\nrequestPerMinute = 1\n' + EXPERT,
        "limits.anthropic.requestPerMinute: unknown key; did you mean `requestsPerMinute`?",
    ),
    "the tools of a skill": (
        EXPERT + '[experts.a.skills."@perstack/base"]\ntype = "mcpStdioSkill"\ncommand = "x"\npicks = ["todo"]\n',
        'experts.a.skills."@perstack/base".picks: unknown key; did you mean `pick`?',
    ),
    "the Experts": ("[expert.b]\ninstruction = 'x'\n" + EXPERT, "expert: unknown key; did you mean `experts`?"),
}


@pytest.fixture(params=RULES)
def misspelt(request: pytest.FixtureRequest, terminal: Terminal) -> tuple[Terminal, str]:
    toml, words = RULES[request.param]
    return terminal.project(toml, a=[reply("done")]), words


def is_untouched(terminal: Terminal) -> bool:
    jobs = terminal.workspace / "perstack" / "jobs"
    return not jobs.exists() or not any(jobs.iterdir())


def test_the_command_line_refuses(misspelt: tuple[Terminal, str]) -> None:
    terminal, words = misspelt
    for command in (("run", "a", "go"), ("validate",)):
        result = terminal.run(*command, *(("--provider", "scripted") if command[0] == "run" else ()))
        assert result.code == 2
        assert words in result.out + result.err
    assert is_untouched(terminal)


def test_the_terminal_program_refuses(misspelt: tuple[Terminal, str]) -> None:
    terminal, words = misspelt

    async def person() -> None:
        host = Host.open(workspace=terminal.workspace, env=terminal.env)
        async with begin_person(host, expert="a") as one:
            await one.types("go", words)

    wait_for(person())
    assert is_untouched(terminal)


def test_mcp_refuses(misspelt: tuple[Terminal, str]) -> None:
    terminal, words = misspelt

    async def work() -> None:
        async with attached(terminal, era="handshake") as editor:
            result = await editor.call("a", query="go")
            assert result.is_error
            assert words in "".join(texts(result))

    wait_for(work(), 60)
    assert is_untouched(terminal)


def test_python_refuses(misspelt: tuple[Terminal, str]) -> None:
    terminal, words = misspelt

    async def work() -> None:
        async with Host.open(workspace=terminal.workspace, env=terminal.env) as host:
            with pytest.raises(DefinitionError) as raised:
                await host.run("a", "go")
        assert words in str(raised.value)

    wait_for(work())
    assert is_untouched(terminal)


def test_editors_are_refused(misspelt: tuple[Terminal, str]) -> None:
    terminal, words = misspelt

    async def work() -> None:
        async with editing(terminal, AcpEditor()) as agent:
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            with pytest.raises(RequestError) as raised:
                await agent.prompt(session_id=session.session_id, prompt=[text_block("go")])
        assert words in f"{raised.value} {raised.value.data}"

    wait_for(work(), 60)
    assert is_untouched(terminal)


def test_a_job_that_has_begun_continues_as_it_was_recorded(terminal: Terminal) -> None:
    turns = [reply("", ("askUser", {"question": "Tea?"})), reply("Thanks.")]
    terminal.project(ASKING, guest=turns)
    assert terminal.run("run", "guest", "go", "--job-id", "job", "--provider", "scripted").code == 3
    terminal.project("[budget]\nmaxCosts = 1\n" + ASKING, guest=turns)
    assert terminal.run("run", "guest", "go", "--provider", "scripted").code == 2
    assert terminal.run("answer", "job", "yes", "--provider", "scripted").code == 0
    assert terminal.run("jobs").err == ""
    more = terminal.run("run", "guest", "more", "--continue-job", "job", "--provider", "scripted")
    assert (more.code, "budget.maxCosts" in more.err) == (2, True)  # another query begins by today's definition


def test_experts_that_do_not_use_the_key_run(terminal: Terminal) -> None:
    terminal.project(EXPERT + 'maxStep = 1\n[experts.b]\ninstruction = "You work."\n', b=[reply("done")])
    assert terminal.run("run", "a", "go", "--provider", "scripted").code == 2
    assert terminal.run("run", "b", "go", "--provider", "scripted").code == 0


@pytest.mark.parametrize("key", ['expertise = "x"', "temperature = 1", 'network = "x"', 'title = "x"'])
def test_another_unknown_key_is_a_warning(key: str, tmp_path: Path) -> None:
    path = tmp_path / "perstack.toml"
    path.write_text(EXPERT + key)
    loaded = load_usable(path)
    assert [problem.severity for problem in loaded.warnings] == ["warning"]
    assert loaded.project.unguarded == {}


def test_each_door_shows_a_warning_where_its_user_looks(terminal: Terminal) -> None:
    terminal.project(EXPERT + 'expertise = "x"\n', a=[reply("done")] * 4)
    words = "experts.a.expertise: unknown key, ignored"

    async def work() -> None:
        async with attached(terminal, era="handshake") as editor:
            assert words in "".join(texts(await editor.call("a", query="go")))
        with pytest.warns(UserWarning, match="expertise: unknown key"):
            host = Host.open(workspace=terminal.workspace, env=terminal.env)
        await host.close()

    wait_for(work(), 60)
    result = terminal.run("run", "a", "go", "--provider", "scripted")
    assert (result.code, words in result.err) == (0, True)
    refused = terminal.run("run", "a", "go", "--strict", "--provider", "scripted")
    assert (refused.code, refused.err.startswith("error: "), words in refused.err) == (2, True, True)


def test_without_a_warning_python_warns_of_nothing(terminal: Terminal) -> None:
    terminal.project(EXPERT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wait_for(Host.open(workspace=terminal.workspace, env=terminal.env).close())
