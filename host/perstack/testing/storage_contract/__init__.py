"""The storage contract as tests. Every storage passes all of them.

    from perstack.testing.storage_contract import Opener, StorageContract

    class TestMyStorage(StorageContract):
        @pytest.fixture
        def make_opener(self, tmp_path):
            def make():                         # a fresh, empty store at every call
                place = tmp_path / secrets.token_hex(4)
                return Opener(open=lambda: MyStorage(place), address=("my_package.plugin", str(place)))
            return make

The name of each test says what it protects: one that fails names what your storage would do to a Job. The tests need
pytest and hypothesis, and no plugin of pytest.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "perstack.testing.contract_logs",
    "perstack.testing.contract_crashes",
    "perstack.testing.contract_jobs",
    "perstack.testing.contract_blobs",
    "perstack.testing.contract_cache",
    "perstack.testing.contract_copies",
    "perstack.testing.contract_local",
    "perstack.testing.contract_leases",
    "perstack.testing.contract_spaces",
    "perstack.testing.contract_model",
    "perstack.testing.contract_redactions",
    "perstack.testing.contract_sizes",
)

from perstack.testing.contract_blobs import BlobContract  # noqa: E402 - after the registration above
from perstack.testing.contract_cache import CacheContract  # noqa: E402
from perstack.testing.contract_copies import CopiesContract  # noqa: E402
from perstack.testing.contract_crashes import CrashContract  # noqa: E402
from perstack.testing.contract_jobs import JobContract  # noqa: E402
from perstack.testing.contract_leases import LeaseContract  # noqa: E402
from perstack.testing.contract_local import LocalContract  # noqa: E402
from perstack.testing.contract_logs import LogContract  # noqa: E402
from perstack.testing.contract_model import ModelContract  # noqa: E402
from perstack.testing.contract_redactions import ErasureContract, RedactionContract  # noqa: E402
from perstack.testing.contract_sizes import SizeContract  # noqa: E402
from perstack.testing.contract_spaces import SpaceContract  # noqa: E402
from perstack.testing.opener import Opener  # noqa: E402

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
    """Every promise of `perstack.ports.storage`; override the fixture `make_opener`.

    What a storage can do besides is found as the host finds it, and asked for only where it is there: else the tests of
    it are skipped, and say why.
    """
