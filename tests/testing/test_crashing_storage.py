"""The storage that crashes on purpose."""

from __future__ import annotations

import pytest

from perstack.testing.crashing_storage import Crash, CrashingStorage, CrashPoint, crash_points
from perstack.testing.in_memory_storage import InMemoryStorage
from perstack.testing.storage_fixture import RUN, new_writer, wait_for


def test_without_a_point_it_only_passes_on() -> None:
    storage = CrashingStorage(InMemoryStorage())
    writer = wait_for(new_writer(storage))
    wait_for(writer.append("a"))
    assert (wait_for(storage.read(RUN)), storage.appends) == (writer.written, 1)


@pytest.mark.parametrize(("moment", "kept"), [("before", 1), ("after", 2)])
def test_it_crashes_at_its_point_and_writes_nothing_more(moment, kept: int) -> None:
    storage = CrashingStorage(InMemoryStorage(), CrashPoint(moment, 2))
    writer = wait_for(new_writer(storage))
    wait_for(writer.append("a"))
    for _ in range(3):
        with pytest.raises(Crash):
            wait_for(writer.append("b"))
    assert len(wait_for(storage.storage.read(RUN))) == kept


def test_no_handler_of_ordinary_errors_sees_a_crash() -> None:
    assert not issubclass(Crash, Exception)


def test_every_place_to_crash_is_listed() -> None:
    points = crash_points(2)
    assert [(point.append, point.moment) for point in points] == [
        (1, "before"),
        (1, "after"),
        (2, "before"),
        (2, "after"),
    ]
