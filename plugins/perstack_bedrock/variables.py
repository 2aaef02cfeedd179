"""The variables of the environment that the provider reads."""

from __future__ import annotations

KEYS = ("AWS_BEARER_TOKEN_BEDROCK", "AWS_ACCESS_KEY_ID")
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
"""Where a region may stand: the first that is set counts."""
