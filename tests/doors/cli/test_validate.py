"""`perstack validate`."""

from __future__ import annotations

import json

import pytest
from terminal import ASKING, ASKING_BY_SKILL, TEAM, Terminal


def test_a_good_file_is_told_with_a_table_of_its_experts(terminal: Terminal) -> None:
    terminal.project('model = "m-1"\n' + TEAM + ASKING)
    result = terminal.run("validate")
    assert (result.code, result.err) == (0, "")
    assert result.lines[0].split() == ["Expert", "version", "delegates", "skills", "model"]
    assert result.lines[1].split() == ["lead", "1.0.0", "helper", "-", "m-1"]
    assert result.lines[3].split() == ["guest", "1.0.0", "-", "@perstack/ask", "m-1"]
    assert result.lines[-1] == "ok: 3 Experts"


def test_all_problems_are_named_with_file_line_and_key_and_the_status_is_2(terminal: Terminal) -> None:
    terminal.project('[experts.a]\ninstruction = 1\n\n[experts.b]\ninstruction = "i"\ndelegates = ["nobody"]\n')
    result = terminal.call("validate")
    assert result.code == 2
    path = terminal.workspace / "perstack.toml"
    assert result.lines[0].startswith(f"{path}:2: error: experts.a.instruction: ")
    assert result.lines[1].startswith(f"{path}:6: error: experts.b.delegates")
    assert result.lines[2:] == ["2 errors, 0 warnings"]


def test_a_warning_is_shown_and_becomes_an_error_with_strict(terminal: Terminal) -> None:
    terminal.project('[experts.a]\ninstruction = "i"\nrationale = "d"\n')
    result = terminal.call("validate")
    assert result.code == 0
    assert ":3: warning: experts.a.rationale: " in result.lines[0]
    assert result.lines[-1] == "ok: 1 Expert"
    strict = terminal.call("validate", "--strict")
    assert strict.code == 2
    assert "ok:" not in strict.out


def test_json_has_problems_and_experts(terminal: Terminal) -> None:
    terminal.project(TEAM + "stray = 1\n")
    result = terminal.call("validate", "--json")
    report = json.loads(result.out)
    assert (result.code, report["ok"]) == (0, True)
    assert [expert["key"] for expert in report["experts"]] == ["lead", "helper"]
    assert [(problem["severity"], problem["line"]) for problem in report["problems"]] == [("warning", 9)]
    terminal.project("[experts.a]\n")
    broken = terminal.call("validate", "--json")
    assert (broken.code, json.loads(broken.out)["ok"], json.loads(broken.out)["experts"]) == (2, False, [])


def test_a_file_that_is_not_there_is_wrong_usage(terminal: Terminal) -> None:
    for args in ((), ("--config", "none.toml"), ("--workspace", "nowhere")):
        result = terminal.call("validate", *args)
        assert result.code == 2
        assert (result.out + result.err).count("\n") <= 2


def test_a_file_can_be_named(terminal: Terminal) -> None:
    (terminal.workspace / "other.toml").write_text('[experts.a]\ninstruction = "i"\n')
    assert terminal.call("validate", "--config", "other.toml").lines[-1] == "ok: 1 Expert"


def test_what_tools_cost_at_every_step_is_shown(terminal: Terminal) -> None:
    terminal.project(TEAM)
    result = terminal.run("validate", "--tools")
    assert result.code == 0, result.err
    rows = [line.split() for line in result.lines]
    heading = rows.index(["lead:", "skill", "tools", "tokens", "names"])
    assert rows[heading + 1][0] == "@perstack/base"
    assert "delegate/helper" in {row[0] for row in rows[heading:] if row}
    assert any(
        line.startswith("lead: about ") and line.endswith("tokens of tools at every step") for line in result.lines
    )
    found = json.loads(terminal.run("validate", "--tools", "--json").out)["tools"]["lead"]
    assert found["tokens"] == sum(tool["tokens"] for tool in found["tools"])
    assert not any(tool["deferred"] for tool in found["tools"])


