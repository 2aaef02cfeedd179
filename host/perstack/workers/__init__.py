"""Workers: processes on any machine that drive queued Jobs, series and delegates.

A dispatcher (`ports.dispatcher`) only says who may drive what; the log and the lease in the storage say who does. So an
order that is lost, doubled or late costs time and never work: `dispatcher_queue` records that a Job waits for a worker
before it orders it, and finds recorded Jobs without an order again.

- `dispatcher_queue`, `queued_definition`: what a Job is queued with, so that a worker needs no perstack.toml; its Agent
  Skills are bundled by `agent_skills.bundles`.
- `worker`, `driving_claims`, `driving_orders`, `orders`: claim, drive, and decide whether an order is done or queued
  again. `orders` is pure.
- `serving`: drive a queued Job or a delegate, after a check that this machine has what it needs; `folders` gives each
  Job a folder of its own.
- `remote_delegates`: delegates of a Job that others drive, each with a share of its budget; `budget_shares` divides it
  and is pure.

The kernel knows the protocols `engine.jobs.job_queue_protocol`, `engine.jobs.queueing_protocol` and
`engine.runs.remote_delegates_protocol`; `dispatcher_queue`, `queued_definition` and `remote_delegates` fulfil them.
"""
