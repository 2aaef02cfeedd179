"""Fixtures for tests of the ACP agent."""

from __future__ import annotations

import pytest

pytest.importorskip("acp", reason="the SDK of the Agent Client Protocol is not there: pip install 'perstack[acp]'")
