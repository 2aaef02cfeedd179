"""The host as an MCP server: Experts as tools, Jobs to look at and go on with. See docs/editors.md.

    cli/mcp.py ─ greeting, wire      the first answer, before anything heavy is imported
        └─ stdio                     one client on a pipe: streams for the SDK, signals, the end
            ├─ workspaces            which folder each client works in, by its roots
            │   └─ serving           what the server of one folder lives on: `ServerState`
            └─ server                the SDK's server with our handlers: `build_server(workspaces)`
                ├─ tools             the tools and what each does; names, schemas, results
                ├─ driving           a Job for a call: progress, asking, forms
                ├─ jobs              Jobs in tasks of their own, which outlive the calls
                └─ definitions       perstack.toml, read again when it changes; clients are told

A transport opens the `Workspaces` of an `Offer`, builds a server on them and runs that. Capabilities are announced in
`greeting` and must be those of the handlers in `server`.
"""
