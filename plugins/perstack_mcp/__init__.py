"""Skills that are MCP servers: as child processes, and on the web.

The MCP SDK takes most of a second to import. `conversation`, `stdio`, `web`, `oauth` and what they are made of import
it, and they are imported when a server has been started and would be waited for anyway.
"""
