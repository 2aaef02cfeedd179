"""Spans in the file format of OTLP: JSON, one ExportTraceServiceRequest per line.

https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/. Ids are hex, 64-bit integers are strings, enumerations
are numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack_otel.attributes import SPANS
from perstack_otel.spans import SpanEvent, TraceSpan, Value

SCOPE = "perstack_otel"

_NS_PER_MS = 1_000_000
_ERROR = 2  # status code
_KINDS = {row.operation: {"INTERNAL": 1, "CLIENT": 3}[row.kind] for row in SPANS}


def request_line(spans: Sequence[TraceSpan]) -> bytes:
    """Return one request with these spans, and a newline.

    The resource names no version or machine: the line depends on the spans alone.
    """
    resource: JsonObject = {"attributes": _attributes({"service.name": "perstack"})}
    scope_spans: JsonObject = {"scope": {"name": SCOPE}, "spans": [_span(span) for span in spans]}
    request: JsonObject = {"resourceSpans": [{"resource": resource, "scopeSpans": [scope_spans]}]}
    return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n"


def _span(span: TraceSpan) -> JsonObject:
    written: JsonObject = {"traceId": span.trace_id, "spanId": span.span_id}
    if span.parent_id:
        written["parentSpanId"] = span.parent_id
    written |= {
        "flags": 1,  # sampled
        "name": span.name,
        "kind": _KINDS[span.operation],
        "startTimeUnixNano": str(span.start_ms * _NS_PER_MS),
        "endTimeUnixNano": str(span.end_ms * _NS_PER_MS),
        "attributes": _attributes(span.attributes),
    }
    if span.events:
        written["events"] = [_event(span_event) for span_event in span.events]
    if span.dropped_events:
        written["droppedEventsCount"] = span.dropped_events
    written["status"] = {"code": _ERROR} if span.is_error else {}
    return written


def _event(span_event: SpanEvent) -> JsonObject:
    time_ns = str(span_event.time_ms * _NS_PER_MS)
    return {"timeUnixNano": time_ns, "name": span_event.name, "attributes": _attributes(span_event.attributes)}


def _attributes(attributes: Mapping[str, Value]) -> JsonValue:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items()]


def _value(value: Value) -> JsonObject:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case _:
            return {"arrayValue": {"values": [{"stringValue": item} for item in value]}}
