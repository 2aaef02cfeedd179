"""perstack.lock, and the comparison of the tools that a skill offers with the definitions that were agreed to.

A server may change the description, the schema or the effect of a tool at any time, and a model follows what it reads.
So what was agreed to counts: by `perstack install`, which writes perstack.lock (`lock`), or else by the first use of a
skill in a Job, of which the Job's logs have digests. `agreed_tools` compares every list of a skill with that: a changed
tool is offered as it was agreed to and each of its calls asks a person, and a tool that the lock lacks is left out.

`lock` has the model of the file, its digests, and what `perstack install` needs to replace it: the lines that differ,
and the entries that stay. Digests leave out secrets and paths of one machine, so that a team shares one lock. The part
about the Experts of a queued Job travels with it (`perstack.workers`).

The kernel knows `engine.plugins.trust_checks.ToolLock` and the part `TOOL_LOCKS`, without which no Job is driven: it
offers tools only as a `JudgedTool`. `diagnostics.install` asks the skills. Definitions of tools have their digests from
`core.definitions.tool_definitions`, which grants and receipts use too: a change there makes every lock out of date.
"""
