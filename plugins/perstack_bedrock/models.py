"""What Bedrock's families of models differ in, told by their ids.

Source: Amazon Bedrock user guide, «Prompt caching», «Extended thinking», «Adaptive thinking»; Amazon Nova 2 user guide,
«Extended thinking»; API reference, `ToolResultBlock`.
"""

from __future__ import annotations

import re

from perstack.core.base import JsonObject
from perstack.core.definitions import ReasoningBudget
from perstack_anthropic.codec import effort_of, limits_of
from perstack_bedrock.settings import BedrockSettings

_CACHES = re.compile(r"anthropic\.claude-(?!v2|instant|3-(haiku|sonnet|opus)|3-5-sonnet-20240620)|amazon\.nova-")
_SIGNS = re.compile(r"claude|amazon\.nova-")


def caches(model: str, settings: BedrockSettings) -> bool:
    """Whether the model takes marks that say where to cache; others refuse a request that has one."""
    return settings.cache if settings.cache is not None else _CACHES.search(model) is not None


def understands_status(model: str) -> bool:
    """Whether a tool's result may say that it is an error."""
    return _SIGNS.search(model) is not None


def limits_and_thinking(
    model: str, budget: ReasoningBudget | None, settings: BedrockSettings
) -> tuple[int | None, JsonObject]:
    """`maxTokens`, None for the model's own, and the model's own fields that say how much it may think.

    Models of no family that is known here are sent nothing of a budget.
    """
    if budget is None:
        return settings.max_tokens, {}
    if "claude" in model or settings.thinking is not None:
        most, fields = limits_of(model, budget, settings)
        # tokens of thinking are part of the reply's
        return most if _names_tokens(fields) else settings.max_tokens, fields
    return settings.max_tokens, _other_thinking(model, budget)


def _names_tokens(fields: JsonObject) -> bool:
    thinking = fields.get("thinking")
    return isinstance(thinking, dict) and "budget_tokens" in thinking


def _other_thinking(model: str, budget: ReasoningBudget) -> JsonObject:
    is_off = budget == "none" or budget == 0
    if "amazon.nova-2" in model:
        if is_off:
            return {"reasoningConfig": {"type": "disabled"}}
        return {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": effort_of(budget)}}
    if "openai.gpt-oss" in model:
        return {"reasoning_effort": "low" if is_off else effort_of(budget)}
    return {}
