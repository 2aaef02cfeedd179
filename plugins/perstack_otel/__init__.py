"""OpenTelemetry traces of Jobs, made from their logs.

A trace is derived from stored events alone, like every page and export: nothing is measured, attached to a context or
kept open in a process. The same log gives the same spans, ids included, wherever and whenever they are made.

- `attributes` is the table of names: those of the GenAI semantic conventions, and our own below `perstack.`. It prints
  docs/telemetry.md.
- `spans` is pure: `RunSpans` folds the events of one Run and returns each span when the event that ends it comes. A
  returned span never changes, so the spans of a log's beginning are some of the spans of the whole log.
- `otlp_json` writes spans in the file format of OTLP, `export` does so for a Job.

Ids are hashes. A trace has its id from the Job; a span from its Run and the chain hash of the event that opens it. The
call of a delegate has its id from the delegate's Run id instead: so a delegate's log alone names its parent span, on
whichever machine it is read.

A new attribute is a row in `attributes` and a value in `spans`; a test compares the two.
"""
