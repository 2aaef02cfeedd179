"""Evidence that logs are unchanged: verification reports, receipts, and redactions that keep the chain intact."""
