"""Tools of plugins and servers that say which of their arguments are paths, addresses and commands."""

from __future__ import annotations

import json
import time

import pytest
from approval_jobs import answer, hosted
from hosts import Bench, Seen, results, wait_for
from terminal import Terminal
from toolkit_experts import with_kit

from perstack.core.definitions.permissions import Permissions, RuleSet
from perstack.core.definitions.skills import Subject, ToolSpec
from perstack.core.permissions.decide_call import decide_call
from perstack.core.permissions.matching import address_readings
from perstack.core.permissions.policy_calls import PolicyCall
from perstack.errors import PluginError
from perstack.lockfile.lock import LockedTool
from perstack.testing.scripted import text, tool
from perstack.toolkit import Toolkit

SECRETS = Permissions(deny=("read_it(secrets/**)",))


@pytest.fixture
def kit() -> Toolkit:
    kit = Toolkit("kit")

    @kit.tool(effect="readOnly", subject=Subject(paths=("file",)))
    async def read_it(file: str, note: str = "") -> str:
        """Read it."""
        return f"read {file}"

    @kit.tool(subject=Subject(script="line"))
    async def shell(line: str) -> str:
        """Run it."""
        return f"ran {line}"

    return kit


def decision_of(subject: Subject, args: dict, **rules: tuple[str, ...] | str) -> str:
    chain = [RuleSet(source="perstack.toml [permissions]", permissions=Permissions.model_validate(rules))]
    return decide_call(chain, PolicyCall(tool="t", skill="s", args=args, subject=subject)).decision


@pytest.mark.parametrize(
    "path", ["secrets/a", "./secrets/a", "x/../secrets/a", "SECRETS/a", "link/a", "file:secrets/a"]
)
def test_a_path_of_a_plugins_tool_is_read_like_one_of_a_file_tool(bench: Bench, kit: Toolkit, path: str) -> None:
    (bench.workspace / "secrets").mkdir()
    (bench.workspace / "link").symlink_to("secrets")
    seen, script = Seen(), [tool("read_it", {"file": path, "note": "x"}), text("ok")]
    wait_for(hosted(bench, script, with_kit(), rules=SECRETS, plugins=(kit,)).run("a", "q", on_event=seen))
    assert "denies this call" in results(seen)[0]


def test_words_of_other_arguments_are_no_paths(bench: Bench, kit: Toolkit) -> None:
    seen, script = Seen(), [tool("read_it", {"file": "notes", "note": "secrets/a"}), text("ok")]
    wait_for(hosted(bench, script, with_kit(), rules=SECRETS, plugins=(kit,)).run("a", "q", on_event=seen))
    assert results(seen) == ["read notes"]


def test_a_script_of_a_plugins_tool_is_taken_apart_like_that_of_a_shell(bench: Bench, kit: Toolkit) -> None:
    rules = Permissions(
        ask=("shell",), allow=("mine/shell(git status {-s})", "mine/shell(make $(date))"), deny=("shell(rm *)",)
    )
    lines = ["git status -s", "make $(date)", "git status && rm -rf a", "git status > out"]
    seen, script = Seen(), [*(tool("shell", {"line": line}) for line in lines), text("ok")]
    job = wait_for(hosted(bench, script, with_kit(), rules=rules, plugins=(kit,)).run("a", "q", on_event=seen))
    assert results(seen)[:2] == [f"ran {line}" for line in lines[:2]]
    assert "shell(rm *)" in results(seen)[2]
    assert job.status == "completed"  # no rule is about writing files
    job = wait_for(
        hosted(bench, [tool("shell", {"line": "git push"}), text("ok")], with_kit(), rules=rules, plugins=(kit,)).run(
            "a", "q", job_id="job"
        )
    )
    assert job.pause_reason == "human_approval"
    host = hosted(bench, [tool("shell", {"line": "git push"}), text("ok")], with_kit(), rules=rules, plugins=(kit,))
    answer(host, job, "yes", on_event=seen)
    assert results(seen)[-1] == "ran git push"


def test_a_subject_that_names_no_parameter_is_an_error_of_the_plugin() -> None:
    async def go(path: str) -> str:
        """Go."""
        return path

    with pytest.raises(PluginError, match="names file, which is not a parameter"):
        Toolkit("kit").tool(subject=Subject(paths=("file",)))(go)


def test_a_locked_tool_keeps_its_subject() -> None:
    spec = ToolSpec(name="t", subject=Subject(paths=("a",), urls=("b",)))
    again = LockedTool.model_validate_json(LockedTool.of(spec).to_json())
    assert again.spec().subject == spec.subject
    assert b"subject" not in LockedTool.of(ToolSpec(name="t")).to_json()


@pytest.mark.parametrize(
    ("args", "decision"),
    [
        ({"files": ["a", "keys/b"]}, "deny"),
        ({"files": [{"path": "keys/b"}]}, "deny"),
        ({"files": {"keys/b": "text"}}, "deny"),
        ({"files": ["a", "b"]}, "allow"),
        ({"files": ["a", 7]}, "allow"),
        ({"files": ["a", "c"]}, "ask"),
        ({"files": []}, "ask"),
        ({}, "ask"),
    ],
)
def test_every_text_of_an_argument_that_holds_paths_counts(args: dict, decision: str) -> None:
    subject = Subject(paths=("files",))
    assert decision_of(subject, args, default="ask", deny=("t(keys/**)",), allow=("s/t(a)", "s/t(b)")) == decision


