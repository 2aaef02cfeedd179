"""Tasks: work of agents that is paused, and resumed by any later process from the state that was saved.

A task has one log, in the space `tasks` of the storage (`task_log`). An operation is a class in `operations`, which
decides events from the task's state, and a row in `operation_table`: the typed methods (`memory`), the command line,
HTTP, MCP and the tools of an Expert are derived from it. `execution_memory` carries operations out; after a
conflict, the operation decides again on the newer state.

`due_tasks` decides what happens to a task while its agent does nothing: wake it, fail it, continue its Job. The
scheduler (`perstack.schedules`) performs that. The kernel uses `waiting_commands`, the inbox `waiting_tasks`.

A new event needs a model in `events`, its row in TRANSITIONS of `state` and a case in `evolve`. `arguments`,
`due_tasks`, `events`, `evolve`, `operations`, `operation_table`, `state` and `summaries` are pure.
"""
