"""Skills that are MCP servers: child processes and servers on the web.

A session (`session.McpSession`) owns one server for all Runs of a Job and reconnects after it has died. `local_server`
and `remote_server` implement `server_interface.McpServer`: they start the server and list the attempts to connect.
`client` tries them in order through the SDK and makes the calls; `tool_results` converts their results,
and cuts long texts. No type of the SDK leaves these two.

- `plugin`: registration with the host.
- `server_process`, `stdio`: child process and its pipes. `http_transports`: connections to checked addresses.
- `repairing_transport`: repairs messages before the SDK sees them, by the pure functions of `message_repairs`,
  `result_repairs` and `tool_repairs`; `http_bodies` does so for bodies. `tool_list`: pages of a list, and changes.
- `session_renewal`: new session with a remote server that has lost its session.
- `server_requests`: questions and generations that a server requests during a call.
- `oauth`: authorization, with tokens from the SDK's providers. `login`: a person logs in with a browser.
  `stored_login`: that login in later Jobs, renewed under a lock shared by all processes. `login_store`: its file.
  `machine_logins`: logins without a person.
- `sdk`: every use of the SDK's private names; `tests/plugins/mcp/test_sdk.py` fails when they change.

The SDK takes most of a second to import. Only modules that are imported after the server has been started may import it
(`client`, `stdio`, `http_transports`, `oauth`, `stored_login` and what they use). Keep `session`, `server_interface`,
`local_server` and `remote_server` free of it.
"""
