"""Operations that several doors offer: their arguments and their execution.

`arguments` derives the argument models of the task operations from `core.tasks.operation_table` and performs them for
MCP and HTTP. `jobs` holds the argument models for Jobs, approvals and submissions, and `answered`, with which MCP and
ACP answer a Job's question. Docstrings and field descriptions of these models are part of the JSON schemas that MCP
clients and OpenAPI readers see: changing one changes the published schema and its tests.
"""
