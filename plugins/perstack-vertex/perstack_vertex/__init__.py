"""Provider `google-vertex`, with the variables and libraries that registration needs without importing the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LIBRARIES = ("google.auth", "requests")  # modules of google-auth and of the HTTP library that it uses
PROJECTS = ("GOOGLE_VERTEX_PROJECT", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "ANTHROPIC_VERTEX_PROJECT_ID")
LOCATIONS = ("GOOGLE_VERTEX_LOCATION", "GOOGLE_CLOUD_LOCATION", "GOOGLE_CLOUD_REGION", "CLOUD_ML_REGION")
"""Variables of project and location, as the SDKs of Vercel, Google and Anthropic have them; the first one set counts.
"""


def first_of(env: Mapping[str, str], names: Sequence[str]) -> str | None:
    """Return the value of the first variable that is set; None without one."""
    return next((value for name in names if (value := env.get(name, "").strip())), None)
