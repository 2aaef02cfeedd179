"""The HTTP door: tasks, Jobs, approvals and webhooks for programs, the MCP server, and a worker's health.

`server` runs uvicorn with one application. Its outer layer, `access`, checks the server's names, the token and the size
of bodies; `doors.shared.http_connections` limits what a client may cost before it has shown the token. `routes` serves
the operations on tasks, Jobs and approvals that have a route in `doors.operations`, `openapi` describes them, and the
MCP application is mounted at `/mcp`. `doors.cli.worker_health` and `worker_metrics` serve a worker and share only the
sockets with the rest.

Webhook paths and the description need no token (`routes.is_open`): a route added there is public.
"""
