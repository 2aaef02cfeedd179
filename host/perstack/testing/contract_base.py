"""The fixtures of the storage contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from perstack.ports.storage import Storage
from perstack.testing.opener import Opener

MakeOpener = Callable[[], Opener]


class ContractBase:
    """What all parts of the contract share."""

    @pytest.fixture
    def make_opener(self) -> MakeOpener:
        """To be overridden: a function that gives a fresh, empty store at every call."""
        raise pytest.UsageError("override the fixture `make_opener` of StorageContract")

    @pytest.fixture
    def opener(self, make_opener: MakeOpener) -> Iterator[Opener]:
        """One store; what is opened on it is closed at the end of the test."""
        opener = make_opener()
        yield opener
        opener.close()

    @pytest.fixture
    def storage(self, opener: Opener) -> Storage:
        """An open storage on an empty store."""
        return opener()
