"""What permission rules decide about calls."""

from __future__ import annotations

import pytest
from fuzzing import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from perstack.core.definitions.permissions import Permissions, RuleSet, rule_problem
from perstack.core.definitions.skills import ToolSpec
from perstack.core.permissions.decide_call import decide_call, decide_offer
from perstack.core.permissions.policy_calls import PolicyCall, policy_call
from perstack.definition_files import load_project
from perstack.engine.permissions.rulings import path_resolver
from perstack.errors import DefinitionError
from perstack_base.tools import SPECS

BASE = {spec.name: spec for spec in SPECS}
STRICTNESS = ["allow", "ask", "deny"]


def rules(source="perstack.toml [permissions]", expert="", **lists):
    return RuleSet(source=source, expert=expert, permissions=Permissions(**lists))


def call(tool, resolve=None, **args):
    spec = BASE[tool]
    return policy_call(spec, tool, args, *([resolve] if resolve else []))


def decision_of(rule_set, one):
    return decide_call([rule_set], one).decision


def run(*words, **more):
    return call("exec", command=words[0], args=list(words[1:]), **more)


def github(tool, **args):
    return PolicyCall(tool=tool, skill="github", args=args)


def delegate(key, query="do it"):
    return PolicyCall(tool=key, args={"query": query}, kind="delegate", shown=key)


EXAMPLE = rules(
    deny=("deleteDirectory", "exec(rm -rf *)", "writeTextFile(path=secrets/**)"),
    ask=("exec", "exec(git push *)", "github/create_*", "delegate/deployer"),
    allow=("exec(git status {-s,--short} *)", "exec(pytest *)"),
)


@pytest.mark.parametrize(
    ("one", "decision"),
    [
        (run("git", "status", "-s"), "allow"),
        (run("git", "status", "--porcelain"), "ask"),
        (run("pytest"), "allow"),
        (run("make"), "ask"),
        (run("git", "push", "origin"), "ask"),
        (run("rm", "-rf", "a b"), "deny"),
        (run("/bin/rm", "-rf", "x"), "deny"),
        (run("rm", "-r", "-f", "x"), "ask"),
        (run("./pytest"), "ask"),
        (call("deleteDirectory", path="x"), "deny"),
        (call("writeTextFile", path="secrets/a/b", text=""), "deny"),
        (call("writeTextFile", path="Secrets/KEY", text=""), "deny"),
        (call("writeTextFile", path="public/a", text=""), "allow"),
        (github("create_issue"), "ask"),
        (github("list_issues"), "allow"),
        (delegate("deployer"), "ask"),
        (delegate("reader"), "allow"),
    ],
)
def test_the_example_decides_what_its_words_say(one, decision):
    assert decision_of(EXAMPLE, one) == decision


def test_a_ruling_names_the_rule_its_list_and_what_it_is_about():
    ruling = decide_call([EXAMPLE], run("rm", "-rf", "x"))
    assert (ruling.rule, ruling.list) == ("exec(rm -rf *)", "deny")
    assert ruling.source == "perstack.toml [permissions].deny"
    assert ruling.subject == "rm -rf x"
    assert ruling.reason_text == "the rule exec(rm -rf *) of perstack.toml [permissions].deny"


@pytest.mark.parametrize(
    ("ask", "allow", "one", "decision"),
    [
        (["exec"], ["exec(git *)"], run("git", "log"), "allow"),
        (["exec(git push*)"], ["exec(git *)"], run("git", "push"), "ask"),
        (["exec(git *)"], ["exec(git *)"], run("git", "log"), "ask"),
        (["exec(git push *)"], ["exec(git push origin main)"], run("git", "push", "origin", "main"), "allow"),
        (["*"], ["github/*"], github("create_issue"), "allow"),
        (["create_*"], ["github/*"], github("create_issue"), "ask"),
        (["writeTextFile"], ["writeTextFile(docs/**)"], call("writeTextFile", path="docs/a/b.md", text=""), "allow"),
        (["writeTextFile(docs/*.md)"], ["writeTextFile"], call("writeTextFile", path="docs/a.md", text=""), "ask"),
    ],
)
def test_of_ask_and_allow_the_more_particular_wins_and_a_tie_asks(ask, allow, one, decision):
    assert decision_of(rules(ask=tuple(ask), allow=tuple(allow)), one) == decision


