"""Provider `amazon-bedrock`, with the names of its variables, which can be read without importing the rest."""

from __future__ import annotations

LIBRARIES = ("botocore",)
KEYS = ("AWS_BEARER_TOKEN_BEDROCK", "AWS_ACCESS_KEY_ID")
PROFILE = "AWS_PROFILE"  # variable that names a profile, which may have both a key and a region
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")  # variables of the region; the first that is set counts
