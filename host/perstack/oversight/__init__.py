"""What needs a person: the inbox of all that waits for one, and the calls that only a person may make.

`inbox` lists the open questions of Jobs, oldest first, with Jobs that cannot be read; tasks add theirs to it.

`needed_decisions` has the marks of operations and their arguments: what a model or program that calls over MCP, HTTP or
the tools for tasks may do by itself is declared where the operation is, and anything that is not declared counts as a
person's decision. `job_decisions` has the functions for the marks of operations on Jobs, `tasks.task_decisions` those
for tasks. They return the decision as text, with the step by which a person makes it, and a digest that binds a
person's agreement to exactly this decision.

`cloud_events` reads events of other programs, which answer a question in place of a person.

All but `inbox` are pure. The kernel knows none of this: it records who decided, and doors ask before they call it.
"""
