"""Servers of a project: over MCP on stdin and stdout, and over HTTP, for editors, agents and other programs.

- `command` checks the rules of access and opens the home workspace, or prints the settings for a client.
- `mcp` is the MCP server, independent of its transport. A client that has a folder open gets the workspace of that
  folder (`mcp.workspaces`), any other client the home workspace.
- `http` serves the same MCP server to several clients, and tasks, Jobs and approvals to other programs.

Both perform the operations of `doors.operations`, so an operation is added or changed there, once. `mcp.notifications`
and `http.routes` decide who the author of a call is and whether it may make a person's decisions: change both.
"""
