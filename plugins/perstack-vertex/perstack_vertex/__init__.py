"""Provider `google-vertex`, with what is read without importing the rest: variable names and the library check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

PROJECTS = ("GOOGLE_VERTEX_PROJECT", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "ANTHROPIC_VERTEX_PROJECT_ID")
LOCATIONS = ("GOOGLE_VERTEX_LOCATION", "GOOGLE_CLOUD_LOCATION", "GOOGLE_CLOUD_REGION", "CLOUD_ML_REGION")
"""Variables of project and location, as the SDKs of Vercel, Google and Anthropic have them; the first one set counts.
"""


def first_of(env: Mapping[str, str], names: Sequence[str]) -> str | None:
    """Return the value of the first variable that is set; None without one."""
    return next((value for name in names if (value := env.get(name, "").strip())), None)


def has_library() -> bool:
    """Return whether google-auth and its HTTP library are installed."""
    try:
        return find_spec("google.auth") is not None and find_spec("requests") is not None
    except ModuleNotFoundError:
        return False
