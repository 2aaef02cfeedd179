"""Servers of a project: over MCP on stdin and stdout, and over HTTP, for editors, agents and other programs."""
