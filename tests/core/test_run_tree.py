"""The tree of a Job's Runs: whatever its logs say, each is there once, and none before what it follows from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perstack.core.jobs.summary import RunSummary, tree_of
from perstack.core.runs.facts import ContinuedFrom


def run(number: int, *, by: int | None = None, head: int = 9) -> RunSummary:
    parent = None if by is None else f"j-{by}"
    return RunSummary(id=f"j-{number}", expert_key="e", status="completed", delegated_by=parent, head_seq=head)


def continued_from(number: int, seq: int, **how: bool) -> ContinuedFrom:
    return ContinuedFrom(run_id=f"j-{number}", checkpoint_id=f"j-{number}-{seq}", **how)


def test_a_continuation_stands_beside_what_it_continues_and_all_else_below() -> None:
    runs = [run(1), run(2, by=1), run(3, by=2), run(4), run(5), run(6), run(7), run(8)]
    places = {
        "j-4": continued_from(1, 9),
        "j-5": continued_from(1, 4),
        "j-6": continued_from(1, 4, answers=True),
        "j-7": continued_from(4, 3, as_it_was=True),
        "j-8": continued_from(4, 9),
    }
    assert [(one.run.id, one.depth, one.how, one.at) for one in tree_of(runs, places)] == [
        ("j-1", 0, "begun", None),
        ("j-2", 1, "delegate", None),
        ("j-3", 2, "delegate", None),
        ("j-5", 1, "branch", "j-1-4"),
        ("j-6", 1, "answer", "j-1-4"),
        ("j-4", 0, "continuation", "j-1-9"),
        ("j-7", 1, "uncompacted", "j-4-3"),
        ("j-8", 0, "continuation", "j-4-9"),
    ]


def test_a_run_whose_parent_is_gone_stands_at_the_top() -> None:
    assert [
        (one.run.id, one.parent, one.depth) for one in tree_of([run(2, by=1), run(3)], {"j-3": continued_from(1, 9)})
    ] == [
        ("j-2", None, 0),
        ("j-3", None, 0),
    ]


NUMBERS = st.integers(1, 8)


@given(st.dictionaries(NUMBERS, st.one_of(st.none(), NUMBERS, st.tuples(NUMBERS, st.integers(0, 12)))))
def test_each_run_is_there_once_even_if_the_logs_lead_in_a_circle(
    links: dict[int, int | tuple[int, int] | None],
) -> None:
    runs = [run(number, by=link if isinstance(link, int) else None) for number, link in links.items()]
    places = {f"j-{number}": continued_from(*link) for number, link in links.items() if isinstance(link, tuple)}
    tree = tree_of(runs, places)
    assert sorted(one.run.id for one in tree) == sorted(one.id for one in runs)
    seen = {}
    for one in tree:
        if one.depth:
            assert seen[one.parent] <= one.depth <= seen[one.parent] + 1
        seen[one.run.id] = one.depth
