"""The doors of the host: each parses input, calls the Host and shows events, and does nothing else.

`cli` is the command line and starts all others. `mcp` serves Experts and Jobs to editors and agents, `http` serves
tasks, Jobs, approvals and the MCP application over HTTP, `acp` is an agent for editors, `tui` is the terminal program,
and `create` has Experts write definitions. `operations` holds what several doors offer, `served_project` the project
that a server offers, `shared` the words, forms and streams that all of them use.

Imports point in one direction: `cli`, then the other doors, then `operations`, then `shared`; `http` may import `mcp`.
The import contracts in pyproject.toml check it. Rules about Jobs, permissions and storage belong below the Host: a rule
written in one door is missing in the others.
"""