@pytest.mark.parametrize(
    ("url", "decision"),
    [
        ("https://good.example/a/b", "allow"),
        ("https://good.example/a/../keys", "deny"),
        ("https://good.example/a/%2e%2e/keys", "deny"),
        ("HTTPS://GOOD.EXAMPLE:443/keys", "deny"),
        ("https://good.example@evil.example/a/b", "deny"),
        ("https://good.example\\@evil.example/a/", "deny"),
        ("https:evil.example/a", "deny"),
        ("//evil.example/a", "deny"),
        ("evil.example/a", "deny"),
        ("http://e\tvil.example./a", "deny"),
        ("http://ｅvil.example/a", "deny"),
        ("http://2130706433/", "deny"),
        ("http://0x7f.1/", "deny"),
        ("http://[::ffff:127.0.0.1]/", "deny"),
        ("http://good.example/a/b", "ask"),
        ("https://good.example:8443/a/b", "ask"),
    ],
)
def test_an_address_is_read_as_programs_read_it(url: str, decision: str) -> None:
    denied = ("t(https://good.example/keys*)", "t(*://evil.example/*)", "t(*://127.0.0.1/*)")
    rules = {"default": "ask", "deny": denied, "allow": ("s/t(https://good.example/a/*)",)}
    for one in (url, [url], [[url]]):
        assert decision_of(Subject(urls=("url",)), {"url": one, "body": "keys"}, **rules) == decision


@pytest.mark.parametrize(
    "text", ["", "http:", "http://", "http://[", "http://0x/", "http://999.1.1.1", "http://\udc80"]
)
def test_what_is_no_address_has_a_reading_all_the_same(text: str) -> None:
    assert address_readings(text, is_strict=True)[0] == text


LONG = [
    f"HTTPS://EVIL.example/{'a' * 20_000}",
    f"https://{'u' * 20_000}@EVIL.example/",
    f"https://EVIL.example/{'../' * 20_000}",
]


@pytest.mark.parametrize("url", LONG, ids=["path", "user", "dots"])
def test_no_length_of_an_address_gets_it_past_a_rule(url: str) -> None:
    assert decision_of(Subject(urls=("url",)), {"url": url}, deny=("t(https://evil.example/*)",)) == "deny"


def test_no_length_of_a_text_gets_it_past_a_rule_about_a_path() -> None:
    for way in ("a/../secrets/b", f"{'a/../' * 2_000}secrets/b", f"{'./' * 5_000}secrets/b"):
        assert decision_of(Subject(), {"file": way}, deny=("t(file=secrets/*)",)) == "deny"


HOSTS = ["9" * 10_000, "0x" + "f" * 10_000, "1." * 5_000, "ü" * 10_000, "[" + ":" * 10_000]


@pytest.mark.parametrize("host", HOSTS, ids=["digits", "hex", "dots", "letters", "colons"])
def test_a_host_of_any_length_is_read_in_a_moment(host: str) -> None:
    began, args = time.monotonic(), {"url": f"http://{host}/"}
    assert decision_of(Subject(urls=("url",)), args, default="deny", allow=("s/t(http://a/*)",)) == "deny"
    assert time.monotonic() - began < 1


SERVER = """[permissions]
deny = ["files/read(secrets/**)", "shell(rm *)"]
ask = ["shell"]
allow = ["files/shell(git status)"]

[experts.a]
instruction = "x"

[experts.a.skills.files]
type = "mcpStdioSkill"
command = "nosuch"

[experts.a.skills.files.tools.read]
paths = ["path"]

[experts.a.skills.files.tools.shell]
script = "command"
"""


@pytest.mark.parametrize(
    ("name", "args", "decision"),
    [
        ("files/read", {"path": "x/../secrets/a"}, "deny"),
        ("files/read", {"path": "a"}, "allow"),
        ("files/shell", {"command": "git status"}, "allow"),
        ("files/shell", {"command": "git status; rm a"}, "deny"),
        ("files/shell", {"command": ["rm", "a"]}, "deny"),
        ("files/shell", {"command": "make"}, "ask"),
    ],
)
def test_perstack_toml_says_it_of_a_servers_tool(terminal: Terminal, name: str, args: dict, decision: str) -> None:
    terminal.project(SERVER)
    shown = terminal.call("permissions", "test", "a", name, json.dumps(args))
    assert (shown.err, shown.lines[0].partition(":")[0]) == ("", decision)


def test_what_the_base_skills_arguments_are_cannot_be_said_otherwise(terminal: Terminal) -> None:
    base = '[experts.a.skills."@perstack/base".tools.exec]\npaths = ["command"]\n'
    terminal.project(
        f'[experts.a]\ninstruction = "x"\n[experts.a.skills."@perstack/base"]\ntype = "mcpStdioSkill"\n{base}'
    )
    shown = terminal.call("validate")
    assert shown.code != 0
    assert "the base skill's arguments are known" in shown.out
