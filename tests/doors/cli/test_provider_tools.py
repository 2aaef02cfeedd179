"""Tools run by the provider, as shown when a file is validated, during a Job, and in its log."""

from __future__ import annotations

import json

from terminal import Terminal

PAGE = "https://example.com/paris"
EXPERT = """
[experts.a]
instruction = "You search."
providerTools = ["webSearch"]

[experts.a.providerToolOptions.webSearch]
maxUses = 2
"""
AT_ANTHROPIC = 'model = "claude-sonnet-5"\n[provider]\nproviderName = "anthropic"\n'
TURN = {
    "text": "It is Paris.",
    "providerTools": [
        {"name": "webSearch", "input": {"query": "capital of France"}, "result": f"Paris {PAGE}"},
        {"name": "webSearch", "input": {"query": "more"}, "result": "max_uses_exceeded", "isError": True},
    ],
}


def searched(terminal: Terminal) -> Terminal:
    """Run a Job `j` whose model has searched twice."""
    return terminal.project(EXPERT, a=[TURN])


def test_a_run_shows_what_the_provider_has_run_and_the_log_what_it_has_found(terminal: Terminal) -> None:
    done = searched(terminal).call("run", "a", "q", "--provider", "scripted", "--job-id", "j", "--output", "human")
    assert done.code == 0
    assert 'calls: webSearch {"query": "capital of France"} (the provider runs it)' in done.out
    assert "error: max_uses_exceeded" in done.out
    log = terminal.call("log", "--job", "j").out
    assert 'calls     webSearch {"query": "capital of France"} (the provider runs it)' in log
    assert PAGE in log
    (job,) = terminal.call("jobs", "--json").events
    assert job["usage"]["providerTools"] == {"webSearch": 2}


def test_a_recording_has_the_uses_and_plays_them(terminal: Terminal) -> None:
    searched(terminal).call("run", "a", "q", "--provider", "scripted", "--job-id", "j")
    result = terminal.call("record", "j", "--to", "j.json")
    assert result.code == 0, result.err
    again = terminal.call("run", "a", "q", "--recording", "j.json", "--job-id", "k", "--output", "text")
    assert (again.code, again.out) == (0, "It is Paris.\n"), again.err
    assert PAGE in terminal.call("log", "--job", "k").out
    exported = terminal.call("export", "j", "--format", "perstack", "--to", "theirs")
    assert exported.code == 0, exported.err


def test_wrong_names_options_and_rules_are_told_with_their_line(terminal: Terminal) -> None:
    terminal.project(
        'providerTools = ["webSearch"]\n'
        + AT_ANTHROPIC
        + """
[permissions]
deny = ["webFetch"]

[experts.a]
instruction = "i"
providerTools = ["webSerch", "imageGeneration", "webFetch"]

[experts.b]
instruction = "i"
model = ["claude-sonnet-5", "deepseek/deepseek-flash"]
providerTools = ["webSearch"]

[experts.b.providerToolOptions.webSearch]
maxUse = 2
allowedDomains = ["*.example.com"]

[experts.c]
instruction = "i"
providerTools = ["webSearch"]

[experts.c.providerToolOptions]
webSearch = { allowedDomains = ["a.com"], blockedDomains = ["b.com"] }
webFetch = { maxUses = 1 }

[experts.d]
instruction = "i"
provider = { providerName = "openai" }
providerTools = ["fileSearch", "webSearch"]
providerToolOptions.webSearch.blockedDomains = ["b.com"]

[experts.e]
instruction = "i"
provider = { providerName = "deepseek" }
providerTools = ["webSearch"]
"""
    )
    lines = terminal.call("validate").out.replace(f"{terminal.workspace}/perstack.toml", "").splitlines()
    told = [line.partition(" ")[2] for line in lines]
    assert told[:-1] == [
        "warning: providerTools: unknown key here, ignored; `providerTools` belongs in [experts.NAME]",
        "error: experts.a.providerTools[0]: provider anthropic has no tool `webSerch`; it has: webSearch, webFetch;"
        " did you mean `webSearch`?",
        "error: experts.a.providerTools[1]: provider anthropic has no tool `imageGeneration`; it has: webSearch,"
        " webFetch",
        "warning: experts.a.providerTools[2]: webFetch is not offered: the rule webFetch of perstack.toml"
        " [permissions].deny",
        "warning: experts.b.providerTools[0]: webSearch is not offered: provider deepseek runs no tools itself",
        "error: experts.b.providerToolOptions.webSearch.maxUse: unknown key; did you mean `maxUses`?",
        "error: experts.b.providerToolOptions.webSearch.allowedDomains[0]: write `example.com`: it covers all below it",
        "error: experts.c.providerToolOptions.webSearch: must not have both `allowedDomains` and `blockedDomains`: take"
        " one out",
        "warning: experts.c.providerToolOptions.webFetch: has no effect: `providerTools` has no `webFetch`",
        "error: experts.d.providerToolOptions.fileSearch.vectorStoreIds: is missing: fileSearch cannot be used without"
        " it",
        "error: experts.d.providerToolOptions.webSearch.blockedDomains: provider openai has no such option for"
        " webSearch; it has: allowedDomains, maxUses",
        "error: experts.e.providerTools[0]: provider deepseek runs no tools itself",
    ]


def test_an_older_api_of_a_compatible_server_has_no_tools(terminal: Terminal) -> None:
    setting = '[provider]\nproviderName = "openai"\nsetting = { baseUrl = "http://127.0.0.1:9/v1" }\n'
    terminal.project('model = "m"\n' + setting + '[experts.a]\ninstruction = "i"\nproviderTools = ["webSearch"]\n')
    assert "provider openai runs no tools itself" in terminal.call("validate").out
    result = terminal.call("run", "a", "q")
    assert result.code == 2
    assert "experts.a.providerTools[0]: provider openai runs no tools itself" in result.err


def test_the_offered_tools_are_listed_and_rules_about_them_can_be_tested(terminal: Terminal) -> None:
    searched(terminal)
    result = terminal.call("expert", "show", "a", "--provider", "scripted")
    assert "== tools that the provider runs ==\nwebSearch\n" in result.out
    assert json.loads(terminal.call("expert", "show", "a", "--provider", "scripted", "--json").out)["providerTools"]
    assert terminal.call("permissions", "test", "a", "webSearch").out.startswith("allow: ")
    terminal.project(EXPERT + '\n[permissions]\nask = ["provider/webSearch"]\n')
    output = terminal.call("permissions", "test", "a", "provider/webSearch").out
    assert output.startswith("deny: the rule provider/webSearch asks, and the provider runs it")
    assert "warning: a: webSearch is not offered" in terminal.call("expert", "show", "a", "--provider", "scripted").err
    assert "never matches" not in terminal.call("validate").out


def test_a_person_has_to_trust_a_definition_with_tools_that_reach_others(terminal: Terminal, tmp_path_factory) -> None:
    terminal.env["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    terminal.project(EXPERT, a=[TURN]).as_stranger()
    refused = terminal.call("run", "a", "q", "--provider", "scripted")
    assert refused.code == 2
    assert "experts.a.providerTools" in refused.err
    assert '"webSearch"' in terminal.call("trust", "--show").out
    assert terminal.call("trust", "--yes").code == 0
    assert terminal.call("run", "a", "q", "--provider", "scripted").code == 0
