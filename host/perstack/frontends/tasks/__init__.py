"""Execution memory for programs: one table of operations, served over HTTP and as MCP tools."""
