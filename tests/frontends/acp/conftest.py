"""What tests of the ACP agent share."""

from __future__ import annotations

from pathlib import Path

import pytest
from terminal import Terminal

pytest.importorskip("acp", reason="the SDK of the Agent Client Protocol is not there: pip install 'perstack[acp]'")


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """An empty directory to give commands in."""
    return Terminal(tmp_path)
