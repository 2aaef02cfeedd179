"""What a definition must say so that `exec` runs without a question."""

from __future__ import annotations

import pytest
from hosts import expert

from perstack.core.definitions.exec_grant import exec_grant, offers_exec, rules_without_grant
from perstack.core.definitions.permissions import Permissions, RuleSet
from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.core.definitions.skills import BASE_SKILL, McpStdioSkill, Subject
from perstack.core.permissions.decide_call import decide_call
from perstack.core.permissions.policy_calls import PolicyCall

NAMES = {
    "a rule that allows it": Permissions(allow=("exec",)),
    "a rule that asks": Permissions(ask=("exec(rm *)",)),
    "a rule about the base skill": Permissions(allow=("@perstack/base/*",)),
    "a rule about all": Permissions(ask=("*",)),
    "default allow": Permissions(default="allow"),
    "default ask": Permissions(default="ask"),
    "default deny": Permissions(default="deny"),
}
DOES_NOT_NAME = {
    "no table": None,
    "an empty table": Permissions(),
    "a rule that allows some": Permissions(allow=("exec(git status)",)),
    "a rule that denies some": Permissions(deny=("exec(rm *)",)),
    "a rule about another tool": Permissions(ask=("deleteDirectory",), allow=("readTextFile",)),
    "a rule about another skill": Permissions(allow=("github/exec",)),
    "a rule about an Expert of that name": Permissions(allow=("delegate/exec",)),
}


def base(**fields) -> McpStdioSkill:
    return McpStdioSkill(name=BASE_SKILL, package_name=BASE_SKILL, **fields)


@pytest.mark.parametrize("name", NAMES)
def test_a_table_names_it(name: str) -> None:
    assert exec_grant(expert("a"), (None, NAMES[name]), None, is_open=False) == "named"


@pytest.mark.parametrize("name", DOES_NOT_NAME)
def test_a_table_does_not_name_it(name: str) -> None:
    assert exec_grant(expert("a"), (DOES_NOT_NAME[name],), None, is_open=False) == "asks"


def test_a_pick_names_it_word_for_word_and_a_declared_base_skill_does_not() -> None:
    def grant(**fields) -> str:
        return exec_grant(expert("a").model_copy(update={"skills": (base(**fields),)}), (), None, is_open=False)

    assert [grant(), grant(pick=("*",)), grant(pick=("exec", "todo"))] == ["asks", "asks", "named"]


def test_a_sandbox_names_it_and_the_local_runtime_does_not() -> None:
    def grant(runtime: str) -> str:
        return exec_grant(expert("a"), (), SandboxPolicy(runtime=runtime, env=("CI",)), is_open=False)

    assert [grant("local"), grant("bubblewrap")] == ["asks", "named"]


def test_open_is_recorded_as_such() -> None:
    assert exec_grant(expert("a"), (Permissions(allow=("exec",)),), None, is_open=True) == "open"


def test_an_expert_may_have_no_exec_at_all() -> None:
    without = expert("a").model_copy(update={"skills": (base(omit=("exec",)),)})
    assert (offers_exec(expert("a")), offers_exec(without)) == (True, False)


def test_a_rule_that_allows_some_commands_grants_these_alone() -> None:
    one = RuleSet(source="f", permissions=Permissions(allow=("exec(git status)",)))
    parent = RuleSet(source="g", expert="parent", permissions=Permissions(allow=("exec(make)",)))
    chain = (one, parent, rules_without_grant(expert("a"), (one, parent)))

    def decision(*words: str) -> str:
        call = PolicyCall(
            "exec",
            skill=BASE_SKILL,
            args={"command": words[0], "args": [*words[1:]]},
            subject=Subject(program="command", arguments="args"),
            is_host=True,
        )
        return decide_call(chain, call).decision

    assert decision("git", "status") == "allow"
    assert [decision("git", "push"), decision("git", "status", "-s"), decision("make")] == ["ask", "ask", "ask"]


@pytest.mark.parametrize("name", [BASE_SKILL, "my tools", "a(b", "x*"])
def test_the_rule_set_asks_about_it_under_every_name_of_the_base_skill(name: str) -> None:
    one = expert("a").model_copy(update={"skills": (McpStdioSkill(name=name, package_name=BASE_SKILL),)})
    chain = (rules_without_grant(one),)
    assert decide_call(chain, PolicyCall("exec", skill=name, args={"command": "ls"})).decision == "ask"
    assert decide_call(chain, PolicyCall("readTextFile", skill=name, args={"path": "a"})).decision == "allow"