@pytest.mark.parametrize(
    ("glob", "path", "is_denied"),
    [
        ("secrets/**", "secrets/a/b", True),
        ("secrets/**", "secrets", True),
        ("secrets/*", "secrets/a", True),
        ("secrets/*", "secrets/a/b", False),
        ("*.key", "a/b/c.key", True),
        ("*.key", "a/b/c.keys", False),
        ("secrets", "a/secrets/b", True),
        ("secrets/", "secrets/b/c", True),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("**/z", "z", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("[ab]c", "bc", True),
        ("[!ab]c", "bc", False),
        (r"a\*c", "abc", False),
        (r"a\*c", "a*c", True),
        ("./a/b", "a/b", True),
        ("/etc/**", "/etc/passwd", True),
        ("KÄSE", "käse", True),
        ("[z-a]", "anything", True),
    ],
)
def test_a_glob_of_paths_reads_like_a_gitignore(glob, path, is_denied):
    for rule in (f"readTextFile({glob})", f"readTextFile(path={glob})"):
        assert decision_of(rules(deny=(rule,)), call("readTextFile", path=path)) == ("deny" if is_denied else "allow")


def test_a_path_is_matched_where_it_leads(tmp_path):
    (tmp_path / "work" / "secrets").mkdir(parents=True)
    (tmp_path / "work" / "door").symlink_to("secrets")
    (tmp_path / "work" / "out").symlink_to(tmp_path)
    resolve = path_resolver(tmp_path / "work")
    denies = rules(deny=("readTextFile(secrets/**)", f"readTextFile({tmp_path}/other/**)"))
    denied = ["door/a", "a/../secrets/b", f"{tmp_path}/work/secrets/c", "out/other/x", "../other/x", "secrets/./d"]
    for path in denied:
        assert decision_of(denies, call("readTextFile", resolve, path=path)) == "deny", path
    for path in ["secretsx", "other/x", "a\0b"]:
        assert decision_of(denies, call("readTextFile", resolve, path=path)) == "allow", path


def test_an_allow_rule_needs_all_names_of_a_path_and_any_path_of_a_move_is_enough_to_deny(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "l").symlink_to("../private")
    resolve = path_resolver(tmp_path)
    asks = rules(default="ask", allow=("readTextFile(docs/**)", "moveFile(docs/**)"), deny=("moveFile(keys/**)",))
    assert decision_of(asks, call("readTextFile", resolve, path="docs/a")) == "allow"
    assert decision_of(asks, call("readTextFile", resolve, path="docs/l")) == "ask"
    assert decision_of(asks, call("moveFile", resolve, source="docs/a", destination="docs/b")) == "allow"
    assert decision_of(asks, call("moveFile", resolve, source="docs/a", destination="b")) == "ask"
    assert decision_of(asks, call("moveFile", resolve, source="docs/a", destination="keys/b")) == "deny"
    assert decision_of(asks, call("moveFile", resolve, source="keys", destination="docs/k")) == "deny"


def test_named_arguments_must_all_match():
    denies = rules(deny=("deleteDirectory(path=src/**, recursive=true)", "exec(command=git, args=--force)"))
    assert decision_of(denies, call("deleteDirectory", path="src/a", recursive=True)) == "deny"
    assert decision_of(denies, call("deleteDirectory", path="src/a")) == "allow"
    assert decision_of(denies, run("git", "push", "--force")) == "deny"
    assert decision_of(denies, run("git", "push")) == "allow"


def test_what_the_loop_itself_answers_is_never_subject_to_a_rule():
    nothing = rules(default="deny", deny=("*",))
    for name in ("attemptCompletion", "todo", "clearTodo", "think"):
        assert decision_of(nothing, call(name)) == "allow"
    assert decision_of(nothing, PolicyCall(tool="askUser", skill="person", kind="interactive")) == "allow"
    assert decision_of(nothing, call("healthCheck")) == "deny"


def test_a_tool_of_a_server_is_subject_to_rules_whatever_it_is_called():
    nothing = rules(default="deny")
    for name in ("think", "attemptCompletion", "todo"):
        assert decision_of(nothing, PolicyCall(tool=name, skill="server", effect="readOnly")) == "deny"


def test_without_rules_everything_runs():
    assert decide_call([], run("rm", "-rf", "/")).decision == "allow"
    assert decision_of(rules(), run("sh", "-c", "eval $X")) == "allow"
    assert decision_of(rules(deny=("deleteFile",)), run("sh", "-c", "eval $X")) == "allow"


def test_only_a_rule_of_the_project_that_names_the_path_opens_it():
    def opens_file(*sets, path=".env"):
        return decide_call(list(sets), call("readTextFile", path=path)).opens

    assert opens_file(rules(allow=("readTextFile(.env)",))) == (".env",)
    assert opens_file(rules(ask=("readTextFile(path=.env)",))) == (".env",)
    assert opens_file(rules(allow=("readTextFile",))) == ()
    assert opens_file(rules(allow=("readTextFile(*)", "readTextFile(.env*)", "readTextFile(**/.env)"))) == ()
    assert opens_file(rules(allow=("writeTextFile(.env)",))) == ()
    assert opens_file(rules(allow=("readTextFile(.env)",), deny=("readTextFile(.env)",))) == ()
    assert opens_file(rules(), rules(expert="a", allow=("readTextFile(.env)",))) == ()
    assert opens_file(rules(allow=("readTextFile(.env)",)), rules(expert="a")) == (".env",)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("", "must not be empty"),
        ("exec(git", "no `)`"),
        ("exec)", "no `(`"),
        ("exec()", "empty parentheses"),
        ("delegate/", "names no Expert"),
        ("/exec", "names no tool"),
        ("git push", "space in the tool's name"),
        ("exec(path=a, path=b)", "names the argument path twice"),
        ("x" * 5000, "shorten it"),
    ],
)
def test_a_rule_that_cannot_be_read_says_what_to_write(rule, words):
    assert words in (rule_problem(rule) or "")


