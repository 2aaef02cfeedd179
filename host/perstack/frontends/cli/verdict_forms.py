"""What tests came to, for programs: JSON, and JUnit's XML."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as Xml

from perstack.core.base import JsonObject
from perstack.core.judging import status_word
from perstack.testing.experts.attempt import Attempt
from perstack.testing.experts.running import Outcome

_NOT_XML = "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"


def to_json(outcomes: Sequence[Outcome], path: Path, *, is_whole: bool) -> str:
    """One object; `costUsd` is null where nothing was spent, or `unknown`."""
    document: JsonObject = {
        "file": str(path),
        "ok": is_whole and all(one.is_good for one in outcomes),
        "interrupted": not is_whole,
        "tests": [_outcome(one) for one in outcomes],
    }
    return json.dumps(document, ensure_ascii=False)


def junit(outcomes: Sequence[Outcome]) -> bytes:
    """A suite for each Expert, and a case for each test."""
    suites = Xml.Element("testsuites", _counts(outcomes))
    for expert in dict.fromkeys(one.written.expert for one in outcomes):
        own = [one for one in outcomes if one.written.expert == expert]
        suite = Xml.SubElement(suites, "testsuite", {"name": expert, **_counts(own)})
        for outcome in own:
            _case(suite, outcome)
    written: bytes = Xml.tostring(suites, encoding="utf-8", xml_declaration=True)
    return written


def _outcome(outcome: Outcome) -> JsonObject:
    low, high = outcome.interval
    done = len(outcome.attempts)
    return {
        "expert": outcome.written.expert,
        "name": outcome.written.test.name,
        "place": outcome.written.place,
        "ok": outcome.is_good,
        "passed": outcome.passed,
        "done": done,
        "repeats": outcome.planned,
        "passRate": outcome.written.test.pass_rate,
        "rate": outcome.passed / done if done else None,
        "interval": [round(low, 4), round(high, 4)],
        "tokens": outcome.usage.total_tokens,
        "costUsd": outcome.cost,
        "attempts": [_attempt(one) for one in outcome.attempts],
    }


def _attempt(one: Attempt) -> JsonObject:
    return {
        "number": one.number,
        "passed": one.passed,
        "reasons": [*one.reasons],
        "status": None if one.status is None else status_word(one.status),
        "steps": one.steps,
        "tokens": one.usage.total_tokens,
        "costUsd": one.cost_usd,
        "milliseconds": one.milliseconds,
        "job": one.job or None,
        "storage": one.storage or None,
    }


def _case(suite: Xml.Element, outcome: Outcome) -> None:
    name, seconds = outcome.written.test.name, sum(one.milliseconds for one in outcome.attempts) / 1000
    about = {"classname": outcome.written.expert, "name": _clean(name), "time": f"{seconds:.3f}"}
    case = Xml.SubElement(suite, "testcase", about)
    if not outcome.is_whole:
        Xml.SubElement(case, "skipped", {"message": "interrupted"})
    elif not outcome.is_good:
        words = f"{outcome.passed} of {outcome.planned} passed"
        failure = Xml.SubElement(case, "failure", {"message": words})
        lines = [f"{one.number}: {reason}" for one in outcome.attempts for reason in one.reasons]
        failure.text = _clean("\n".join(lines))


def _counts(outcomes: Sequence[Outcome]) -> dict[str, str]:
    seconds = sum(one.milliseconds for outcome in outcomes for one in outcome.attempts) / 1000
    return {
        "tests": str(len(outcomes)),
        "failures": str(sum(one.is_whole and not one.is_good for one in outcomes)),
        "skipped": str(sum(not one.is_whole for one in outcomes)),
        "errors": "0",
        "time": f"{seconds:.3f}",
    }


def _clean(text: str) -> str:
    """Without what no XML can hold."""
    return re.sub(_NOT_XML, "\ufffd", text)
