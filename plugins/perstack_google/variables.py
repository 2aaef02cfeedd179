"""The variables of the environment that the provider reads."""

from __future__ import annotations

KEYS = ("GOOGLE_GENERATIVE_AI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY")
"""Where a key may stand: the first that is set counts, in the order that Google's own SDK has too."""
