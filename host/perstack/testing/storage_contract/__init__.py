"""The storage contract as a test suite, which every storage must pass.

    from perstack.testing.storage_contract import Opener, StorageContract

    class TestMyStorage(StorageContract):
        @pytest.fixture
        def make_opener(self, tmp_path):
            def make():                         # a fresh, empty store at every call
                place = tmp_path / secrets.token_hex(4)
                return Opener(open=lambda: MyStorage(place), address=("my_package.plugin", str(place)))
            return make

Each test's name says what it protects: a failing test names what your storage would do to a Job. The tests need pytest
and hypothesis, and no pytest plugin.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "perstack.testing.storage_contract._logs",
    "perstack.testing.storage_contract._crashes",
    "perstack.testing.storage_contract._jobs",
    "perstack.testing.storage_contract._blobs",
    "perstack.testing.storage_contract._caches",
)

# imported after the registration above, so that pytest rewrites their assertions
from perstack.testing.storage_contract._blobs import BlobContract, ErasureContract, RedactionContract  # noqa: E402
from perstack.testing.storage_contract._caches import CacheContract, CopiesContract  # noqa: E402
from perstack.testing.storage_contract._crashes import CrashContract, LeaseContract  # noqa: E402
from perstack.testing.storage_contract._jobs import (  # noqa: E402
    JobContract,
    LocalContract,
    SizeContract,
    SpaceContract,
)
from perstack.testing.storage_contract._logs import LogContract, ModelContract  # noqa: E402
from perstack.testing.storage_fixture import Opener  # noqa: E402

__all__ = ["Opener", "StorageContract"]


class StorageContract(
    LogContract,
    CrashContract,
    JobContract,
    BlobContract,
    LeaseContract,
    CacheContract,
    SpaceContract,
    ModelContract,
    CopiesContract,
    LocalContract,
    RedactionContract,
    ErasureContract,
    SizeContract,
):
    """All promises of `perstack.ports.storage`. Override the fixture `make_opener`.

    Optional abilities are detected as the host detects them. Tests of a missing ability are skipped with a reason.
    """
