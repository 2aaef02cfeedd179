"""The names in traces: spans, attributes and span events, each with the event field that its value comes from.

Names outside of `perstack.` are those of the GenAI semantic conventions `CONVENTIONS`. Token usage is an attribute of
`chat` alone: backends add up what they find, so a sum on `invoke_agent` would be counted twice.
"""

from __future__ import annotations

from typing import Literal

from perstack.dataclass import dataclass

CONVENTIONS = "semantic-conventions-genai v0.1.0"

SpanName = Literal["invoke_agent", "chat", "execute_tool"]
Level = Literal["required", "conditional", "recommended", "opt-in", "own"]
"""Requirement level of the conventions; `own`: an attribute of perstack."""


@dataclass(frozen=True, slots=True)
class SpanRow:
    """A kind of span."""

    operation: SpanName
    target: str  # what follows the operation in the span's name
    kind: Literal["INTERNAL", "CLIENT"]
    opens: str  # events that open it
    ends: str  # events that end it


@dataclass(frozen=True, slots=True)
class AttributeRow:
    """An attribute of spans."""

    name: str
    on: tuple[SpanName, ...]
    level: Level
    source: str  # the event field, as docs/events.md names it


@dataclass(frozen=True, slots=True)
class SpanEventRow:
    """An event of an `invoke_agent` span."""

    name: str
    source: str
    attributes: tuple[str, ...]


_ALL: tuple[SpanName, ...] = ("invoke_agent", "chat", "execute_tool")
_RUN: tuple[SpanName, ...] = ("invoke_agent",)
_CHAT: tuple[SpanName, ...] = ("chat",)
_TOOL: tuple[SpanName, ...] = ("execute_tool",)

SPANS = (
    SpanRow(
        "invoke_agent",
        "Expert",
        "INTERNAL",
        "`startRun`, `resumeRun`, or the first event after a stop",
        "`finishRun`, `errorRun`, `stopRunBy…`, `queueRun`, `closeRun`",
    ),
    SpanRow(
        "chat",
        "model",
        "CLIENT",
        "`startGeneration`, `startCompaction`",
        "`finishGeneration`, `retry`, `switchModel`, `adaptRequest`, `compactHistory`",
    ),
    SpanRow("execute_tool", "tool", "INTERNAL", "`callTools`, `callDelegate`", "`finishToolCall`, `attemptCompletion`"),
)

