"""`perstack permissions`, and the report of `validate` on rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from terminal import Terminal, reply

RM = "exec(rm *)"

RULES = """[permissions]
deny = [
  "exec(rm *)",
  "writeTextFile(secrets/**)",
]
ask = ["exec", "delegate/helper"]
allow = ["exec(git status *)"]

[experts.lead]
instruction = "You lead."
delegates = ["helper"]

[experts.helper]
instruction = "You help."

[experts.helper.permissions]
default = "ask"
deny = ["deleteDirectory"]
"""


@pytest.mark.parametrize(
    ("expert", "tool", "args", "said", "line"),
    [
        ("lead", "exec", {"command": "rm", "args": ["a"]}, "deny: the rule exec(rm *)", 3),
        ("lead", "exec", {"command": "git", "args": ["status"]}, "allow: the rule exec(git status *)", 7),
        ("lead", "exec", {"command": "sh", "args": ["-c", "ls; rm a"]}, "deny: the rule exec(rm *)", 3),
        ("lead", "@perstack/base/writeTextFile", {"path": "./secrets/a"}, "deny: the rule writeTextFile(sec", 4),
        ("lead", "writeTextFile", {"path": "a"}, "allow: the default", 1),
        ("lead", "delegate/helper", {}, "ask: the rule delegate/helper", 6),
        ("helper", "writeTextFile", {"path": "a"}, "ask: the default", 17),
        ("helper", "deleteDirectory", {"path": "a"}, "deny: the rule deleteDirectory", 18),
        ("helper", "attemptCompletion", {}, "allow: no rule is about it", None),
    ],
)
def test_a_call_is_tried_with_the_rule_its_file_and_line(terminal: Terminal, expert, tool, args, said, line):
    path = terminal.project(RULES)
    result = terminal.call("permissions", "test", expert, tool, json.dumps(args))
    assert (result.code, result.err) == (0, "")
    assert result.lines[0].startswith(said)
    assert result.lines[1:] == ([] if line is None else [f"{terminal.workspace / 'perstack.toml'}:{line}"]), path


def test_the_rules_of_those_that_delegate_hold_as_well(terminal: Terminal) -> None:
    terminal.project(RULES)
    alone = terminal.call("permissions", "test", "lead", "deleteDirectory", '{"path": "a"}', "--json")
    under = terminal.call(
        "permissions", "test", "lead", "deleteDirectory", '{"path": "a"}', "--json", "--under", "helper"
    )
    assert json.loads(alone.out)["decision"] == "allow"
    assert json.loads(under.out) == {
        "decision": "deny",
        "rule": "deleteDirectory",
        "list": "deny",
        "source": "[experts.helper.permissions].deny",
        "file": str(terminal.workspace / "perstack.toml"),
        "line": 18,
        "subject": "a",
        "reason": None,
        "opens": [],
    }


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nobody", "exec"), "there is no Expert `nobody`"),
        (("lead", "exek"), "lead has no tool `exek`; did you mean `exec`?"),
        (("lead", "github/x"), "lead has no skill `github`"),
        (("lead", "delegate/lead"), "lead does not delegate to `lead`"),
        (("lead", "exec", "{"), "the arguments are not JSON"),
        (("lead", "exec", "[]"), "the arguments are not a JSON object"),
    ],
)
def test_what_cannot_be_tried_is_wrong_usage_in_one_line(terminal: Terminal, args, words):
    terminal.project(RULES)
    result = terminal.call("permissions", "test", *args)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert words in result.err


def test_validate_warns_of_rules_that_do_nothing(terminal: Terminal) -> None:
    rules = {
        "deny": [
            "deleteDirectory",
            "writeTextFil",
            "CI/x",
            "delegate/nobody",
            "think",
            "exec(CI=1 make)",
            "exec(rm *)",
        ],
        "ask": ["deleteDirectory(a)", "exec", "readTextFile(file=a)"],
        "allow": ["exec", "exec(git *)", RM, "delegate/helper"],
    }
    lists = "".join(f"{name} = {json.dumps(some)}\n" for name, some in rules.items())
    terminal.project("[permissions]\n" + lists + RULES[RULES.index("[experts.lead]") :])
    found = {
        problem["key"]: problem["message"]
        for problem in json.loads(terminal.call("validate", "--json").out)["problems"]
        if problem["severity"] == "warning"
    }
    assert found == {
        "permissions.deny[1]": "`writeTextFil` never matches: there is no such tool; did you mean `writeTextFile`?",
        "permissions.deny[2]": "`CI/x` never matches: there is no such skill",
        "permissions.deny[3]": "`delegate/nobody` never matches: no Expert here delegates to it",
        "permissions.deny[4]": "`think` never matches: no rule applies to the loop's own tools or to questions to a"
        " person",
        "permissions.deny[5]": "`exec(CI=1 make)` never matches: the tool has no argument `CI`; in a command line"
        " write `CI\\=`",
        "permissions.ask[0]": "`deleteDirectory(a)` never decides anything: `deleteDirectory` in deny covers"
        " all that it names",
        "permissions.ask[2]": "`readTextFile(file=a)` never matches: the tool has no argument `file`",
        "permissions.allow[0]": "`exec` never decides anything: the same rule is in ask, which takes precedence",
        "permissions.allow[2]": "`exec(rm *)` never decides anything: `exec(rm *)` in deny covers all that it names",
        "experts.helper.permissions.deny[0]": "`deleteDirectory` never decides anything: `deleteDirectory` in deny"
        " covers all that it names",
    }


def test_validate_warns_of_rules_that_hold_for_less_than_they_seem_to(terminal: Terminal) -> None:
    rules = {
        "deny": ["writeTextFile(a/**)", "moveFile(source=b)", "exec(git log {-n})", "write(c)"],
        "ask": ["deleteFile"],
        "allow": ["browser_click", "exec(git status*)", "exec(ls --o*)", "exec(ls {-l)", "read(c)", "s/x", "write*"],
    }
    lists = "".join(f"{name} = {json.dumps(some)}\n" for name, some in rules.items() if name != "deny")
    denied = json.dumps(rules["deny"])
    skill = '[experts.lead.skills.s]\ntype = "mcpStdioSkill"\ncommand = "nosuch"\n'
    terminal.project(f"[permissions]\ndeny = {denied}\n{lists}{RULES[RULES.index('[experts.lead]') :]}{skill}")
    problems = json.loads(terminal.call("validate", "--json").out)["problems"]
    found = {problem["key"]: problem["message"] for problem in problems if problem["key"].startswith("permissions")}
    others = "other file tools may still change it; for all write"
    assert found == {
        "permissions.deny[0]": f"`writeTextFile(a/**)` applies only to writeTextFile: {others} `write(a/**)`",
        "permissions.deny[1]": f"`moveFile(source=b)` applies only to moveFile: {others} `write(b)`",
        "permissions.deny[2]": "`exec(git log {-n})` never matches: options in braces have a meaning only in allow",
        "permissions.allow[0]": "`browser_click` never matches: a rule without a skill allows only tools of the base"
        " skill; write `SKILL/browser_click`",
        "permissions.allow[1]": "`exec(git status*)` allows `status*` as one word and nothing after it: for arguments"
        " write ` *`",
        "permissions.allow[2]": "`exec(ls --o*)` never matches: it has a wildcard in the name of an option, --o*:"
        " write the whole name",
        "permissions.allow[3]": "`exec(ls {-l)` never matches: it has no `}` after its options",
    }


def _job(terminal: Terminal) -> None:
    mild = RULES.replace('ask = ["exec", "delegate/helper"]', "").replace('default = "ask"', "")
    mild = mild.replace('allow = ["exec(git status *)"]', 'allow = ["exec"]')
    terminal.project(
        mild,
        lead=[
            reply("", ("exec", {"command": "true"}), ("writeTextFile", {"path": "a", "text": "b"})),
            reply("", ("exec", {"command": "sh", "args": ["-c", "echo hi > c"]}), ("helper", {"query": "first"})),
            reply("", ("writeTextFile", {"path": "secrets/a", "text": "b"}), ("nosuch", {})),
            reply("Done."),
        ],
        helper=[reply("", ("createDirectory", {"path": "d"})), reply("A part.")],
    )
    result = terminal.call("run", "lead", "Go", "--provider", "scripted", "--job-id", "one")
    assert result.code == 0, result.err


def test_rules_are_tried_on_all_calls_that_were_made(terminal: Terminal, tmp_path: Path) -> None:
    _job(terminal)
    result = terminal.call("permissions", "backtest")
    assert (result.code, result.lines) == (0, ["1 Job, 6 calls: 0 would be decided differently"])
    rules = tmp_path / "new.toml"
    rules.write_text(
        '[permissions]\ndefault = "ask"\nallow = ["delegate/*", "exec(echo *)", "exec(true)"]\n'
        'deny = ["createDirectory"]\n'
    )
    shown = terminal.call("permissions", "backtest", "--rules", str(rules))
    assert shown.code == 1
    assert shown.lines == [
        "one-1 step 1 lead: allow -> ask: writeTextFile a (the default of new.toml [permissions])",
        "one-1 step 2 lead: allow -> ask: exec c (the default of new.toml [permissions])",
        "one-1 step 3 lead: deny -> ask: writeTextFile secrets/a (the default of new.toml [permissions])",
        "one-2 step 1 helper: allow -> deny: createDirectory d"
        " (the rule createDirectory of new.toml [permissions].deny)",
        "1 Job, 6 calls: 4 would be decided differently",
        "1 call that ran would be denied",
    ]
    *calls, totals = terminal.call("permissions", "backtest", "--rules", str(rules), "--json").events
    assert [(call["tool"], call["was"], call["decision"], call["ran"]) for call in calls] == [
        ("writeTextFile", "allow", "ask", True),
        ("exec", "allow", "ask", True),
        ("writeTextFile", "deny", "ask", False),
        ("createDirectory", "allow", "deny", True),
    ]
    assert totals == {"jobs": 1, "calls": 6, "otherwise": 4, "denied": 1, "unknown": 0, "unreadable": 0}


def test_a_delegates_calls_are_tried_under_the_rules_of_those_above_it(terminal: Terminal) -> None:
    _job(terminal)
    path = terminal.workspace / "perstack.toml"
    path.write_text(path.read_text() + '\n[experts.lead.permissions]\ndeny = ["createDirectory"]\n')
    result = terminal.call("permissions", "backtest", "--json")
    assert result.code == 1
    assert [(call["runId"], call["source"]) for call in result.events[:-1]] == [
        ("one-2", "[experts.lead.permissions].deny")
    ]


def test_since_leaves_out_what_was_before(terminal: Terminal) -> None:
    _job(terminal)
    assert terminal.call("permissions", "backtest", "--since", "1h").lines == [
        "1 Job, 6 calls: 0 would be decided differently"
    ]
    assert terminal.call("permissions", "backtest", "--since", "0s").lines == [
        "0 Jobs, 0 calls: 0 would be decided differently"
    ]
    assert terminal.call("permissions", "backtest", "--since", "soon").code == 2


def test_a_job_that_cannot_be_read_is_named_and_the_others_are_tried(terminal: Terminal) -> None:
    _job(terminal)
    log = terminal.workspace / "perstack/jobs/one/runs/one-1/events.jsonl"
    log.write_bytes(b"nonsense\n" + log.read_bytes())
    result = terminal.call("permissions", "backtest")
    assert result.code == 0
    assert "warning: Job one cannot be read" in result.err
    assert result.lines[-1].startswith("1 Job, 0 calls")
