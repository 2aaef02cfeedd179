"""Names of the tools of Experts."""

from __future__ import annotations

import re

from perstack.core.definitions.skills import LEGAL_TOOL_NAME
from perstack.doors.served_project import tool_names
from perstack_server.mcp.tools import JOB_TOOLS


def test_a_key_that_is_legal_is_the_name_and_another_comes_near() -> None:
    assert tool_names(["writer", "@org/critic", "a.b"], JOB_TOOLS) == {
        "writer": "writer",
        "@org/critic": "org_critic",
        "a.b": "a_b",
    }


def test_names_are_legal_and_unique_whatever_the_keys() -> None:
    keys = ["a_b", "a.b", "@a/b", "answer", "x" * 80, "x" * 81, "@org/answer", "get_job"]
    names = tool_names(keys, JOB_TOOLS)
    assert names["a_b"] == "a_b", "who has the name by right keeps it"
    assert len(set(names.values())) == len(keys)
    assert not set(names.values()) & set(JOB_TOOLS)
    assert all(LEGAL_TOOL_NAME.fullmatch(name) for name in names.values())
    assert max(map(len, names.values())) == 48
    assert re.fullmatch(r"answer_[0-9a-f]{6}", names["answer"])


def test_a_name_does_not_depend_on_order_or_on_other_experts() -> None:
    keys = ["@a/b", "a.b", "solo"]
    assert tool_names(keys, ()) == tool_names(reversed(keys), ())
    assert tool_names(["solo"], ())["solo"] == tool_names(keys, ())["solo"]