def test_an_expert_that_could_not_begin_is_named_and_the_others_costs_are_told(terminal: Terminal) -> None:
    needy = '[experts.a.skills.s]\ntype = "mcpStdioSkill"\ncommand = "x"\nrequiredEnv = ["NOT_SET_HERE"]\n'
    gone = '[experts.b.skills.s]\ntype = "mcpStdioSkill"\ncommand = "no-such-command"\n'
    terminal.project(f'[experts.a]\ninstruction = "i"\n{needy}[experts.b]\ninstruction = "i"\n{gone}')
    result = terminal.call("validate", "--tools")
    assert result.code == 1
    assert result.err.splitlines() == [
        "error: a: skill 's' needs NOT_SET_HERE: set it in the environment or in a .env file",
        "warning: b: skill 's' could not be connected to: no-such-command was not found: install it, or correct"
        " `command`",
    ]
    assert result.lines[-1].startswith("b: about ")
    found = json.loads(terminal.call("validate", "--tools", "--json").out)["tools"]
    assert found["a"]["tools"] == []
    assert "NOT_SET_HERE" in found["a"]["problems"][0]


@pytest.mark.parametrize("where", ["", "experts.a."])
def test_settings_that_a_provider_refuses_are_problems_and_a_missing_key_is_none(
    terminal: Terminal, where: str
) -> None:
    expert = '[experts.a]\ninstruction = "i"\n'
    table = f"[{where}provider]\nproviderName = {{name}}\n[{where}provider.setting]\n{{setting}}\n"
    terminal.project(expert + table.format(name='"anthropic"', setting='baseUrls = "https://example.com"'))
    result = terminal.call("validate")
    assert result.code == 2
    assert f"error: {where}provider.setting.baseUrls: " in result.lines[0]
    terminal.project(expert + table.format(name='"anthropic"', setting='baseUrl = "https://example.com"'))
    assert terminal.call("validate").code == 0
    terminal.project(expert + table.format(name='"antropic"', setting=""))
    result = terminal.call("validate")
    assert (result.code, f"{where}providerName" in result.out.replace("provider.providerName", "providerName")) == (
        2,
        True,
    )
    assert "anthropic" in result.out


BASE = '[experts.a]\ninstruction = "i"\n[experts.a.skills."@perstack/base"]\ntype = "mcpStdioSkill"\n'


def problems_of(terminal: Terminal, toml: str, *args: str) -> tuple[int, list[tuple[str, int | None, str, str]]]:
    terminal.project(toml)
    result = terminal.call("validate", "--json", *args)
    problems = json.loads(result.out)["problems"]
    return result.code, [
        (problem["severity"], problem["line"], problem["key"], problem["message"]) for problem in problems
    ]


@pytest.mark.parametrize(
    ("toml", "line", "key", "words"),
    [
        ('# x\nstorage = "nope:x"\n' + TEAM, 2, "storage", "no storage 'nope' is installed; available: file, "),
        ('storage = "sqlit:x"\n' + TEAM, 1, "storage", "did you mean `sqlite`?"),
        ('storage = "perstack"\n' + TEAM, 1, "storage", "has no location"),
        (TEAM + '[provider]\nproviderName = "antropic"\n', 10, "provider.providerName", "did you mean `anthropic`?"),
        (
            TEAM + '[experts.helper.provider]\nproviderName = "openai"\nsetting = { baseUrls = "https://a.example" }\n',
            11,
            "experts.helper.provider.setting.baseUrls",
            "baseUrl",
        ),
        (
            '[experts.a]\ninstruction = "i"\n[experts.a.skills.s]\ntype = "pluginSkill"\nplugin = "@perstack/memory"\n',
            5,
            "experts.a.skills.s.plugin",
            "no plugin `@perstack/memory` is installed; available: @perstack/execution-memory",
        ),
    ],
)
def test_what_no_installed_plugin_takes_is_an_error_with_its_line(
    terminal: Terminal, toml: str, line: int, key: str, words: str
) -> None:
    code, found = problems_of(terminal, toml)
    assert code == 2
    assert [(severity, at, named) for severity, at, named, _ in found] == [("error", line, key)]
    assert words in found[0][3]