ATTRIBUTES = (
    AttributeRow("gen_ai.operation.name", _ALL, "required", "the kind of span"),
    AttributeRow("gen_ai.conversation.id", _ALL, "conditional", "`jobId`"),
    AttributeRow("error.type", _ALL, "conditional", "`error.statusCode` or `error.name`; `tool_error`, `interrupted`"),
    AttributeRow("gen_ai.agent.name", _RUN, "conditional", "`expertKey`"),
    AttributeRow("gen_ai.agent.version", _RUN, "conditional", "`expert.version`"),
    AttributeRow("gen_ai.agent.description", _RUN, "conditional", "`expert.description`"),
    AttributeRow(
        "gen_ai.provider.name", ("invoke_agent", "chat"), "required", "`provider`; `switchModel.to` after a switch"
    ),
    AttributeRow("gen_ai.request.model", ("invoke_agent", "chat"), "conditional", "`model`; `switchModel.to`"),
    AttributeRow("gen_ai.request.max_tokens", _CHAT, "recommended", "`startGeneration.maxTokens`, set by a budget"),
    AttributeRow("gen_ai.response.finish_reasons", _CHAT, "recommended", "`finishReason`"),
    AttributeRow("gen_ai.usage.input_tokens", _CHAT, "recommended", "`usage.inputTokens`, with cached ones"),
    AttributeRow("gen_ai.usage.output_tokens", _CHAT, "recommended", "`usage.outputTokens`, with reasoning"),
    AttributeRow("gen_ai.usage.cache_read.input_tokens", _CHAT, "recommended", "`usage.cachedInputTokens`"),
    AttributeRow("gen_ai.usage.cache_creation.input_tokens", _CHAT, "recommended", "`usage.cacheWriteTokens`"),
    AttributeRow("gen_ai.usage.reasoning.output_tokens", _CHAT, "recommended", "`usage.reasoningTokens`"),
    AttributeRow(
        "gen_ai.tool.name", _TOOL, "required", "`toolName`; `unknown` if it was not offered, unless content is included"
    ),
    AttributeRow("gen_ai.tool.call.id", _TOOL, "recommended", "`toolCallId`"),
    AttributeRow("gen_ai.tool.type", _TOOL, "recommended", "`function`"),
    AttributeRow("mcp.method.name", _TOOL, "required", "`tools/call`, for a tool of an MCP skill"),
    AttributeRow("network.transport", _TOOL, "recommended", "`pipe` or `tcp`, for a tool of an MCP skill"),
    AttributeRow("gen_ai.system_instructions", _RUN, "opt-in", "`instruction`"),
    AttributeRow("gen_ai.input.messages", _RUN, "opt-in", "`query`"),
    AttributeRow("gen_ai.output.messages", ("invoke_agent", "chat"), "opt-in", "`reply`; `finishRun.text`"),
    AttributeRow("gen_ai.tool.call.arguments", _TOOL, "opt-in", "`args` of the reply, or of `changeCall`"),
    AttributeRow("gen_ai.tool.call.result", _TOOL, "opt-in", "`contents`"),
    AttributeRow("perstack.run.id", _ALL, "own", "`runId`"),
    AttributeRow("perstack.step", _ALL, "own", "`stepNumber` of the event that opens it"),
    AttributeRow("perstack.event.first", _ALL, "own", "`id` of the event that opens it"),
    AttributeRow("perstack.event.last", _ALL, "own", "`id` of the event that ends it"),
    AttributeRow("perstack.interrupted", _ALL, "own", "true if it was open when its process ended or was interrupted"),
    AttributeRow("perstack.run.resumed", _RUN, "own", "`resumeRun.reason`"),
    AttributeRow("perstack.run.end", _RUN, "own", "`type` of the event that ends it"),
    AttributeRow("perstack.generation.purpose", _CHAT, "own", "`summary` for `startCompaction`"),
    AttributeRow("perstack.generation.attempt", _CHAT, "own", "`retry.attempt`, of an attempt that failed"),
    AttributeRow("perstack.generation.delay_ms", _CHAT, "own", "`retry.delayMs`: the wait after it"),
    AttributeRow("perstack.usage.cost_usd", _CHAT, "own", "`usage.costUsd`"),
    AttributeRow("perstack.usage.assumed_tokens", _CHAT, "own", "`usage.assumedTokens`"),
    AttributeRow("perstack.tool.skill", _TOOL, "own", "`skillName`"),
    AttributeRow("perstack.tool.kind", _TOOL, "own", "`kind`"),
    AttributeRow("perstack.tool.decider", _TOOL, "own", "`stage`: which stage refused the call or had a person asked"),
    AttributeRow("perstack.tool.rule", _TOOL, "own", "`rule`"),
    AttributeRow("perstack.tool.approval", _TOOL, "own", "`decideApproval.decision`, or `changed`"),
    AttributeRow("perstack.tool.approved_by", _TOOL, "own", "`decideApproval.by`, `changeCall.by`"),
    AttributeRow("perstack.tool.delegate", _TOOL, "own", "`callDelegate.delegates[].runId`"),
    AttributeRow(
        "perstack.tool.input_tokens", _TOOL, "own", "`finishToolCall.usage`: generations that the tool asked for"
    ),
    AttributeRow("perstack.tool.output_tokens", _TOOL, "own", "the same"),
    AttributeRow("perstack.tool.cost_usd", _TOOL, "own", "the same"),
)

_CALL = ("gen_ai.tool.name", "gen_ai.tool.call.id")
_ANSWERED = ("perstack.by", "perstack.wait.duration_ms")

SPAN_EVENTS = (
    SpanEventRow("perstack.approval.requested", "`requestApproval`", (*_CALL, "perstack.tool.rule")),
    SpanEventRow(
        "perstack.approval.decided",
        "`decideApproval`, `changeCall`",
        ("gen_ai.tool.call.id", "perstack.tool.approval", *_ANSWERED),
    ),
    SpanEventRow("perstack.question.asked", "`callInteractiveTool`", _CALL),
    SpanEventRow(
        "perstack.question.answered",
        "`answerQuestion`, `settleCall`, `finishToolCall` of a question",
        ("gen_ai.tool.call.id", *_ANSWERED),
    ),
    SpanEventRow("perstack.told", "`tellRun`", ("perstack.by",)),
    SpanEventRow(
        "perstack.model.switch",
        "`switchModel`",
        ("perstack.model.from", "perstack.model.to", "perstack.model.reason"),
    ),
    SpanEventRow("perstack.result.rejected", "`rejectResult`", ()),
)

PROVIDERS = {
    "google": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "amazon-bedrock": "aws.bedrock",
    "azure-openai": "azure.ai.openai",
}
"""Providers whose name in the conventions differs from ours."""

FINISH_REASONS = {"toolCalls": "tool_call", "refusal": "content_filter"}
"""Finish reasons whose name in the conventions differs from ours."""
