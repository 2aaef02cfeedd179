"""Make room in the full context of a Run, and find again what was left out.

When to make room, and which results and messages are left out, is decided in the kernel, since replay decides it again:
`core.runs.context_window` returns the command `Shrink` or `Compact`. This package performs it.
`core.runs.events.context` has the events and their folds.

`make_room` stores old results as blobs (`shrinkResults`), or has a model summarise older turns (`startCompaction`,
`compactHistory`). `summary_texts` builds the transcript for that model, and the text that replaces the turns: the
summary, the todos, and what people and the definition want kept word for word. If no model can write a summary, an
outline made without one takes its place, so a full context never stops a Run.

`context_tools` has the tools that a Run with a shortened context is offered: `recallHistory` searches its logs
(`recall`), and `pin` keeps a note in a turn that is never left out. `visibility` finds the events that a model no
longer sees, for people who read a log.

The kernel knows two keys: `engine.runs.loop.MAKE_ROOM` and `engine.plugins.job_skills.CONTEXT_TOOLS`. `recall` and
`summary_texts` are pure. A change of the form of the texts must keep `summary_in` in step: recordings are made with it.
"""
