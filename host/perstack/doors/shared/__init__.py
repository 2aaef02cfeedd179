"""Code that several doors share: texts for states and events, next steps, forms, signals, stdio and output streams.

Doors (CLI, terminal program, ACP, MCP, HTTP) differ in how they show things; the content comes from here.
Each stored event describes itself as rows, and `activity.JobActivity` folds events into the state of a Job, its Runs
and their calls; each door draws a part of it. Both are pure, so that a log on disk and a Job in this process are shown
alike. `next_step_phrases` has one phrase for each next step and door. `output_stream`, `stdio` and `signals`
handle the process's file descriptors and signals.

Views show an event's rows, unless the rows name an item (`LogRow.item`) that the view draws in their place. When a
NextStep is added, add it to every function of `next_step_phrases`.
"""
