"""Logs of features outside of Jobs: tasks, series and schedules.

Each is a state machine whose events are in a log of its own, sealed like a Run's and read by `engine.log.event_log`. A
feature gives an `IndexedLogFormat`: how an event is parsed, which state follows (`transitions` has the form of its
table), and the summary of a state. `indexed_log` stores that summary beside the log, so that a list reads no log. A
summary is a cache: it has the head of the log that it was made from, and a log without that head was cut or rewritten.

`SummaryStore.before_append` empties the summary before the log grows, and the new one is stored after that: if the
process is killed in between, a list reads the log.
"""
