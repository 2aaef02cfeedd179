"""Operations that several doors offer, each declared once, with what it takes, does and shows.

`declaration` says what an operation is; its models of the operations on tasks are derived from
`core.tasks.operation_table`. `jobs` has the operations on Jobs, approvals and submissions, and `views` what they show
of a Job. Docstrings and field descriptions of the models are part of the JSON schemas that MCP clients and OpenAPI
readers see: changing one changes the published schema and its tests.
"""
