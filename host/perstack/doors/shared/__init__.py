"""Code that several doors share: words for states and events, next steps, forms, signals, stdio and output streams.

Doors (CLI, terminal program, ACP, MCP, HTTP) differ in how they show things; the content comes from here.
`event_text.describe` turns each stored event into rows, and `activity.JobActivity` folds events into the current state
of a Job: both are pure, so that a log on disk and a Job in this process are shown alike. `next_steps` has one phrase
for each next step and door. `output_stream`, `stdio` and `signals` hold what the process does with its file descriptors
and signals.

When an event type is added, add it to `describe` and `JobActivity`; when a NextStep is added, to every function of
`next_steps`. Both end in `assert_never`, so the type check finds what is missing.
"""
