"""Compare a finished Job with the expectations of an Expert's test: facts in, reasons for failure out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import sqrt

from perstack.core.base.text import one_line
from perstack.core.base.usage import Cost
from perstack.core.definitions.job_status import TYPED_STATUS, JobStatus
from perstack.core.definitions.permissions import Permissions, RuleSet
from perstack.core.permissions.decide_call import decide_call
from perstack.core.permissions.policy_calls import PolicyCall
from perstack.core.schemas.patterns import compile_pattern
from perstack.dataclass import dataclass
from perstack.expert_tests.models import Expected, ExpectedStatus

_MAX_SHOWN_CALLS = 6
_MAX_CALL_CHARS = 80
_MAX_TEXT_CHARS = 120
_NORMAL_QUANTILE = 1.959964  # quantile of the normal distribution for 95 %


@dataclass(frozen=True, slots=True)
class UnreadableFile:
    """A file that is missing or cannot be read."""

    why: str  # phrase that follows the file's name, such as `is missing`


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The facts about a Job that tests check."""

    status: JobStatus
    result: str = ""
    because: str = ""  # error, exceeded limit or open question of a Job that is not completed
    steps: int = 0
    cost: Cost | None = None  # US dollars; None if nothing was spent, `unknown` even if a part is known
    calls: tuple[PolicyCall, ...] = ()  # calls that ran, in the order of the Runs
    files: Mapping[str, str | UnreadableFile] | None = None
    command_failed: str = ""  # reason why the test's command failed; empty if it passed, or there is none


def judge(expected: Expected, facts: JobFacts) -> tuple[str, ...]:
    """Return the reasons why the Job does not meet the expectations; empty if it does."""
    return tuple(one_line(reason) for reason in _reasons(expected, facts))


def matches_call(rule: str, policy_call: PolicyCall) -> bool:
    """Return True if the rule concerns this call as a deny rule would, or a call that is exempt from rules."""
    subject = None if policy_call.subject is None or policy_call.subject.is_nothing else policy_call.subject
    judged = PolicyCall(
        tool=policy_call.tool,
        skill=policy_call.skill,
        args=policy_call.args,
        kind="delegate" if policy_call.kind == "delegate" else "tool",
        effect=policy_call.effect,
        subject=subject,
        shown=policy_call.shown,
        resolve=policy_call.resolve,
        root=policy_call.root,
    )
    rules = RuleSet(source="tests", permissions=Permissions(deny=(rule,)))
    return decide_call((rules,), judged).decision == "deny"


def shown_call(policy_call: PolicyCall) -> str:
    """Return a call as one shortened line: `writeTextFile(path=out.md, text=…)`."""
    name = f"delegate/{policy_call.tool}" if policy_call.kind == "delegate" else policy_call.tool
    arguments = ", ".join(f"{key}={_short_value(value)}" for key, value in policy_call.args.items())
    return _shorten(f"{name}({arguments})" if arguments else name, _MAX_CALL_CHARS)


def interval(passed: int, total: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a pass rate by Wilson's score; (0, 1) without any test."""
    if not total:
        return 0.0, 1.0
    rate, z_squared = passed / total, _NORMAL_QUANTILE * _NORMAL_QUANTILE
    middle = rate + z_squared / (2 * total)
    half_width = _NORMAL_QUANTILE * sqrt(rate * (1 - rate) / total + z_squared / (4 * total * total))
    low, high = ((middle - half_width) / (1 + z_squared / total), (middle + half_width) / (1 + z_squared / total))
    return (0.0 if not passed else max(0.0, low)), (1.0 if passed == total else min(1.0, high))


def status_word(status: JobStatus) -> str:
    """Return the word for a status in tests and `perstack jobs --status`."""
    return next(word for word, value in TYPED_STATUS.items() if value == status)


def _reasons(expected: Expected, facts: JobFacts) -> Iterator[str]:
    if facts.status != TYPED_STATUS[expected.status]:
        yield _status_deviation(expected.status, facts)
    yield from _call_deviations(expected, facts.calls)
    yield from _result_deviations(expected, facts.result)
    yield from _file_deviations(expected.files, facts.files or {})
    if expected.max_steps is not None and facts.steps > expected.max_steps:
        yield f"it took {facts.steps} steps, more than {expected.max_steps}"
    if expected.max_cost is not None:
        yield from _cost_deviations(expected.max_cost, facts.cost)
    if facts.command_failed:
        yield facts.command_failed


def _status_deviation(expected: ExpectedStatus, facts: JobFacts) -> str:
    reason_text = f": {_shorten(facts.because, 4 * _MAX_TEXT_CHARS)}" if facts.because else ""
    return f"status is `{status_word(facts.status)}`, not `{expected}`{reason_text}"


def _call_deviations(expected: Expected, calls: Sequence[PolicyCall]) -> Iterator[str]:
    for rule in expected.called:
        if not any(matches_call(rule, policy_call) for policy_call in calls):
            yield f"no call is `{rule}`; {_list_calls(calls)}"
    for rule in expected.not_called:
        forbidden_call = next((policy_call for policy_call in calls if matches_call(rule, policy_call)), None)
        if forbidden_call is not None:
            yield f"a call is `{rule}`: {shown_call(forbidden_call)}"


def _list_calls(calls: Sequence[PolicyCall]) -> str:
    if not calls:
        return "there was none"
    texts = ", ".join(dict.fromkeys(shown_call(policy_call) for policy_call in calls[:_MAX_SHOWN_CALLS]))
    return f"calls: {texts}" + (f" and {len(calls) - _MAX_SHOWN_CALLS} more" if len(calls) > _MAX_SHOWN_CALLS else "")


def _result_deviations(expected: Expected, result: str) -> Iterator[str]:
    short_result = f"it is: {_shorten(result, _MAX_TEXT_CHARS)}" if result else "there is none"
    for text in expected.result_contains:
        if text not in result:
            yield f'the result has no "{_shorten(text, _MAX_TEXT_CHARS)}"; {short_result}'
    if expected.result_matches is not None:
        pattern = compile_pattern(expected.result_matches)
        if isinstance(pattern, str):
            yield f"resultMatches cannot be matched: {pattern}"
        elif pattern.search(result.encode("utf-8", "replace")) is None:
            yield f"the result does not match {_shorten(expected.result_matches, _MAX_TEXT_CHARS)}; {short_result}"


def _file_deviations(expected: Mapping[str, str], actual: Mapping[str, str | UnreadableFile]) -> Iterator[str]:
    for path, text in expected.items():
        content = actual.get(path, UnreadableFile("is missing"))
        if isinstance(content, UnreadableFile):
            yield f"{path} {content.why}"
        elif text not in content:
            beginning = f"; it begins: {_shorten(content, _MAX_TEXT_CHARS)}" if content else "; it is empty"
            yield f'{path} has no "{_shorten(text, _MAX_TEXT_CHARS)}"{beginning}'


def _cost_deviations(max_cost: float, cost: Cost | None) -> Iterator[str]:
    if cost == "unknown":
        yield f"its cost is unknown, so that it may be more than ${max_cost:,.4f}: give the model's price in [prices]"
    elif cost is not None and cost > max_cost:
        yield f"it cost ${cost:,.4f}, more than ${max_cost:,.4f}"


def _short_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shorten(text: str, max_chars: int) -> str:
    line = one_line(text[: max_chars + 200])
    return line if len(line) <= max_chars and len(text) <= max_chars + 200 else line[: max_chars - 1].rstrip() + "…"
