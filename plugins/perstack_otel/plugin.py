"""The formats of traces, for `perstack export`."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.ports.commands import PluginCommand, PluginDocument

PLUGIN_API = 1


def perstack_commands() -> Sequence[PluginCommand]:
    """Return no command."""
    return []


def perstack_documents() -> Sequence[PluginDocument]:
    """Return `otlp`, the trace of a Job, and `otlp-content`, with texts, arguments and results."""
    return [
        PluginDocument("otlp", "the trace in OTLP JSON, for OpenTelemetry", "perstack_otel.export:trace_of_job"),
        PluginDocument(
            "otlp-content",
            "the same with texts, arguments and results",
            "perstack_otel.export:trace_with_content_of_job",
        ),
    ]
