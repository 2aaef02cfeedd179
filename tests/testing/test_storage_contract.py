"""The parts of the contract suite stand side by side."""

from __future__ import annotations

from collections import Counter

from perstack.testing.storage_contract import StorageContract


def test_no_part_of_the_contract_hides_a_test_of_another() -> None:
    parts = [part for part in StorageContract.__mro__ if part is not StorageContract]
    names = Counter(name for part in parts for name in vars(part) if name.startswith("test_"))
    assert len(names) > 60
    assert max(names.values()) == 1, names.most_common(3)


def test_every_test_that_the_page_on_plugins_names_is_there() -> None:
    assert hasattr(StorageContract, "test_two_drivers_never_mix_their_histories")
