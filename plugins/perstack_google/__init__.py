"""Provider `google`, with the names of its key variables, which can be read without importing the rest."""

from __future__ import annotations

KEYS = ("GOOGLE_GENERATIVE_AI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY")
"""Variables of the API key. The first that is set counts, in the order of Google's own SDK."""
