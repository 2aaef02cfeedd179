"""The host as an MCP server: Experts as tools, and tools for Jobs and tasks. See docs/editors.md.

    command.py
        └─ server.serve_stdio        one client on a pipe; perstack_server/http/server.py serves several
            ├─ workspaces            which folder each client works in, by its roots
            │   └─ served_project    opens the `ClientProject` of one folder: a `ServedProject` and its clients
            └─ server                the SDK's server with our handlers, and consent to a changed definition
                ├─ tools             an Expert's tool, and the operations of `doors.operations` as tools
                ├─ driving           a call: its reply, a Job for it with progress, and questions by elicitation
                └─ notifications     the clients to notify, and Jobs that they subscribed to

A transport opens the `Workspaces` of its `ServeOptions`, builds a server on them and runs it.
"""