def test_a_bad_rule_is_an_error_that_names_file_and_line(tmp_path):
    path = tmp_path / "perstack.toml"
    path.write_text(
        '[permissions]\ndefault = "never"\ndeny = [\n  "exec",\n  "exec(git",\n]\n'
        '[experts.a]\ninstruction = "x"\n[experts.a.permissions]\nask = ["/x"]\n'
    )
    with pytest.raises(DefinitionError) as caught:
        load_project(path)
    told = [str(problem) for problem in caught.value.problems]
    assert any(f"{path}:2: permissions.default: must be one of allow, ask, deny" in line for line in told)
    assert any(f"{path}:5: permissions.deny[1]: `exec(git` has no `)`" in line for line in told)
    assert any(f"{path}:10: experts.a.permissions.ask[0]: `/x` names no tool" in line for line in told)


TOOLS = ["exec", "writeTextFile", "moveFile", "create_issue"]
GLOBS = ["*", "git *", "git push*", "a/**", "*.md", "a/b.md", "ls", "path=a/*", "command=git"]
RULES = st.one_of(
    st.sampled_from([*TOOLS, "*", "github/*", "delegate/*", "delegate/a"]),
    st.builds(lambda tool, glob: f"{tool}({glob})", st.sampled_from(TOOLS), st.sampled_from(GLOBS)),
)
LISTS = st.lists(RULES, max_size=4).map(tuple)
SETS = st.builds(
    lambda default, deny, ask, allow: rules(default=default, deny=deny, ask=ask, allow=allow),
    st.sampled_from(["allow", "ask", "deny"]),
    LISTS,
    LISTS,
    LISTS,
)
CALLS = st.sampled_from(
    [
        run("git", "push"),
        run("git", "log", "-n", "1"),
        run("ls"),
        run("sh", "-c", "git push && ls > a/b.md"),
        run("env", "git", "push"),
        run("git", "status", env={"GIT_PAGER": "x"}),
        call("writeTextFile", path="a/b.md", text=""),
        call("moveFile", source="a/c", destination="d.md"),
        github("create_issue", title="git push"),
        delegate("a"),
        call("attemptCompletion"),
    ]
)


