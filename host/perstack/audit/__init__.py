"""Evidence about logs: verification, replay, receipts, anchors, redaction, backtests of rules.

Each line of a log is linked to the one before by a hash (`core.base.chain`). `verify` compares logs with their chain,
their states, and every place that keeps a head of them; `replay` makes every decision again. A chain alone does not
show that a log was cut off or rewritten as a whole, so `trail` sends the heads to an anchor at each stop
(`anchor_outbox`, `anchors`), signed if there is a key (`receipts`), and `anchor_comparison` compares the logs with
them.

`redact` removes texts from events while the chain stays intact: what remains is in a later `redactEvent`, which the
chain covers. `storage_admin` copies, checks and measures storages. `rule_testing` judges recorded calls by other rules.

Everything that could not be checked is listed in a report with the reason, so that `ok` is never mistaken for
complete. A new check adds its count to `verification_report.Checked`, and a kind to `UncheckedKind` for when it is
impossible.
Owners of logs call the kernel's `engine.context.audit_trail`; this package knows them all, and none knows it.

`cache_comparison`, `contradictions`, `receipt_statements`, `event_redaction` and `verification_report` are pure.
"""
