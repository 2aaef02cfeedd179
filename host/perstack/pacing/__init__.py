"""Pace the requests of all Runs in a process that use the same endpoint with the same key.

`rate_limit` has the state of one endpoint and decides, purely, whether the next attempt may start: by the `[limits]` of
the project, by what the endpoint has asked for after a 429, and by a circuit that opens after many failures in a row.
`endpoint_queue` has the queues, one for each endpoint and event loop: attempts start in the order in which their
generations began to wait, and a generation keeps its position over its attempts. So a Job with twenty delegates waits
instead of failing, and an endpoint that is down is not asked by every one of them.

A queue lives in a process and is recorded nowhere: a waiting person sees `waitForEndpoint`, and a Job that must wait
long is paused by the retry policy (`core.runs.retries_and_fallbacks`), which is recorded.

The kernel knows one key, `engine.plugins.providers_and_prices.PACING`. Every attempt goes through it: of a reply
(`engine.runs.generation`), of a summary (`compaction.make_room`), of a tool that samples (`engine.runs.tool_calls`).
"""
