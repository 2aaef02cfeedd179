"""Skills that are MCP servers: child processes and servers on the web.

A session (`session.McpSession`) owns one server for all Runs of a Job and reconnects after it has died. `local_server`
and `remote_server` implement `server_interface.McpServer`: they start the server and list the attempts to connect.
`client` tries them in order through the SDK and makes the calls; nothing of the SDK's types leaves it.

- `server_process`, `stdio`: child process and its pipes. `http_transports`: connections to checked addresses.
- `repairing_transport`: repairs messages before the SDK sees them; what it repairs is decided by the pure functions of
  `message_repairs`, `result_repairs` and `tool_repairs`, and over HTTP by `http_bodies`. `tool_list`: pages and changes.
- `session_renewal`: new session with a remote server that has lost its session.
- `server_requests`: questions and generations that a server requests during a call.
- `oauth`, `login`, `login_store`: authorization; tokens are renewed under a lock shared by all processes.
- `sdk`: every use of the SDK's private names; `tests/plugins/mcp/test_sdk.py` fails when they change.

The SDK takes most of a second to import. Only modules that are imported after the server has been started may import it
(`client`, `stdio`, `http_transports`, `oauth` and what they use). Keep `session`, `server_interface`,
`local_server` and `remote_server` free of it.
"""
