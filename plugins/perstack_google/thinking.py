"""How much a model of Google's may think.

Source: Gemini API documentation, «Gemini thinking», sections «Thinking levels» and «Thinking budgets».
"""

from __future__ import annotations

import re

from perstack.core.base import JsonObject
from perstack.core.definitions import ReasoningBudget
from perstack_google.settings import GoogleSettings

_BUDGETS = {"none": 0, "minimal": 1_024, "low": 4_096, "medium": 10_240, "high": 24_576}
_LEVELS = {"none": "MINIMAL", "minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM", "high": "HIGH"}

_WITHOUT_THINKING = re.compile(r"gemini-(1|2\.0)|gemma")
_COUNTS_TOKENS = re.compile(r"gemini-2")
_GEMINI_3_PRO = re.compile(r"gemini-3-pro")

_RANGES = ((re.compile(r"pro"), 128, 32_768), (re.compile(r"lite"), 512, 24_576), (re.compile(r""), 1, 24_576))
"""The fewest and the most tokens of each family that counts them; only `pro` cannot be kept from thinking."""


def signs_calls(model: str) -> bool:
    """Whether the model refuses its calls without a signature, and takes files within the results of tools."""
    return not (_WITHOUT_THINKING.search(model) or _COUNTS_TOKENS.search(model))


def takes_schemas(model: str, *, has_tools: bool) -> bool:
    """Whether the model takes a schema for its reply; older ones refuse it beside tools.

    Source: Gemini API, «Structured outputs», sections «Model support» and «Structured outputs with tools».
    """
    return _WITHOUT_THINKING.search(model) is None and (signs_calls(model) or not has_tools)


def thinking_config(model: str, budget: ReasoningBudget | None, settings: GoogleSettings) -> JsonObject | None:
    """`thinkingConfig`; None to say nothing of it."""
    if budget is None or (settings.thinking is None and _WITHOUT_THINKING.search(model)):
        return None
    counts = settings.thinking == "budget" if settings.thinking else _COUNTS_TOKENS.search(model) is not None
    if counts:
        tokens = _tokens(model, budget)
        return {"thinkingBudget": tokens, "includeThoughts": tokens > 0}
    return {"thinkingLevel": _level(model, budget), "includeThoughts": budget not in ("none", 0)}


def _tokens(model: str, budget: ReasoningBudget) -> int:
    wanted = budget if isinstance(budget, int) else _BUDGETS[budget]
    family, least, most = next(one for one in _RANGES if one[0].search(model))
    if wanted <= 0 and family.pattern != "pro":
        return 0
    return max(least, min(wanted, most))


def _level(model: str, budget: ReasoningBudget) -> str:
    """The nearest level that the model has."""
    level = _LEVELS[_word(budget)]
    if level == "MINIMAL" and "flash" not in model:
        return "LOW"
    if level == "MEDIUM" and _GEMINI_3_PRO.search(model):
        return "HIGH"
    return level


def _word(budget: ReasoningBudget) -> str:
    if not isinstance(budget, int):
        return budget
    if budget <= 0:
        return "none"
    if budget <= _BUDGETS["low"]:
        return "low"
    return "medium" if budget <= _BUDGETS["medium"] else "high"
