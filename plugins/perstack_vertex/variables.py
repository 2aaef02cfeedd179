"""What the provider needs to find: variables of the environment, and a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

PROJECTS = ("GOOGLE_VERTEX_PROJECT", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "ANTHROPIC_VERTEX_PROJECT_ID")
LOCATIONS = ("GOOGLE_VERTEX_LOCATION", "GOOGLE_CLOUD_LOCATION", "GOOGLE_CLOUD_REGION", "CLOUD_ML_REGION")
"""Where project and location may stand, as the SDKs of Vercel, Google and Anthropic have it: the first one counts."""


def first_of(env: Mapping[str, str], names: Sequence[str]) -> str | None:
    """The value of the first variable that is set."""
    return next((value for name in names if (value := env.get(name, "").strip())), None)


def has_library() -> bool:
    """Whether google-auth is installed, and what it sends its requests with."""
    try:
        return find_spec("google.auth") is not None and find_spec("requests") is not None
    except ModuleNotFoundError:
        return False