@pytest.mark.parametrize("key", ['pick = ["readTextFile"]\n', 'omit = ["*"]\n'])
def test_an_expert_may_do_without_the_tool_that_ends_a_run(terminal: Terminal, key: str) -> None:
    assert problems_of(terminal, BASE + key) == (0, [])


@pytest.mark.parametrize(
    ("toml", "key", "words"),
    [
        (BASE + 'pick = ["attemptCompletion", "readTextFiles"]\n', "pick[1]", "did you mean `readTextFile`?"),
        (BASE + 'pick = ["attempt*"]\nomit = ["exce"]\n', "omit[0]", "`exce` matches no tool of this skill"),
        (
            ASKING_BY_SKILL.replace('type = "inter', 'pick = ["tell*"]\ntype = "inter'),
            "pick[0]",
            "`tell*` matches no tool",
        ),
        (
            '[experts.a]\ninstruction = "i"\n[experts.a.skills.s]\ntype = "pluginSkill"\n'
            'plugin = "@perstack/execution-memory"\npick = ["taskCreates"]\n',
            "pick[0]",
            "matches no tool",
        ),
    ],
)
def test_a_pick_or_an_omit_that_matches_nothing_is_a_warning(
    terminal: Terminal, toml: str, key: str, words: str
) -> None:
    code, found = problems_of(terminal, toml)
    assert code == 0
    assert [(severity, named.rpartition(".")[2]) for severity, _, named, _ in found] == [("warning", key)]
    assert words in found[0][3]
    assert problems_of(terminal, toml, "--strict")[0] == 2


def test_problems_of_the_file_and_of_plugins_come_together_in_the_order_of_lines(terminal: Terminal) -> None:
    code, found = problems_of(
        terminal,
        'storage = "nope:x"\nmaxSteps = -1\n'
        '[experts.a]\ndescription = "x"\n[experts.a.provider]\nproviderName = "no"\n',
    )
    assert code == 2
    assert [(line, key) for _, line, key, _ in found] == [
        (1, "storage"),
        (2, "maxSteps"),
        (3, "experts.a.instruction"),
        (6, "experts.a.provider.providerName"),
    ]


def test_a_module_in_perstack_plugins_that_is_not_there_is_a_problem_beside_the_others(terminal: Terminal) -> None:
    terminal.env["PERSTACK_PLUGINS"] = "no_such_module"
    terminal.project("maxSteps = -1\n" + TEAM)
    result = terminal.call("validate")
    assert result.code == 2
    assert result.lines[0].startswith("PERSTACK_PLUGINS: error: no_such_module cannot be imported")
    assert ":1: error: maxSteps" in result.lines[1]


def test_an_empty_file_is_an_error(terminal: Terminal) -> None:
    code, found = problems_of(terminal, "# nothing yet\n")
    assert (code, found[0][0], found[0][1]) == (2, "error", 1)
    assert "is empty" in found[0][3]


def test_patterns_that_are_not_checked_are_named(terminal: Terminal) -> None:
    schema = {
        "properties": {"good": {"pattern": "^[a-z]+$"}, "ahead": {"pattern": "^(?=x)"}, "back": {"pattern": r"(a)\1"}}
    }
    toml = f"""
[experts.one]
instruction = "x"
[experts.one.skills.user]
type = "interactiveSkill"
[experts.one.skills.user.tools.ask]
inputJsonSchema = '''{json.dumps(schema)}'''
"""
    terminal.project(toml)
    result = terminal.call("validate")
    assert result.code == 0
    lines = [line for line in (result.out + result.err).splitlines() if "is not checked" in line]
    assert [("(?=" in line, "(a)" in line) for line in lines] == [(False, True), (True, False)]
    assert all("perstack.toml:7: warning: experts.one.skills.user.tools.ask.inputJsonSchema" in line for line in lines)


