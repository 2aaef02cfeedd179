"""The host as an MCP server: Experts as tools, Jobs to look at and go on with. See docs/editors.md."""