def strictness(chain, one):
    return STRICTNESS.index(decide_call(chain, one).decision)


@settings(max_examples=scaled(400), deadline=None)
@given(SETS, SETS, CALLS)
def test_more_rules_in_the_chain_never_make_a_decision_milder(first, second, one):
    both = strictness([first, second], one)
    assert both == max(strictness([first], one), strictness([second], one))
    assert both == strictness([second, first], one)


@settings(max_examples=scaled(400), deadline=None)
@given(SETS, RULES, CALLS)
def test_a_deny_more_never_makes_a_decision_milder(some, rule, one):
    more = some.permissions.model_copy(update={"deny": (*some.permissions.deny, rule)})
    assert strictness([some.model_copy(update={"permissions": more})], one) >= strictness([some], one)


@settings(max_examples=scaled(400), deadline=None)
@given(SETS, RULES, CALLS)
def test_a_deny_is_never_overridden(some, rule, one):
    alone = strictness([rules(deny=(rule,))], one)
    more = some.permissions.model_copy(update={"deny": (rule,)})
    if alone == STRICTNESS.index("deny"):
        assert strictness([some.model_copy(update={"permissions": more})], one) == alone


def test_the_text_of_a_glob_is_matched_in_linear_time():
    text = "a" * 200_000
    denies = rules(deny=("x(" + "*a" * 500 + "b)", "readTextFile(" + "*a" * 200 + "b)"))
    assert decision_of(denies, PolicyCall(tool="x", args={"one": text})) == "allow"
    assert decision_of(denies, call("readTextFile", path=text)) == "allow"


def test_a_tool_says_which_of_its_arguments_are_paths_and_nothing_more_is_sent():
    for name in ("writeTextFile", "moveFile", "exec", "listDirectory"):
        assert BASE[name].subject is not None
    assert ToolSpec(name="x").subject is None


SEARCH = PolicyCall(tool="webSearch", skill="provider", shown="searchOfTheVendor")


@pytest.mark.parametrize(
    ("lists", "is_offered"),
    [
        ({}, True),
        ({"deny": ("webSearch",)}, False),
        ({"deny": ("provider/*",)}, False),
        ({"deny": ("searchOfTheVendor",)}, False),
        ({"deny": ("webSearch(query=*secret*)",)}, False),
        ({"deny": ("webFetch", "other/webSearch", "delegate/webSearch")}, True),
        ({"ask": ("webSearch",)}, False),
        ({"ask": ("web*",), "allow": ("provider/webSearch",)}, True),
        ({"ask": ("web*",), "allow": ("webSearch",)}, False),
        ({"ask": ("web*",), "allow": ("webSearch(query=*)",)}, False),
        ({"default": "deny"}, False),
        ({"default": "ask"}, False),
        ({"default": "ask", "allow": ("provider/webSearch",)}, True),
        ({"default": "deny", "allow": ("webSearch",)}, False),
        ({"deny": ("webSearch",), "allow": ("webSearch",)}, False),
    ],
)
def test_a_tool_that_the_provider_runs_is_offered_only_if_every_use_is_allowed(lists, is_offered):
    ruling = decide_offer([rules(**lists)], SEARCH)
    assert ruling.decision == ("allow" if is_offered else "deny")
    assert is_offered or "perstack.toml [permissions]" in ruling.reason_text
    assert decide_offer([rules(**lists), rules(deny=("webSearch",))], SEARCH).decision == "deny"
