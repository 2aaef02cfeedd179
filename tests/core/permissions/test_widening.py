"""Rules laid over others, and rules of another day: only what is named is opened, and nothing else gets milder."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perstack.config.resolved_settings import rule_sets
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.permissions import (
    Permissions,
    RuleSet,
    StandingApproval,
    Widening,
    apply_widening,
    apply_widening_to_all,
    start_rules,
    todays_missing_rules,
)
from perstack.core.definitions.project import Project
from perstack.core.definitions.skills import DecidedCall
from perstack.core.permissions.call_rulings import apply_rules
from perstack.core.permissions.decide_call import decide_call
from perstack.core.permissions.policy_calls import PolicyCall

STRICTNESS = {"allow": 0, "ask": 1, "deny": 2}
TOOLS = ("a", "b", "c")
rules = st.sampled_from(["a", "b", "*", "a(x*)", "a(p=x)", "s/b", "s/*(y)", "c(*)"])
lists = st.lists(rules, max_size=3).map(tuple)
decisions = st.sampled_from(["allow", "ask", "deny"])
permissions = st.builds(Permissions, default=decisions, deny=lists, ask=lists, allow=lists)
sets = st.builds(RuleSet, source=st.just("f"), expert=st.sampled_from(["", "e"]), permissions=permissions)
chains = st.lists(sets, max_size=3).map(tuple)
calls = st.builds(
    PolicyCall,
    tool=st.sampled_from(TOOLS),
    skill=st.sampled_from(["s", "t"]),
    args=st.fixed_dictionaries({"p": st.sampled_from(["x", "xy", "y"])}),
)
widenings = st.builds(Widening, source=st.just("w"), default=st.none() | decisions, deny=lists, ask=lists, allow=lists)


def strictness(chain, call) -> int:
    return STRICTNESS[decide_call(chain, call).decision]


@given(chains, calls, st.lists(rules, max_size=2))
def test_no_approval_for_a_job_makes_a_denied_call_run(chain, call, approved) -> None:
    standing = [StandingApproval(id="job-1-1", call_digest="v1:x", rule=rule) for rule in approved]
    decided = apply_rules(chain, standing, DecidedCall(id="1", tool_name=call.tool, skill_name=call.skill), call)
    before = decide_call(chain, call).decision
    assert (decided.kind == "refused") == (before == "deny")
    assert not (decided.asks or decided.approved_by) or before == "ask"
    if before == "ask" and not approved:
        assert decided.asks


@given(chains, st.lists(sets, max_size=2), calls, st.lists(widenings, max_size=2))
def test_a_run_that_begins_has_at_most_what_every_run_above_it_has(above, today, call, laid) -> None:
    assert strictness(start_rules(above, today, laid), call) >= strictness(above, call)


@given(chains, st.lists(sets, max_size=2), calls)
def test_a_resumed_run_has_at_most_what_it_had_and_what_today_allows(chain, today, call) -> None:
    in_force = (*chain, *todays_missing_rules(today, chain, ()))
    assert strictness(in_force, call) >= max(strictness(chain, call), strictness(today, call))


@given(sets, widenings)
def test_a_deny_falls_only_if_the_same_rule_is_allowed_by_name(rule_set, widening) -> None:
    after = apply_widening(rule_set, widening).permissions
    assert set(rule_set.permissions.deny) - set(widening.allow) <= set(after.deny)
    assert set(widening.deny) <= set(after.deny)
    if widening.default is None:
        assert after.default == rule_set.permissions.default


@given(chains, st.lists(widenings, max_size=2))
def test_what_was_widened_is_not_added_again_by_the_same_file(chain, laid) -> None:
    in_force = chain
    for widening in laid:
        in_force = apply_widening_to_all(in_force, widening)
    assert todays_missing_rules(chain, in_force, laid) == ()


def test_a_default_that_a_file_does_not_write_changes_none() -> None:
    assert Widening.of(Permissions(allow=("a",)), "f").default is None
    assert Widening.of(Permissions(default="allow"), "f").default == "allow"


def test_iterations_are_held_to_the_rules_that_they_were_started_with_and_to_those_of_today() -> None:
    then, now = Permissions(deny=("a",)), Permissions(deny=("b",))
    project = Project(permissions=now, recorded_permissions=then)
    found = rule_sets(project, Expert(key="e", instruction="i"))
    assert [one.permissions for one in found] == [then, now]
    same = rule_sets(project.model_copy(update={"permissions": then}), Expert(key="e", instruction="i"))
    assert [one.permissions for one in same] == [then]
