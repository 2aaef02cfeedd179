"""The storage contract: any sequence of operations against a model that is a few dictionaries."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from perstack.core.chain import Head, seal
from perstack.errors import Conflict
from perstack.ports.storage import RunRef
from perstack.testing.contract_base import ContractBase, MakeOpener
from perstack.testing.opener import Writer, payload, wait_for

_RUNS = [RunRef(job, f"{job}-{n}") for job in ("a", "b") for n in (1, 2)]
_TEXTS = st.lists(st.text(max_size=20), min_size=1, max_size=4)
_RUN = st.sampled_from(_RUNS)
_VIEW = st.integers(0, 1)


class StorageMachine(RuleBasedStateMachine):
    """Two processes work on one store; each is now and then closed and opened anew."""

    make_opener: MakeOpener

    def __init__(self) -> None:
        super().__init__()
        self.opener = self.make_opener()
        self.views = [self.opener(), self.opener()]
        for job in ("a", "b"):
            wait_for(self.views[0].create_job(job))
        self.logs = {run: Writer(self.views[0], run) for run in _RUNS}
        self.latest = ["b", "a"]
        self.summaries: dict[str, bytes] = {}

    def teardown(self) -> None:
        """Close the store of this example."""
        self.opener.close()

    @rule(run=_RUN, view=_VIEW, texts=_TEXTS)
    def append(self, run: RunRef, view: int, texts: list[str]) -> None:
        """A driver adds records, whichever process it is in."""
        self.logs[run].storage = self.views[view]
        wait_for(self.logs[run].append(*texts))

    @rule(run=_RUN, view=_VIEW, off=st.integers(-3, 3).filter(bool))
    def append_at_a_stale_place(self, run: RunRef, view: int, off: int) -> None:
        """A driver that knows less, or more, than there is loses."""
        head = self.logs[run].head
        seq = max(0, head.seq + off)
        if seq != head.seq:
            records, _ = seal(Head(seq, head.hash), [payload("stale")])
            with pytest.raises(Conflict):
                wait_for(self.views[view].append(run, seq, records))

    @rule(run=_RUN, view=_VIEW, after=st.integers(0, 12), limit=st.none() | st.integers(0, 6))
    def read(self, run: RunRef, view: int, after: int, limit: int | None) -> None:
        """Any part of a log reads as it was written."""
        expected = self.logs[run].written[after : None if limit is None else after + limit]
        assert wait_for(self.views[view].read(run, after, limit)) == expected

    @rule(view=_VIEW)
    def reopen(self, view: int) -> None:
        """A process ends and another begins."""
        self.views[view] = self.opener()

    @rule(view=_VIEW, job=st.sampled_from(["a", "b"]), summary=st.binary(max_size=30))
    def put_summary(self, view: int, job: str, summary: bytes) -> None:
        """A summary is written."""
        wait_for(self.views[view].put_summary(job, summary))
        self.summaries[job] = summary
        self.latest = [job, *(other for other in self.latest if other != job)]

    @precondition(lambda self: any(writer.written for writer in self.logs.values()))
    @rule(view=_VIEW)
    def list_runs(self, view: int) -> None:
        """Runs are listed as soon as they have a record."""
        for job in ("a", "b"):
            expected = tuple(run.run_id for run in _RUNS if run.job_id == job and self.logs[run].written)
            assert wait_for(self.views[view].runs(job)).ids == expected

    @invariant()
    def what_was_written_is_there(self) -> None:
        """Both processes see the same summaries, and the same order."""
        for view in self.views:
            for job, summary in self.summaries.items():
                assert wait_for(view.summary(job)) == summary
            if len(self.summaries) == 2:
                assert list(wait_for(view.jobs()).ids) == self.latest


class ModelContract(ContractBase):
    """Whatever is done in whatever order."""

    sequences = 25
    """How many sequences of operations are tried; each is the same in every run."""

    def test_no_order_of_operations_breaks_a_promise(self, make_opener: MakeOpener) -> None:
        machine = type("Machine", (StorageMachine,), {"make_opener": staticmethod(make_opener)})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=self.sequences,
                stateful_step_count=25,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
                derandomize=True,
            ),
        )