SERVER = '[experts.a]\ninstruction = "i"\n[experts.a.skills.s]\ntype = "mcpStdioSkill"\n'


@pytest.mark.parametrize(
    ("toml", "key", "words"),
    [
        (
            '[provider]\nproviderName = "anthropic"\n[experts.a]\ninstruction = "i"\nmodel = "claude-sonet-5"\n',
            "experts.a.model",
            "`claude-sonet-5` is not a known model; did you mean `claude-sonnet-5`?",
        ),
        (SERVER + 'command = "nosuchprogram"\n', "experts.a.skills.s.command", "no program `nosuchprogram` in PATH"),
        (
            SERVER + 'command = "sh"\nrequiredEnv = ["NO_SUCH_KEY"]\n',
            "experts.a.skills.s.requiredEnv[0]",
            "the variable NO_SUCH_KEY is not set",
        ),
        (
            '[experts.a]\ninstruction = "i"\ntemperature = 1\n',
            "experts.a.temperature",
            "set it in the `setting` of [provider], or of [experts.NAME.provider]",
        ),
    ],
)
def test_what_may_be_right_elsewhere_is_a_warning_and_an_error_if_strict(
    terminal: Terminal, toml: str, key: str, words: str
) -> None:
    code, found = problems_of(terminal, toml)
    assert code == 0
    assert [(severity, named) for severity, _, named, _ in found] == [("warning", key)]
    assert words in found[0][3]
    assert terminal.run("validate", "--strict").code == 2


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "my-own-model", ["claude-sonnet-4-5", "other"]])
def test_a_model_that_is_known_or_like_no_other_is_not_warned_of(terminal: Terminal, model: object) -> None:
    toml = f'[provider]\nproviderName = "anthropic"\n[experts.a]\ninstruction = "i"\nmodel = {json.dumps(model)}\n'
    assert problems_of(terminal, toml) == (0, [])


def test_a_misspelt_table_of_experts_is_an_error_and_not_a_project_without_experts(terminal: Terminal) -> None:
    code, found = problems_of(terminal, '[expert.a]\ninstruction = "i"\n')
    assert (code, found) == (2, [("error", 1, "expert", "unknown key; did you mean `experts`?")])


def test_a_setting_that_a_provider_does_not_have_names_the_nearest(terminal: Terminal) -> None:
    toml = f'{TEAM}[provider]\nproviderName = "openai"\nsetting = {{ baseUrls = "https://a.example" }}\n'
    (found,) = problems_of(terminal, toml)[1]
    assert found[3] == "there is no such setting; did you mean `baseUrl`?"


def test_a_text_that_is_not_closed_is_explained(terminal: Terminal) -> None:
    (found,) = problems_of(terminal, '[experts.a]\ninstruction = "i\n')[1]
    assert found[1] == 2
    assert found[3].endswith(": a string in quotes must end on its line")


def test_a_wrong_setting_of_a_toolkit_is_an_error(terminal: Terminal) -> None:
    (terminal.workspace / "dice.py").write_text(
        "from pydantic import BaseModel\n"
        "from perstack.ports.hooks import hookimpl\n"
        "from perstack.toolkit import Toolkit\n"
        "class Settings(BaseModel):\n"
        "    sides: int = 6\n"
        "@hookimpl\n"
        "def perstack_skills():\n"
        "    return [Toolkit('dice', settings=Settings)]\n"
    )
    terminal.env |= {"PERSTACK_PLUGINS": "perstack.testing.plugin,dice", "PYTHONPATH": str(terminal.workspace)}
    dice = '[experts.a]\ninstruction = "i"\n[experts.a.skills.d]\ntype = "pluginSkill"\nplugin = "dice"\n'
    assert terminal.project(dice).run("validate").code == 0
    done = terminal.project(f"{dice}settings = {{ sids = 7 }}\n").run("validate")
    assert done.code == 2
    assert ":6: error: experts.a.skills.d.settings: " in done.out
    assert "settings.sids" in done.out
